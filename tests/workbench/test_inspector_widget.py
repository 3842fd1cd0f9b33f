"""The interactive inspector without a browser: what it is asked, what it answers, what it remembers."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.tracking.runs import TrackingError
from memagent_lib.workbench.inspector import Inspector, Page, Readings, read_on, show, twin


@pytest.fixture
def both(kept, lost):
    return {"before": [kept, lost], "after": [replace(lost, trace=kept.trace, score=kept.score)]}


def asked(inspector: Inspector, what: str, **given):
    """What the kernel sends back to one request of the browser."""
    sent = []
    inspector.send = sent.append
    inspector._asked(inspector, {"id": "1", "what": what, **given}, None)
    (message,) = sent
    return message


def test_the_catalog_puts_failures_first_and_names_their_faults(both):
    entries = Readings(both).catalog()
    assert [(e["policy"], e["example"], e["right"]) for e in entries] == [
        ("before", "lost", False), ("before", "kept", True), ("after", "lost", True)]  # fmt: skip
    assert entries[0]["faults"] == ["wrong", "lost after capture"]
    assert entries[1]["faults"] == []


def test_a_policy_may_be_named_by_a_path(kept):
    (entry,) = Readings({"runs/demo/train/model": [kept]}).catalog()
    assert entry["policy"] == "runs/demo/train/model"


def test_a_reading_cut_at_its_limit_and_one_that_never_noted_are_named(long_reading):
    cut = long_reading(turns=40, noted=10, lost=20, cut=30)
    never = long_reading(turns=40, noted=10, lost=10, cut=0)
    one, other = Readings({"p": [cut]}).catalog() + Readings({"p": [never]}).catalog()
    assert one["faults"] == ["wrong", "lost after capture", "cut by limit"]
    assert "never captured" in other["faults"]


def test_a_story_is_small_and_whole(long_reading):
    story = Readings({"p": [long_reading(turns=724, noted=100, lost=400, cut=50)]}).story("p/overwrite/long")
    assert story["fates"] == "a" * 100 + "h" * 300 + "l" * 325
    assert story["evidence"] == [100] and story["cut"] == [50] and len(story["tokens"]) == 725
    assert len(json.dumps(story)) < 6_000


def test_a_detail_holds_the_turn_word_by_word(both):
    detail = Readings(both).detail("before/overwrite/lost", 1)
    text = detail["chunk"]["text"]
    assert [text[a:b] for a, b in detail["evidence"]] == ["The code of the bold owl is 4711."]
    assert [text[a:b] for a, b in detail["brought"]] == ["The code of the bold owl is 4711"]
    assert "".join(t for t, change in detail["changes"] if change != "gone") == detail["after"]
    assert detail["finish"] == "stop" and detail["tokens"][0] == 20


def test_where_the_words_came_from_and_when_they_went(both):
    found = Readings(both).phrases("before/overwrite/lost")
    assert [(p["text"], p["brought"], p["dropped"]) for p in found["phrases"]] == [
        ("The code of the bold owl is 4711", 1, 3)
    ]  # most of it stays in turn 2


def test_the_widget_answers_and_says_what_went_wrong(both):
    inspector = Inspector(both, left="before", right="after", example="lost")
    assert asked(inspector, "story", key="before/overwrite/lost")["answer"]["fates"] == "ahlll"
    assert asked(inspector, "detail", key="before/overwrite/lost", turn=4)["answer"]["kind"] == "answer"
    assert "no reading 'nowhere'" in asked(inspector, "story", key="nowhere")["error"]
    assert inspector.can_rerun is False


def test_where_it_opens_is_checked(both):
    with pytest.raises(ValueError, match="no readings of 'trained'; there are those of before, after"):
        Inspector(both, left="trained")
    with pytest.raises(ValueError, match="has no chapter; it opens at example, filter, left, right, turn"):
        Inspector(both, chapter=3)
    with pytest.raises(ValueError, match="no readings with a trace"):
        Inspector({"before": []})


def agent_that(tokenizer, say) -> Agent:
    budget = Budget(chunk_tokens=64, memory_tokens=32, answer_tokens=16, question_tokens=32)
    return Agent(Encoder(tokenizer, Template.load("pocket"), budget), Scripted(say))


def test_reading_on_with_another_memory_keeps_what_was_before_and_asks_only_what_comes_after(lost, tokenizer):
    prompts = []

    def say(prompt):
        prompts.append(prompt)
        return "\\boxed{4711}" if "Write the answer" in prompt else "The code of the bold owl is 4711."

    again = read_on(lost, 1, "my own words", agent_that(tokenizer, say))
    assert len(prompts) == 3 and "my own words" in prompts[0]
    assert again.trace.turns[0] == lost.trace.turns[0] and again.trace.turns[1].reply.text == "my own words"
    assert [t.prompt.chunk for t in again.trace.reads] == [t.prompt.chunk for t in lost.trace.reads]
    assert again.score.value == 1 and lost.score.value == 0


def test_the_widget_reads_on_and_lists_the_new_reading(both, tokenizer):
    inspector = Inspector(both, agent_that(tokenizer, lambda prompt: "\\boxed{4711}"))
    entry = asked(inspector, "rerun", key="before/overwrite/lost", turn=1, memory="mine")["answer"]
    assert entry["policy"] == "before, other memory after turn 1" and entry["right"]
    assert entry in inspector.catalog


def test_a_twin_never_holds_markup_of_a_document(both):
    body = twin(Readings(both), {"example": "lost"}).body
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', body, re.S)[1]
    assert "<" not in data and "<b>bold</b>" in json.dumps(json.loads(data))


def test_a_twin_says_what_had_no_room(both):
    page = twin(Readings(both), {"example": "lost"}, room_mb=0.0005)
    assert re.search(r"\d of 3 readings show their timeline only: this page holds 0.0005 MB of texts", page.body)


def test_papermill_gets_a_page_and_jupyter_the_widget(both, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    still = show(both, left="before", right="after")
    assert isinstance(still, Page) and "<script" not in still.body and "4711" in still.body
    monkeypatch.setenv("JPY_SESSION_NAME", "notebook")
    assert isinstance(show(both), Inspector)


def test_a_run_is_shown_by_its_id_and_a_missing_one_is_named(both, workspace, monkeypatch):
    from memagent_lib.tracking.runs import Experiment

    monkeypatch.setenv("JPY_SESSION_NAME", "notebook")
    with Experiment.open(workspace).run("evaluate", {"policy": "trained"}) as run:
        run.traces(both["before"])
    inspector = show(run.id, tracking=workspace)
    assert [e["policy"] for e in inspector.catalog] == ["trained", "trained"]
    with pytest.raises(TrackingError, match="no run 'nowhere'"):
        show("nowhere", tracking=workspace)
    with Experiment.open(workspace).run("make data") as bare:
        pass
    with pytest.raises(TrackingError, match="kept no traces"):
        show(bare.id, tracking=workspace)


def test_a_trace_file_cut_in_half_shows_what_is_whole(both, tmp_path, monkeypatch):
    from memagent_lib.evaluation.trace_files import TRACES, write

    monkeypatch.setenv("JPY_SESSION_NAME", "notebook")
    write(both["before"], tmp_path, 1 << 20)
    half = (tmp_path / TRACES).read_text()
    (tmp_path / TRACES).write_text(half[: int(0.75 * len(half))])
    with pytest.warns(UserWarning, match="line 2 is not whole"):
        inspector = show(tmp_path)
    assert len(inspector.catalog) == 1
