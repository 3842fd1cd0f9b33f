"""Capture, retention and fate on traces worked out by hand, from what real readers leave behind."""

from __future__ import annotations

import unicodedata
from functools import partial
from itertools import accumulate, pairwise

import pytest
from reading_by_hand import play

from experiments.readers.gated import gated
from experiments.readers.recall import recall
from memagent_lib.diagnostics import Fate, diagnose, evidence_in, live_memories
from memagent_lib.readers import baselines, map_merge, multislot, overwrite
from memagent_lib.text import Chunk
from memagent_lib.trace import Trace

A, H, M, L = Fate.AHEAD, Fate.IN_MEMORY, Fate.MISSED, Fate.LOST
OWL, OTTER = "The code of the bold owl is 4711.", "The film Otter was directed by Ada Lovelace."
QUESTION = "What is the code of the bold owl, and who directed the film Otter?"


def sliced(*texts: str) -> list[Chunk]:
    ends = [0, *accumulate(map(len, texts))]
    return [Chunk(i, text, a, b, 9) for i, (text, (a, b)) in enumerate(zip(texts, pairwise(ends), strict=True))]


def read(reader, chunks: list[Chunk], replies: list[str], question: str = QUESTION) -> Trace:
    """Return the trace that a real reader leaves when a model gives these replies in turn."""
    waiting = iter(replies)
    trace, _ = play(reader(question, iter(chunks)), lambda prompt: next(waiting))
    return trace


def span_of(document: str, words: str) -> tuple[int, int]:
    return (at := document.index(words), at + len(words))


TEXTS = ["Rain. ", f"{OWL} ", "Snow. ", f"{OTTER} ", "Wind."]
DOCUMENT = "".join(TEXTS)
CHUNKS = sliced(*TEXTS)
BOTH = [span_of(DOCUMENT, OWL), span_of(DOCUMENT, OTTER)]


def test_each_of_several_facts_has_a_history_of_its_own():
    trace = read(overwrite, CHUNKS, ["-", "owl: 4711", "4711", "4711; Ada Lovelace", "Ada Lovelace", "x"])
    owl, otter = (found := diagnose(trace, BOTH, ["4711"], DOCUMENT)).histories
    assert owl.fates == (A, H, H, H, L, L) and (owl.captured, owl.retained) == (True, False)
    assert otter.fates == (A, A, A, H, H, H) and (otter.captured, otter.retained) == (True, True)
    assert (owl.words, otter.words) == (("4711",), ("Ada", "Lovelace"))
    assert found.fates == (A, H, H, H, L, L) and found.fate is L
    assert (found.capture, found.retention) == (1.0, 0.5)
    assert found.changes == [1, 4]


@pytest.mark.parametrize("answer", ["A", "the", "€"])
def test_an_answer_without_words_is_not_looked_for(answer):
    for memory in ("", "The answer is A, for 5 €."):
        found = diagnose(read(overwrite, CHUNKS[:1], [memory, "x"]), [], [answer])
        assert (found.capture, found.retention, found.fate) == (None, None, None)
    assert diagnose(read(overwrite, CHUNKS[:1], ["so 4711", "x"]), [], [answer, "4711"]).retention == 1.0


def test_accents_may_be_characters_of_their_own():
    chunks = sliced(unicodedata.normalize("NFD", "The mayor of Zürich is Zoë Müller."))
    for memory in ("Mayor of Zürich: Zoë Müller", chunks[0].text):
        found = diagnose(read(overwrite, chunks, [memory, "x"], "Who is the mayor?"), [(0, chunks[0].end)], [])
        assert (found.capture, found.retention) == (1.0, 1.0)
        assert len(found.histories[0].words) == 3
    assert diagnose(read(overwrite, chunks, ["Zoe Muller", "x"]), [(0, chunks[0].end)], []).capture == 0.0


def test_a_merge_that_lost_a_fact_stays_in_a_continued_trace():
    before = read(map_merge, CHUNKS[:2], ["-", "owl: 4711", "nothing", "x"])
    after = read(partial(overwrite, previous=before), sliced(*TEXTS)[2:3], ["nothing new", "x"])
    assert [turn.prompt.kind.name for turn in after.turns] == ["read", "read", "merge", "read", "answer"]
    assert after.turns[3].prompt.memory == "nothing"
    assert live_memories(after) == [("-",), ("-", "owl: 4711"), ("nothing",), ("nothing new",), ("nothing new",)]
    assert diagnose(after, [], ["4711"]).retention == 0.0


