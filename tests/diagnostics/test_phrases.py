"""Where every phrase came from, when it went, and what is the model's own wording."""

import itertools

import pytest

from memagent_lib.diagnostics import Provenance
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn

DOCUMENT = (
    "Rain taps on the roof. The violet otter lives in Oslo. Snow covers the road. The bold owl has 4821 feathers. "
    "Leaves gather."
)
CUTS = [0, 55, 77, len(DOCUMENT)]
CHUNKS = [Chunk(i, DOCUMENT[a:b], a, b, 9) for i, (a, b) in enumerate(itertools.pairwise(CUTS))]


def read(memories: list[str], answer: str) -> Provenance:
    turns, memory = [], ""
    for chunk, after in zip(CHUNKS, memories, strict=True):
        turns.append(Turn(Prompt(Kind.READ, "q", memory, chunk), Reply(after)))
        memory = after
    return Provenance.of(Trace("q", (*turns, Turn(Prompt(Kind.ANSWER, "q", memory), Reply(answer)))))


def test_every_phrase_stands_in_the_source_word_for_word():
    p = read(
        ["Violet otter lives in Oslo.", "violet otter: Oslo", "otter Oslo; the bold owl has 4821 feathers"],
        "4821 feathers",
    )
    for phrase in p.phrases:
        assert DOCUMENT[phrase.start : phrase.end].lower() == phrase.text.lower()
        assert DOCUMENT[phrase.quote_start :].startswith(phrase.quote)
        assert phrase.text.lower() in phrase.quote.lower()
    assert [(x.text, x.brought) for x in p.phrases] == [
        ("Violet otter lives in Oslo", 0),
        ("the bold owl has 4821 feathers", 2),
    ]
    assert p.phrases[0].quote == "The violet otter lives in Oslo."


def test_the_evidence_of_an_answer_is_where_its_words_came_from():
    p = read(
        ["violet otter in Oslo", "violet otter in Oslo", "violet otter in Oslo, owl has 4821 feathers"], "It has 4821."
    )
    assert [x.text for x in p.evidence("q")] == ["owl has 4821 feathers"]


def test_an_answer_in_own_words_has_no_evidence_but_a_memory():
    p = read(["violet otter lives in Oslo", "violet otter lives in Oslo", "violet otter lives in Oslo"], "Norway")
    assert p.evidence("q") == []
    assert [x.text for x in p.remembered] == ["violet otter lives in Oslo"]
    assert all(piece.source is None for piece in p.answers["q"][1])


@pytest.mark.parametrize(("answer", "found"), [("violet, not owl", 0), ("violet or saffron", 0), ("Yes, violet", 1)])
def test_words_of_the_question_are_evidence_only_if_the_answer_has_no_others(answer, found):
    read_on = Turn(Prompt(Kind.READ, "Is the otter violet?", "", CHUNKS[0]), Reply("The violet otter lives in Oslo"))
    end = Turn(Prompt(Kind.ANSWER, "Is the otter violet?", read_on.reply.text), Reply(answer))
    provenance = Provenance.of(Trace("Is the otter violet?", (read_on, end)))
    assert len(provenance.evidence("Is the otter violet?")) == found


def test_a_phrase_has_the_turn_that_dropped_it():
    p = read(["The violet otter lives in Oslo", "nothing more", "the bold owl has 4821 feathers"], "4821")
    assert [(x.text, x.brought, x.dropped) for x in p.phrases] == [
        ("The violet otter lives in Oslo", 0, 1),
        ("the bold owl has 4821 feathers", 2, None),
    ]
    assert p.steps[1].dropped == ("The violet otter lives in Oslo",)
    assert "4821" in p.evidence("q")[0].text
    assert len(p.evidence("q")) == 1, "a dropped phrase is no evidence for what is in memory"


def test_words_in_slots_and_merged_memories_have_their_origins():
    one, two = "The violet otter lives in Oslo", "the bold owl has 4821 feathers"
    turns = [
        Turn(Prompt(Kind.READ, "q", "", CHUNKS[0]), Reply(one)),
        Turn(Prompt(Kind.READ, "q", "", CHUNKS[2]), Reply(two)),
        Turn(Prompt(Kind.ANSWER, "q", f"{one}\n{two}", memories=2), Reply("the violet otter and 4821")),
    ]
    p = Provenance.of(Trace("q", tuple(turns)))
    assert {x.brought for x in p.evidence("q")} == {0, 1}
    merge = Turn(Prompt(Kind.MERGE, "q", one, Chunk(2, two, 77, 125, 9)), Reply("violet otter; bold owl has 4821"))
    p = Provenance.of(
        Trace("q", (*turns[:2], merge, Turn(Prompt(Kind.ANSWER, "q", merge.reply.text), Reply("bold owl has 4821"))))
    )
    assert [x.text for x in p.evidence("q")] == [two]


def test_a_record_gives_back_what_a_continuation_needs():
    first = read(["The violet otter lives in Oslo"] * 3, "Oslo")
    again = Provenance.from_record(first.to_record())
    more = Chunk(3, " The fox naps at noon.", len(DOCUMENT), len(DOCUMENT) + 22, 5)
    again.turn(
        Turn(
            Prompt(Kind.READ, "q", "The violet otter lives in Oslo", more),
            Reply("violet otter lives in Oslo; fox naps at noon"),
        )
    )
    assert [x.text for x in again.phrases] == ["The violet otter lives in Oslo", "fox naps at noon"]
    assert again.phrases[0].dropped is None
    assert again.phrases[1].start == len(DOCUMENT) + 5


def recalled_trace() -> Trace:
    first = "The violet otter lives in Oslo"
    prompts = [
        Prompt(Kind.READ, "q", "", CHUNKS[0]),
        Prompt(Kind.READ, "q", first, CHUNKS[1]),
        Prompt(Kind.READ, "q", f"snow\nFrom an earlier memory:\n{first}", CHUNKS[2], memories=2, replaced="snow"),
        Prompt(Kind.ANSWER, "q", first),
    ]
    replies = [first, "snow", first, "Oslo"]
    return Trace("q", tuple(Turn(prompt, Reply(reply)) for prompt, reply in zip(prompts, replies, strict=True)))


def test_a_recalled_memory_is_displayed_and_never_dropped():
    step = Provenance.of(recalled_trace()).steps[2]
    assert step.displayed == ("From an earlier memory:\nThe violet otter lives in Oslo",)
    assert step.dropped == ("snow",)


def test_a_merge_displays_both_of_its_memories():
    merge = Turn(Prompt(Kind.MERGE, "q", "left", Chunk(2, "right", 77, 125, 9)), Reply("both"))
    step = Provenance.of(Trace("q", (merge,))).steps[0]
    assert step.displayed == ("left", "right")
