"""Readers as what they are: generators that are handed replies. No backend, no tokenizer."""

import re
from dataclasses import replace

import pytest
from reading_by_hand import pieces, play, remember_all

from experiments.readers.gated import GATE, gated
from experiments.readers.recall import RECALL, best_past, recall
from experiments.readers.retrieving import SEARCH, retrieving
from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.prompts import Budget, BudgetError, Encoder, Template
from memagent_lib.readers import (
    Ranking,
    full,
    map_merge,
    multislot,
    overwrite,
    passages_of,
    retrieved,
    truncated,
)  # fmt: skip
from memagent_lib.readers.with_memory import PARTS
from memagent_lib.text import Chunk, chunks
from memagent_lib.trace import Kind, Prompt, Reply

# gated


def test_keep_leaves_the_memory_and_is_marked_in_the_trace():
    says = iter(["note one", "KEEP", " keep.", "note two", "answer"])
    trace, _ = play(gated("q", pieces("a ", "b ", "c ", "d ")), lambda p: next(says))
    assert trace.memories == ("note one", "note one", "note one", "note two")
    assert [t.reply.signal for t in trace.reads] == ["", "keep", "keep", ""]
    assert all(t.prompt.kind == GATE for t in trace.reads)


def test_done_stops_the_reading_and_requests_no_more_chunks():
    asked = []

    def lazily():
        for chunk in pieces("a ", "b ", "c ", "d "):
            asked.append(chunk.index)
            yield chunk

    says = iter(["note", "DONE\nthe code is 7", "7"])
    trace, moves = play(gated("q", lazily()), lambda p: next(says))
    assert asked == [0, 1]
    assert len(moves) == 3
    assert trace.turns[-1].prompt.memory == "the code is 7"
    assert trace.reads[-1].reply.signal == "done"


@pytest.mark.parametrize(
    ("said", "memory", "signal"),
    [
        ("DONE", "before", "done"),
        ("Done with it: no", "Done with it: no", ""),
        ("KEEP - nothing new here", "before", "keep"),
        ("**KEEP** - nothing new", "before", "keep"),
        ("KEEP.\nThe memory stays as it is.", "before", "keep"),
        ("KEEP the red door shut", "KEEP the red door shut", ""),
        ("KEEP-alive is 30 s", "KEEP-alive is 30 s", ""),
        ("**DONE**\ncode 7", "code 7", "done"),
    ],
)
def test_a_gate_is_a_word_by_itself(said, memory, signal):
    says = iter(["before", said, "end"])
    trace, _ = play(gated("q", pieces("a ", "b ")), lambda p: next(says))
    assert (trace.memories[1], trace.reads[1].reply.signal) == (memory, signal)


# recall


def test_a_recalled_memory_is_beside_the_next_chunk_once():
    says = iter(
        [
            "the otter lives in Oslo",
            "the owl is 77",
            "the fox is 5\nRECALL: where does the otter live",
            "otter Oslo, fox 5",
            "Oslo",
        ]
    )
    trace, _ = play(recall("q", pieces("a ", "b ", "c ", "d ")), lambda p: next(says))
    shown = [t.prompt.memory for t in trace.turns]
    assert shown[3] == "the fox is 5\nFrom an earlier memory:\nthe otter lives in Oslo"
    assert shown[4] == "otter Oslo, fox 5"
    assert [t.prompt.memories for t in trace.turns] == [1, 1, 1, 2, 1]
    assert trace.reads[2].reply.signal == "recall: where does the otter live"


@pytest.mark.parametrize("kind", [RECALL, SEARCH])
@pytest.mark.parametrize(
    "memory", ["The code is 7.\nHe did not {}: it was late.", "He did not {}: late.", "The Re{} - re{}: 40 trials."]
)
def test_a_commands_word_in_a_sentence_requests_nothing(kind, memory):
    word = min(set(kind.commands) - {"done"})
    reply = Reply(memory.replace("{}", word))
    assert kind.opened(reply, "old") == reply
    reply = Reply(f"The code is 7. {word.upper()}: the owl")
    assert kind.opened(reply, "old") == replace(reply, text="The code is 7.", signal=f"{word}: the owl")


def test_only_an_older_memory_that_shares_a_word_is_recalled():
    assert best_past("otter", ["the otter", "the owl"], "the otter") is None
    assert best_past("otter", ["the otter", "the owl"], "x") == "the otter"
    assert best_past("zebra", ["the otter", "the owl"], "x") is None
    assert best_past("zebra", [], "x") is None


# multislot


