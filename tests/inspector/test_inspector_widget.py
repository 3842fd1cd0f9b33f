"""The interactive inspector without a browser: requests, answers, and what a notebook saves."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.capture import capture_output

from experiments.readers.gated import GATE
from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.diagnostics import Fate
from memagent_lib.inspector import InspectorError, Readings, show
from memagent_lib.inspector.widget import Inspector, read_on
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn


@pytest.fixture
def both(kept, lost):
    return {"before": [kept, lost], "after": [replace(lost, trace=kept.trace, score=kept.score)]}


def key_of(readings: Readings, policy: str, example: str, reader: str = "overwrite") -> str:
    wanted = (policy, example, reader)
    (key,) = (e["key"] for e in readings.catalog() if (e["policy"], e["example"], e["reader"]) == wanted)
    return key


def opened(results, agents=None, live="") -> Inspector:
    readings = Readings(results)
    return Inspector(readings, readings.opening(), agents or {}, live)


def request(inspector: Inspector, what: str, **arguments):
    """Return what the kernel answers to one request of the browser."""
    message = inspector.respond({"id": "1", "what": what, **arguments})
    assert message.pop("id") == "1"
    return message


def read_by(result, reader: str, *turns: Turn):
    return replace(result, reader=reader, trace=Trace(result.trace.question, turns, reader=reader))


def test_the_catalog_puts_failures_first_with_their_fates(both):
    entries = Readings(both).catalog()
    assert [(e["policy"], e["example"], e["right"]) for e in entries] == [
        ("before", "lost", False), ("before", "kept", True), ("after", "lost", True)]  # fmt: skip
    assert [e["fates"] for e in entries] == [["noted and lost"], ["in memory"], ["in memory"]]


def test_a_story_is_small_and_whole(long_reading):
    readings = Readings({"p": [long_reading(turns=724, noted=100, lost=400, cut=50)]})
    story = readings.story(key_of(readings, "p", "long"))
    assert story["fates"] == "a" * 100 + "h" * 300 + "l" * 325
    assert story["evidence"] == [100] and story["cut"] == [50]
    assert story["starts"][:2] == [0, 100] and story["starts"][-1] == -1
    assert len(json.dumps(story)) < 12_000


def test_a_detail_has_the_turn_word_by_word(both):
    readings = Readings(both)
    detail = readings.detail(key_of(readings, "before", "lost"), 1)
    text = detail["chunk"]["text"]
    assert [text[a:b] for a, b in detail["evidence"]] == ["The code of the bold owl is 4711."]
    assert [text[a:b] for a, b in detail["brought"]] == ["The code of the bold owl is 4711"]
    assert "".join(t for t, change in detail["changes"] if change != "gone") == detail["after"]
    assert not detail["cut"] and detail["tokens"][0] == 20


def test_every_reader_has_fates_and_details(lost):
    chunks, q = [t.prompt.chunk for t in lost.trace.reads], lost.trace.question
    fact, nothing = "The code of the bold owl is 4711.", "nothing"

    def read(kind: Kind, memory: str, chunk: int, reply: str, signal: str = "") -> Turn:
        return Turn(Prompt(kind, q, memory, chunks[chunk]), Reply(reply, signal=signal))

    answer = Turn(Prompt(Kind.ANSWER, q, fact), Reply("\\boxed{4711}"))
    gated = read_by(lost, "gated", read(GATE, "", 0, nothing), read(GATE, nothing, 1, fact),
                    read(GATE, fact, 2, fact, "keep"), answer)  # fmt: skip
    slots = read_by(lost, "multislot", read(Kind.READ, "", 0, nothing), read(Kind.READ, "", 1, fact),
                    read(Kind.READ, "", 2, "rain"), answer)  # fmt: skip
    joined = Prompt(Kind.MERGE, q, fact, replace(chunks[2], text="rain"))
    merged = read_by(lost, "map_merge", read(Kind.READ, "", 1, fact), read(Kind.READ, "", 2, "rain"),
                     Turn(joined, Reply(f"{fact} rain")), answer)  # fmt: skip
    blind = read_by(lost, "blind", Turn(Prompt(Kind.BLIND, q), Reply("\\boxed{1}")))
    readings = Readings({"p": [gated, slots, merged, blind]})
    by_reader = {result.reader: (key, readings.story(key)["fates"]) for key, result in readings.results.items()}
    assert {name: fates for name, (_, fates) in by_reader.items()} == {
        "gated": "ahhh", "multislot": "ahhh", "map_merge": "hhhh", "blind": "n"}  # fmt: skip
    assert readings.detail(by_reader["gated"][0], 2)["signal"] == "left its memory unchanged"
    new = [text for text, change in readings.detail(by_reader["multislot"][0], 2)["changes"] if change == "new"]
    assert new == ["rain"]  # the slot was empty: nothing of the other slots is gone
    merge = readings.detail(by_reader["map_merge"][0], 2)
    assert merge["chunk"] is None and "gone" not in {change for text, change in merge["changes"] if text.strip()}
    editable = {name: readings.detail(key, 0)["editable"] for name, (key, _) in by_reader.items()}
    assert editable == {"gated": True, "multislot": True, "map_merge": False, "blind": False}


def test_it_opens_on_the_first_loss_beside_a_success(kept, lost):
    other = replace(lost, example=replace(lost.example, id="other"))
    never = replace(
        lost, example=replace(lost.example, id="never"), trace=replace(lost.trace, turns=lost.trace.turns[2:])
    )
    right = replace(other, trace=kept.trace, score=kept.score)
    readings = Readings({"before": [kept, never, lost, other], "after": [lost, right]})
    state = readings.opening()
    assert readings.entry(state["key"])["example"] == "other"
    assert (state["policy"], state["beside"], state["turn"]) == ("before", "after", 2)
    assert readings.results[state["key"]].diagnosis.fates[2] is Fate.LOST
    assert readings.opening(beside="")["beside"] == ""
    assert readings.opening(chunks=4)["key"] == state["key"]
    by_luck = replace(lost, score=kept.score)  # right, and its fact was lost too
    readings = Readings({"before": [lost, other], "after": [by_luck, right]})
    assert readings.entry(readings.opening()["key"])["example"] == "other"


def test_the_widget_answers_requests_and_reports_errors(both):
    inspector = opened(both)
    key = key_of(inspector.readings, "before", "lost")
    assert request(inspector, "story", key=key)["answer"]["fates"] == "ahlll"
    assert request(inspector, "detail", key=key, turn=4)["answer"]["kind"] == "answer"
    assert request(inspector, "search", text="mole")["answer"] == [key]
    assert "'nowhere'" in request(inspector, "story", key="nowhere")["error"]
    assert inspector.can_rerun == []


def test_it_opens_on_a_loss_of_what_was_captured(lost, make_reading):
    """Not on a statement that was noted before or after its chunk."""
    memories = ["nothing", "rain", lost.trace.turns[1].reply.text, "nothing"]
    late = make_reading(memories, "\\boxed{9}", lost.example.document, lost.example.evidence[0], name="late")
    assert (late.diagnosis.fate, late.diagnosis.capture) == (Fate.LOST, 0.0)
    readings = Readings({"policy": [late, lost]})
    assert readings.entry(readings.opening()["key"])["example"] == "lost"


def test_a_saved_notebook_has_its_opening_texts_and_a_page(both, long_reading):
    inspector = opened(both, live='inspector.show("abc")')
    opening = {key_of(inspector.readings, policy, "lost") for policy in ("before", "after")}
    assert set(inspector.saved["stories"]) == opening == set(inspector.saved["details"])
    InteractiveShell.instance()  # IPython captures outputs only inside a shell
    with capture_output() as captured:
        display(inspector)
    widget, page = (output.data for output in captured.outputs)
    assert "application/vnd.jupyter.widget-view+json" in widget and "text/html" not in widget
    assert "inspector.show(&#34;abc&#34;)" in page["text/html"] and "<script" not in page["text/html"]
    long = opened({"p": [long_reading(turns=724, noted=100, lost=400, cut=50)]})
    assert len(json.dumps(long.saved)) < 1_000_000


def agent_that(tokenizer, say) -> Agent:
    budget = Budget(chunk_tokens=64, memory_tokens=32, answer_tokens=16, question_tokens=32)
    return Agent(Encoder(tokenizer, Template.load("short"), budget), Scripted(say))


def test_reading_on_repeats_only_the_later_turns(lost, tokenizer):
    prompts = []

    def say(prompt):
        prompts.append(prompt)
        return "\\boxed{4711}" if "Write the answer" in prompt else "The code of the bold owl is 4711."

    again = read_on(lost, 1, "my own words", agent_that(tokenizer, say))
    assert len(prompts) == 3 and "my own words" in prompts[0]
    assert again.trace.turns[0] == lost.trace.turns[0] and again.trace.turns[1].reply.text == "my own words"
    assert [t.prompt.chunk for t in again.trace.reads] == [t.prompt.chunk for t in lost.trace.reads]
    assert again.score.value == 1 and lost.score.value == 0
    without_text = [
        Turn(replace(t.prompt, chunk=t.prompt.chunk and replace(t.prompt.chunk, text="")), t.reply)
        for t in lost.trace.turns
    ]
    lean = replace(lost, trace=replace(lost.trace, turns=tuple(without_text)))
    both = [Readings({"p": [one]}) for one in (lost, lean)]
    assert [each.detail(key_of(each, "p", "lost"), 1)["editable"] for each in both] == [True, False]


def test_reading_on_goes_past_where_the_reading_stopped(lost, encoder):
    document = "Rain taps on the roof. " * 10 + "The code of the bold owl is 4711. " + "Rain taps on the roof. " * 40
    stops = Scripted(lambda text: "DONE\nI have it" if "4711" in text else "nothing new")
    agent = Agent(encoder, stops, reader=reader_named("gated"))
    trace = agent.read(document, lost.trace.question)
    assert trace.chunks_read[-1].end < len(document)
    stopped = replace(lost, trace=trace, example=replace(lost.example, document=document, evidence=()))
    goes_on = replace(agent, backend=Scripted(lambda text: "nothing new"))
    whole = goes_on.read(document, lost.trace.question)
    for turn in (0, len(trace.reads) - 1):
        again = read_on(stopped, turn, "nothing new", goes_on).trace
        assert not again.turns[turn].reply.signal and again.chunks_read == whole.chunks_read


def test_the_widget_opens_an_agent_once_and_when_needed(both, tokenizer):
    calls = []

    def opener() -> Agent:
        calls.append(1)
        return agent_that(tokenizer, lambda prompt: "\\boxed{4711}")

    inspector = opened(both, agents={"before": opener})
    assert inspector.can_rerun == ["before"] and not calls
    key = key_of(inspector.readings, "before", "lost")
    entry = request(inspector, "rerun", key=key, turn=1, memory="mine")["answer"]
    assert entry["policy"] == "before, other memory after turn 2" and entry["right"]
    assert entry in inspector.catalog
    assert set(inspector.saved["details"]) == {key, entry["key"]}  # what a notebook opened again shows
    assert request(inspector, "rerun", key=key, turn=2, memory="mine")["answer"]["right"] and len(calls) == 1
    other = key_of(inspector.readings, "after", "lost")
    assert "no agent for 'after'" in request(inspector, "rerun", key=other, turn=1, memory="mine")["error"]


def test_a_training_run_opens_with_what_its_rollouts_were_trained_with(training, monkeypatch):
    still = show(training.path, policy="train, step 3").body
    assert all(text in still for text in ("rewards: 0.25 1.25", "-0.500 on 9", "masked", "advantage 0", "+0.500 on 5"))
    monkeypatch.setenv("JPY_SESSION_NAME", "notebook")
    inspector = show(training.path)
    wrong, right, left_out = sorted(inspector.catalog, key=lambda entry: entry["key"][-8:])
    assert (wrong["name"], wrong["credit"][0], wrong["example"]) == ("train, step 3, rollout 0", 0.25, right["example"])
    assert left_out["credit"] is None and left_out["rows"]["padding"] == 2
    assert inspector.state["beside"] == right["name"] == "train, step 3, rollout 1"
    story = request(inspector, "story", key=right["key"])["answer"]
    assert story["credit"][2:] == [[(0.0, 3)], [(0.5, 4)], [(0.5, 5)]]


def test_runs_open_by_id_and_an_unknown_one_is_one_line(both, workspace, monkeypatch, caplog):
    from memagent_lib.tracking import Experiment, log_readings

    monkeypatch.setenv("JPY_SESSION_NAME", "notebook")
    with Experiment.open(workspace).run("trained", {"model": "some/model"}) as run:
        log_readings(run, both["before"])
    with Experiment.open(workspace).run("evaluate", {"policy": "the notebook's default"}) as other:
        other.tags({"policy": "warm start"})
        log_readings(other, both["after"])
    inspector = show(run.id, tracking=workspace)
    assert [e["policy"] for e in inspector.catalog] == ["trained", "trained"]
    assert inspector.live == f'inspector.show("{run.id}")'
    assert inspector.can_rerun == []
    assert f"the run {run.id} of trained does not record its agent" in caplog.text
    two = show([run.id, other.id], tracking=workspace)
    assert [e["policy"] for e in two.catalog] == ["trained", "trained", "warm start"]
    with pytest.raises(InspectorError, match="nowhere") as wrong:
        show("nowhere", tracking=workspace)
    assert wrong.value._render_traceback_() == [f"InspectorError: {wrong.value}"]
    with Experiment.open(workspace).run("make data") as bare:
        pass
    with pytest.raises(InspectorError, match="no artifact 'results'"):
        show(bare.id, tracking=workspace)