def test_a_turn_is_measured_by_what_it_could_note_or_retain():
    trace = read(overwrite, CHUNKS, ["-", "owl: 4711", "4711", "4711; Ada Lovelace", "Ada Lovelace", "x"])
    # Nothing to do; notes the owl; keeps it; keeps it and notes the film; keeps one of two; keeps the other.
    assert diagnose(trace, BOTH, ["4711"], DOCUMENT).steps == (None, 1.0, 1.0, 1.0, 0.5, 1.0)
    missed = read(overwrite, CHUNKS, ["-", "nothing", "nothing", "Ada Lovelace", "-", "x"])
    assert diagnose(missed, BOTH, ["4711"], DOCUMENT).steps == (None, 0.0, None, 1.0, 0.0, None)
    assert diagnose(read(overwrite, CHUNKS[:1], ["-", "x"]), [], []).steps == (None, None)


def test_a_fact_is_ahead_until_read_though_its_answer_is_there():
    mole = "The code of the grey mole is 4711. "
    chunks, owl = sliced(mole, "Rain. ", f"{OWL} ", "Snow."), span_of(document := f"{mole}Rain. {OWL} Snow.", OWL)
    kept = diagnose(read(overwrite, chunks, ["mole 4711", "mole 4711", "owl 4711", "4711", "x"]), [owl], ["4711"])
    assert kept.fates == (A, A, H, H, H) and kept.changes == [2] and (kept.capture, kept.retention) == (1.0, 1.0)
    assert kept.steps == (None, None, 1.0, 1.0, 1.0)
    gone = diagnose(read(overwrite, chunks, ["mole 4711", "rain", "rain", "snow", "x"]), [owl], ["4711"], document)
    assert gone.fates == (A, A, M, M, M), "what was never read cannot be lost"
    never = diagnose(read(overwrite, chunks[:2], ["mole 4711", "4711", "x"]), [owl], ["4711"], document)
    assert never.fates == (A, A, A) and (never.capture, never.retention) == (0.0, None)


def test_a_fact_cut_by_a_chunks_end_counts_at_its_last_chunk():
    first, second = DOCUMENT[:30], DOCUMENT[30:]
    assert "4711" in second and "The code" in first
    trace = read(overwrite, sliced(first, second), ["an owl has a code", "4711", "4711"])
    for document in (DOCUMENT, None):  # its words are put together from the chunks where the document is not at hand
        (owl,) = diagnose(trace, BOTH[:1], ["4711"], document).histories
        assert owl.fates == (A, H, H) and owl.captured is True and owl.words == ("4711",)
    assert [evidence_in(t, BOTH[:1]) for t in trace.turns] == [((6, 30),), ((0, BOTH[0][1] - 30),), ()]


def test_a_memory_that_the_gate_keeps_is_in_memory():
    trace = read(gated, CHUNKS, ["-", "owl 4711", "KEEP", "KEEP", "KEEP", "4711"])
    found = diagnose(trace, BOTH[:1], ["4711"])
    assert found.fates == (A, H, H, H, H, H) and (found.capture, found.retention) == (1.0, 1.0)


def test_a_recalled_memory_is_displayed_and_not_in_memory():
    replies = ["-", "owl 4711", "rain\nRECALL: owl", "wind", "wind", "x"]
    trace = read(recall, CHUNKS, replies)
    assert trace.turns[3].prompt.memories == 2 and "4711" in trace.turns[3].prompt.memory
    assert live_memories(trace)[3] == ("wind",)
    assert diagnose(trace, BOTH[:1], ["4711"]).fates == (A, H, L, L, L, L)
    replies[3] = "owl 4711 again"
    assert diagnose(read(recall, CHUNKS, replies), BOTH[:1], ["4711"]).fates == (A, H, L, H, L, L)


def test_every_slot_is_memory_not_only_the_rewritten_one():
    trace = read(multislot, CHUNKS, ["-", "owl 4711", "snow", "Ada Lovelace", "wind", "x"])
    assert live_memories(trace)[-1] == ("wind", "owl 4711", "snow", "Ada Lovelace")
    found = diagnose(trace, BOTH, ["4711"], DOCUMENT)
    assert found.fates == (A, H, H, H, H, H) and (found.capture, found.retention) == (1.0, 1.0)
    again = read(multislot, [*CHUNKS, Chunk(5, "Fog.", 98, 102, 1)], ["-", "owl 4711", "s", "a", "w", "fog", "x"])
    assert diagnose(again, BOTH[:1], ["4711"]).fates == (A, H, H, H, H, L, L), "the sixth turn rewrites the second slot"