def test_each_chunk_rewrites_the_oldest_slot():
    trace, _ = play(multislot("q", pieces(*"abcdef")), lambda p: p.memory + p.chunk.text if p.chunk else "end")
    assert trace.memories == ("a", "b", "c", "d", "ae", "bf")
    asked = trace.turns[-1].prompt
    assert (asked.memory, asked.memories) == ("ae\nbf\nc\nd", 4)


# map_merge


def test_parts_are_read_side_by_side_and_merged_in_a_tree():
    trace, moves = play(map_merge("q", pieces(*[f"w{i} " for i in range(19)])), remember_all)
    widths = [len(move) for move in moves]
    assert widths == [8, 8, 3, 4, 2, 1, 1]
    assert trace.answer.split() == [f"w{i}" for i in range(19)]
    merges = [t.prompt for t in trace.turns if t.prompt.kind == Kind.MERGE]
    assert len(merges) == PARTS - 1
    assert (merges[-1].chunk.start, merges[-1].chunk.end) == (moves[-2][0].chunk.start, 10 * 3 + 9 * 4)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 20])
def test_no_chunk_is_lost_whatever_their_number(n):
    trace, _ = play(map_merge("q", pieces(*[f"w{i} " for i in range(n)])), remember_all)
    assert trace.answer.split() == [f"w{i}" for i in range(n)]


# baselines and search


def test_retrieved_passages_are_in_the_documents_order():
    chunks = pieces(
        "Rain falls. " * 8,
        "The otter has the code 4821. " + "Rain falls. " * 8,
        "Rain. " * 16,
        "Snow. " * 12 + "An otter swims. ",
    )
    _trace, moves = play(retrieved("What is the otter's code?", chunks), lambda p: "4821")
    shown = moves[0].chunk.text
    assert shown.index("code 4821") < shown.index("otter swims")
    assert moves[0].kind == Kind.DIRECT
    assert moves[0].chunk.tokens <= max(c.tokens for c in chunks)


def test_passages_cover_a_chunk_and_are_at_most_a_quarter_of_it():
    for text in ("A b. " * 31, "ab. " + "c" * 97, "x" * 10 + ". " + "y" * 29 + ". " + "z" * 80, "abc", "é"):
        (chunk,) = pieces(text)
        parts = passages_of(chunk)
        assert "".join(part.text for part in parts) == text
        assert max(len(part.text) for part in parts) <= -(-len(text) // 4)
        assert [text[p.start - chunk.start : p.end - chunk.start] for p in parts] == [p.text for p in parts]


def test_search_ignores_case_and_leaves_out_what_shares_no_word():
    assert Ranking(["the owl", "a violet otter", "an otter"]).ranked("Violet OTTER") == [1, 2]
    assert Ranking(["a"]).ranked("?!") == [] == Ranking([]).ranked("x")
    assert Ranking(["a", "京", "tower 7"]).ranked("东京 tower_7") == [2, 1]


# what they show, and the window that it needs


def test_a_document_too_long_for_one_prompt_names_the_fix(encoder):
    long, *dense = (
        chunks(text, encoder.tokenizer, encoder.budget.chunk_tokens)
        for text in ("Rain taps. " * 60, "\U0001f989" * 9 + " the" * 10, "the " * 10 + "\U0001f989" * 9)
    )
    for prompt in (next(full("why?", long)), next(truncated("why " * 8, [*dense[0], *dense[1]]))):
        with pytest.raises(BudgetError, match=r"the direct prompt is .*, or read with a memory") as refused:
            encoder.encode(prompt)
        enough = int(re.search(r"raise chunk_tokens to (\d+) if the window holds it", str(refused.value))[1])
        budget = replace(encoder.budget, chunk_tokens=enough)
        assert Encoder(encoder.tokenizer, encoder.template, budget).encode(prompt)


def test_a_reader_that_displays_more_memories_than_it_declares(encoder):
    memory = "\n".join(["is " * encoder.budget.memory_tokens] * 6)
    prompt = Prompt(Kind.ANSWER, "why?", memory)
    with pytest.raises(BudgetError, match=r"is \d+ tokens, and the budget allows"):
        encoder.encode(prompt)


def test_overwrite_reads_each_chunk_with_the_memory_before_it(tokenizer):
    parts = chunks("One. Two. Three. Four.", tokenizer, 6)
    said = iter(["m1", "m2", "m3", "m4", "m5", "m6", "m7"])
    trace, prompts = play(overwrite("q", iter(parts)), lambda p: next(said))
    assert [p.memory for p in prompts] == ["", *(f"m{i + 1}" for i in range(len(parts)))]
    assert [p.chunk for p in prompts] == [*parts, None]
    assert trace.memories == tuple(f"m{i + 1}" for i in range(len(parts)))
    assert trace.answer == f"m{len(parts) + 1}"


def test_truncated_shows_both_ends_of_the_document(encoder):
    backend = Scripted(lambda text: "\\boxed{1}")
    document = "Alpha begins here. " + "Rain taps on the roof all night. " * 60 + "Omega ends here."
    Agent(encoder, backend, truncated).read(document, "q?")
    (request,) = backend.requests
    assert (
        "Alpha begins" in request.text
        and "Omega ends here." in request.text
        and len(request.ids) < encoder.prompt_limit(Kind.DIRECT)
    )


@pytest.mark.parametrize(("rest", "shown"), [(1, 10), (4, 10), (6, 8), (10, 10)])
def test_truncated_is_about_one_chunk_however_short_the_last_one_is(rest, shown):
    sizes = (10, 10, rest)
    parts = [Chunk(i, "abc"[i] * n, 10 * i, 10 * i + n, n) for i, n in enumerate(sizes)]
    prompt = next(truncated("q", iter(parts)))
    head, _, tail = prompt.chunk.text.partition("\n...\n")
    assert (head, len(head + tail)) == ("aaaaa", shown) and ("b" * 10 + "c" * rest).endswith(tail)
    assert prompt.chunk.tokens >= shown


# retrieving


def four_passages(text: str) -> str:
    """A chunk whose quarters are sentences of 40 characters; the second one has the text."""
    return "".join(f"{each} {'x' * (37 - len(each))}. " for each in ("Rain", text, "Rain", "Rain"))


def test_a_search_displays_the_best_other_passage_once():
    chunks = pieces(
        *map(four_passages, ("Hail", "The keeper of the owl is Anna", "Snow", "The code of Anna is 7", "Wind"))
    )
    says = iter(
        ["-\nSEARCH: keeper of the owl", "Anna", "Anna\nSEARCH: code of Anna", "7", "7\nSEARCH: code", "7", "7", "7"]
    )
    trace, _ = play(retrieving("q", chunks), lambda p: next(says))
    kinds = [(str(t.prompt.kind), t.prompt.chunk.index if t.prompt.chunk else None) for t in trace.turns]
    # The third search's only match has been displayed before, so the reading goes on.
    assert kinds == [
        ("search", 0),
        ("found", 1),
        ("search", 1),
        ("found", 3),
        ("search", 2),
        ("search", 3),
        ("search", 4),
        ("answer", None),
    ]
    found = trace.turns[1].prompt.chunk
    assert found.text.startswith("The keeper of the owl is Anna ")
    assert len(found.text) == 40
    assert "".join(chunk.text for chunk in chunks)[found.start : found.end] == found.text
    assert trace.chunks_read == (chunks[0], chunks[1], chunks[3], chunks[2], chunks[4]), "each once, in reading order"
    assert trace.turns[0].reply.signal == "search: keeper of the owl"
    assert [t.prompt.memory for t in trace.turns[1:3]] == ["-", "Anna"]


@pytest.mark.parametrize(
    ("reader", "reply"),
    [
        (gated, "the code is 7\nDONE"),
        (gated, "the code is 7\n**KEEP**"),
        (recall, "RECALL: owl\nthe code is 7"),
        (recall, "the code is 7\nRECALL:"),
        (retrieving, "DONE\nthe code is 7\nSEARCH: owl"),
        (retrieving, "SEARCH: owl\nSEARCH: otter"),
    ],
)
def test_a_command_in_a_form_that_means_nothing_is_counted(tokenizer, reader, reply):
    encoder = Encoder(
        tokenizer,
        Template.load("short"),
        Budget(chunk_tokens=48, memory_tokens=48, answer_tokens=12, question_tokens=32),
        reader.prompts,
    )
    says = iter([reply, "x"])
    trace = Agent(encoder, Scripted(lambda text: next(says)), reader).read("Rain on the roof.", "code?")
    assert trace.bad_memory_kinds == "1 malformed command (take)"


@pytest.mark.parametrize("reply", ["KEEP", "DONE\nthe code is 7", "Rain on the roof: DONE"])
def test_gates_that_mean_something_are_no_fault(reply, encoder):
    says = iter([reply, "x"])
    trace = Agent(encoder, Scripted(lambda text: next(says)), gated).read("Rain on the roof.", "code?")
    assert trace.bad_memories == 0