def test_parts_read_out_of_order_are_in_memory_in_order():
    texts = [f"Filler {i}. " for i in range(10)]
    texts[3] = f"{OWL} "  # the second chunk of the third part: read after the first chunks of all eight parts
    chunks, document = sliced(*texts), "".join(texts)
    first = [f"part {i}" for i in range(8)]
    merges = ["a", "b 4711", "c", "d", "still 4711", "e", "f 4711"]
    trace = read(map_merge, chunks, [*first, "owl 4711", "part 5 too", *merges, "x"])
    reads = [t.prompt.chunk.index for t in trace.reads]
    assert reads != sorted(reads) and len(trace.turns) == 8 + 2 + 7 + 1
    live, at = live_memories(trace), reads.index(3)
    assert live[7] == tuple(first)
    assert live[at] == (*first[:2], "owl 4711", *first[3:])
    assert live[at + 2] == ("a", "owl 4711", *first[3:5], "part 5 too", *first[6:])
    assert live[-1] == ("f 4711",)
    spans = [span_of(document, OWL)]
    assert diagnose(trace, spans, ["4711"]).fates == (A,) * at + (H,) * (len(trace.turns) - at)
    lost = diagnose(
        read(map_merge, chunks, [*first, "owl 4711", "p", *merges[:4], "gone", "e", "f", "x"]), spans, ["4711"]
    )
    assert lost.fates == (A,) * 8 + (H,) * 6 + (L,) * 4 and (lost.capture, lost.retention) == (1.0, 0.0)


def test_a_merge_without_texts_leaves_one_memory_for_two():
    trace = read(map_merge, sliced(f"{OWL} ", "Rain. ", "Wind."), ["owl 4711", "rain", "wind", "wet", "windy", "x"])
    lean = trace.lean()
    three = ("owl 4711", "rain", "wind")
    assert live_memories(lean) == [three[:1], three[:2], three, ("wet", "wind"), ("windy",), ("windy",)]
    assert live_memories(lean) == live_memories(trace)
    # The fact was lost in the first merge, and no memory that a merge displayed brings it back.
    found = diagnose(lean, [(0, len(OWL))], ["4711"], (OWL,))
    assert found.fates == (H, H, H, L, L, L) and (found.capture, found.retention) == (1.0, 0.0)


@pytest.mark.parametrize("reader", [baselines.blind, baselines.full, baselines.truncated, baselines.retrieved])
def test_a_reader_without_memory_has_no_fate(reader):
    trace = read(reader, CHUNKS, ["4711"])
    found = diagnose(trace, BOTH, ["4711"], DOCUMENT)
    assert (found.fates, found.fate, found.capture, found.retention, found.changes) == ((None,), None, None, None, [])
    assert [history.fates for history in found.histories] == [(None,), (None,)]


def test_without_evidence_the_answer_itself_is_the_fact():
    trace = read(overwrite, CHUNKS, ["-", "4711", "4711", "no", "no", "x"])
    found = diagnose(trace, (), ["4711", "forty-seven eleven"])
    assert found.fates == (A, H, H, L, L, L) and (found.capture, found.retention) == (None, 0.0)
    never = diagnose(read(overwrite, CHUNKS, ["-"] * 6), (), ["4711"])
    assert never.fates == (A, A, A, A, M, M)


@pytest.mark.parametrize(
    ("memory", "present"),
    [
        ("THE CODE IS 4711", True),
        ("14711", False),
        ("4711.5", False),
        ("the code of the bold owl is", False),
        ("(４７１１)", True),
    ],
)
def test_an_answer_is_in_memory_as_whole_words_of_any_case(memory, present):
    trace = read(overwrite, CHUNKS, ["-", memory, "", "", "", "x"])
    assert diagnose(trace, BOTH[:1], ["4711"]).capture == float(present)


@pytest.mark.parametrize(
    ("fact", "question", "memory", "present"),
    [
        (OTTER, QUESTION, "Lovelace, Ada made it", True),
        (OTTER, QUESTION, "the film Otter was directed by somebody", False),
        ("the violet key opens a rusty gate.", "What opens the gate?", "violet key, rusty", True),
        ("the violet key opens a rusty gate.", "What opens the gate?", "violet key", False),
        ("猫在东京。", "谁?", "东京里有猫在", True),
        ("猫在东京。", "谁?", "猫在大阪", False),
    ],
)
def test_a_fact_without_an_answer_is_known_by_its_new_words(fact, question, memory, present):
    trace = read(overwrite, sliced(fact, " Wind."), [memory, memory, "x"], question)
    found = diagnose(trace, [(0, len(fact))], ["Greenwich"])
    assert found.capture == float(present)


def test_rollouts_tables_and_fates_are_one_number(kept, lost):
    pytest.importorskip("verl")
    from memagent_lib.inspector import Readings
    from memagent_lib.inspector.readings import FATES
    from memagent_lib.rl.agent_loop import rollout_metrics

    letters = {each.fate: each.letter for each in FATES}
    for result in (kept, lost):
        metrics, row = rollout_metrics(result), result.row()
        assert (metrics["capture"], metrics["retention"]) == (row["capture"], row["retention"])
        readings = Readings({"policy": [result]})
        (entry,) = readings.catalog()
        assert readings.story(entry["key"])["fates"] == "".join(letters[fate] for fate in result.diagnosis.fates)
    assert [r.row()["retention"] for r in (kept, lost)] == [1.0, 0.0]
