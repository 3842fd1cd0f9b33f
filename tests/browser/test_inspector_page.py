"""The inspector's page of its own in a real browser: what is drawn, what keys and clicks do, how long that takes."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Page, expect

from memagent_lib import plots
from memagent_lib.data import Example, Span
from memagent_lib.evaluation import Result, to_frame
from memagent_lib.inspector import Readings, to_html
from memagent_lib.inspector.static_pages import SCRIPT
from memagent_lib.rl import RunFolder
from memagent_lib.scoring import score
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn

pytestmark = pytest.mark.browser
NEEDLE, HOSTILE = (
    "The code of the bold owl is 4711.",
    "<script>document.title='taken'</script></script><img src=x onerror=alert(1)>",
)
QUESTION = "What is the code of the bold owl?"


def result(name: str, turns: int, noted: int, lost: int, answer: str, chunk_chars: int = 300) -> Result:
    """A reading of ``turns`` chunks: the evidence is in chunk ``noted`` and is in memory until turn ``lost``."""
    rng, pieces = random.Random(name), []
    for index in range(turns):
        filler = " ".join(rng.choice(["rain", "owl", "mill", "😀", "train"]) for _ in range(chunk_chars // 5))
        pieces.append(f"{HOSTILE if index == 0 else ''}{NEEDLE if index == noted else ''} {filler} ")
    made, memory, at = [], "", 0
    for index, text in enumerate(pieces):
        reply = NEEDLE if noted <= index < lost else f"nothing in chunk {index} {HOSTILE if index == 0 else ''}"
        made.append(
            Turn(
                Prompt(Kind.READ, QUESTION, memory, Chunk(index, text, at, at + len(text), 99)),
                Reply(reply, reply_tokens=9),
            )
        )
        memory = reply
        at += len(text)
    made.append(Turn(Prompt(Kind.ANSWER, QUESTION, memory), Reply(answer, reply_tokens=3)))
    document = "".join(pieces)
    start = document.index(NEEDLE)
    example = Example(
        id=name,
        task="needle",
        question=QUESTION,
        document=document,
        answers=("4711",),
        evidence=(Span(start, start + len(NEEDLE)),),
    )
    return Result(example, "overwrite", 1.0, Trace(QUESTION, tuple(made)), score("boxed", answer, ("4711",)))


def opened(page: Page, readings: Readings, turn: int, **opening) -> Page:
    """The page at ``turn``, counted from 1 as people see it."""
    html = to_html(readings, room_mb=30, turn=turn, **opening)._repr_html_()
    page.set_content(f"<!doctype html><html class='ma-page'><body>{html}</body></html>")
    expect(page.locator(".ma-detail").first).to_have_attribute("data-turn", str(turn))
    return page


@pytest.fixture
def readings() -> Readings:
    one, other = result("first", 20, 5, 9, "\\boxed{9}"), result("second", 20, 3, 99, "\\boxed{4711}")
    better = replace(one, trace=result("first", 20, 5, 99, "\\boxed{4711}").trace, score=other.score)
    never = result("third", 8, 3, 3, "\\boxed{7}")
    never = replace(never, example=replace(never.example, metadata={"chunks": 8}))
    alone = Trace(QUESTION, (Turn(Prompt(Kind.BLIND, QUESTION), Reply("\\boxed{1}", reply_tokens=3)),), "blind")
    guessed = replace(one, reader="blind", trace=alone)
    longer = replace(other, example=replace(other.example, metadata={"chunks": 20}))
    return Readings({"warm start": [longer, one, never, guessed], "trained": [better]})


def test_text_of_a_document_is_never_markup(page: Page, readings: Readings):
    opened(page, readings, turn=1)
    expect(page.locator(".ma-chunk").first).to_contain_text("<script>document.title='taken'</script>")
    assert page.title() != "taken" and page.locator(".ma-chunk img, .ma-detail img").count() == 0


def test_keys_move_through_turns_changes_and_readings(page: Page, readings: Readings):
    opened(page, readings, turn=1)
    detail, box = page.locator(".ma-detail").first, page.locator(".ma-inspector")
    box.focus()
    for key, turn in [("ArrowRight", 2), ("j", 3), ("k", 2), ("n", 6), ("n", 10), ("p", 6), ("End", 21), ("Home", 1)]:
        page.keyboard.press(key)
        expect(detail).to_have_attribute("data-turn", str(turn))
    chosen = page.get_by_label("reading", exact=True).locator("option:checked")
    expect(page.locator(".ma-count")).to_have_text("1 of 4")
    expect(page.locator("h4").first).to_contain_text("warm start wrong 9")
    expect(page.locator(".ma-chunk")).to_have_count(1)  # both have read it
    page.keyboard.press("]")
    expect(chosen).to_contain_text("✗ third")
    page.keyboard.press("[")
    expect(chosen).to_contain_text("✗ first")


def test_filters_search_and_two_readings_side_by_side(page: Page, readings: Readings):
    opened(page, readings, turn=13)
    left, right = page.locator(".ma-detail").all()
    expect(left).to_contain_text("noted and lost")
    expect(right).to_contain_text("in memory")
    for label, value, count in [
        ("fate", "noted and lost", "1 of 1"), ("fate", "read but never noted", "1 of 1"), ("fate", "", "2 of 4"),
        ("answer", "right", "1 of 1"), ("answer", "", "4 of 4"),
        ("reader", "blind", "1 of 1"), ("reader", "", "3 of 4"), ("length", "8", "1 of 1"),
        ("length", "", "2 of 4"), ("fate", "memory cut at its limit", "none"),
    ]:  # fmt: skip
        page.get_by_label(label, exact=True).select_option(value)
        expect(page.locator(".ma-count")).to_have_text(count)
    expect(page.locator(".ma-question")).to_have_text("No reading matches; choose other filters.")
    page.get_by_label("fate", exact=True).select_option("")
    page.get_by_label("search").fill("in chunk 15")
    expect(page.locator(".ma-count")).to_have_text("1 of 1")
    page.get_by_label("search").fill("")
    page.get_by_label("beside").select_option("warm start, blind")
    expect(right).to_contain_text("turn 1: the answer")


def test_a_memory_is_compared_with_that_of_any_turn(page: Page, readings: Readings):
    opened(page, readings, turn=12)
    memory = page.locator(".ma-memory").first
    expect(memory.locator("del")).to_have_text("10")  # the number of the chunk
    page.get_by_label("changes since turn").fill("7")
    expect(memory.locator("small")).to_have_text("memory compared with turn 7 ")
    assert memory.locator("del").all_inner_texts() == [NEEDLE]
    assert memory.locator("ins").all_inner_texts() == ["nothing in chunk 11"]
    expect(page.locator(".ma-memory").nth(1).locator("ins, del")).to_have_count(0)  # the other has it still
    page.get_by_label("changes since turn").fill("")
    expect(memory.locator("del")).to_have_text("10")


def saved_page(page: Page, readings: Readings, folder: Path) -> None:
    """Open the page as a file that a server sends: an address is needed for links."""
    file = to_html(readings).save(folder / "page.html")
    page.route("http://127.0.0.1/page.html", lambda route: route.fulfill(path=file, content_type="text/html"))
    page.goto("http://127.0.0.1/page.html")


def test_a_row_of_the_table_opens_its_reading_by_a_link(page: Page, readings: Readings, tmp_path: Path):
    saved_page(page, readings, tmp_path)
    table = page.locator(".ma-readings").first
    page.get_by_label("policy", exact=True).select_option("")
    rows = table.locator(".ma-rows tbody tr")
    expect(rows).to_have_count(5)
    page.get_by_label("policy", exact=True).select_option("warm start")
    page.get_by_label("answer", exact=True).select_option("wrong")
    table.get_by_role("button", name="turns").click()
    expect(table.locator("small")).to_have_text("3 of 5 readings")
    assert table.locator(".ma-rows tbody tr td:nth-last-child(3)").all_inner_texts() == ["1", "9", "21"]
    with page.expect_download() as saved:
        table.get_by_role("button", name="CSV").click()
    found = pd.read_csv(saved.value.path())
    assert found[["example", "answer", "right answer", "turns"]].values.tolist() == [
        ["first", 9, 4711, 1], ["third", 7, 4711, 9], ["first", 9, 4711, 21],
    ]  # fmt: skip
    rows.first.click()
    page.keyboard.press("ArrowDown")
    chosen = page.get_by_label("reading", exact=True).locator("option:checked")
    expect(chosen).to_contain_text("✗ third")
    expect(table.locator("tr[aria-selected=true]")).to_be_focused()
    page.locator(".ma-inspector").focus()
    page.keyboard.press("Home")
    page.get_by_label("changes since turn").fill("3")
    page.keyboard.press("Tab")
    page.locator(".ma-inspector").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".ma-detail").first).to_have_attribute("data-turn", "2")
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator(".ma-detail").first).to_have_attribute("data-turn", "2")
    expect(chosen).to_contain_text("✗ third")
    expect(page.get_by_label("answer", exact=True)).to_have_value("wrong")
    expect(page.get_by_label("changes since turn")).to_have_value("3")
    page.evaluate("window.location.hash = '#?policy=trained'")  # as a score of a report has it
    expect(table.locator("small")).to_have_text("1 of 5 readings")


def test_a_score_opens_its_readings(page: Page, readings: Readings, tmp_path: Path):
    saved_page(page, readings, tmp_path)
    for turn in ("10", "11"):
        expect(page.locator(".ma-detail").first).to_have_attribute("data-turn", turn)
        page.keyboard.press("ArrowRight")  # keys work before anything has the focus
    scores = page.locator(".ma-scores")
    expect(scores.locator("tbody tr")).to_have_count(3)  # two policies, and a reader of one of them
    row = scores.locator("tbody tr", has=page.get_by_text("warm start", exact=True))
    expect(row.get_by_role("button")).to_have_text(
        ["0.0 % (n=1)", "1 wrong", "100.0 % (n=1)", "0.0 % (n=1)", "1 wrong"]
    )
    row.get_by_role("button", name="wrong").first.click()
    for label, value in {"policy": "warm start", "reader": "overwrite", "length": "8", "answer": "wrong"}.items():
        expect(page.get_by_label(label, exact=True)).to_have_value(value)
    expect(page.locator(".ma-rows tbody tr")).to_have_count(1)
    expect(page.locator(".ma-inspector")).to_be_focused()
    expect(page.get_by_label("reading", exact=True).locator("option:checked")).to_contain_text("✗ third")
    page.keyboard.press("End")
    expect(page.locator(".ma-detail").first).to_have_attribute("data-turn", "9")
    scores.locator("tr", has=page.get_by_text("trained", exact=True)).get_by_role("button").first.click()
    expect(page.get_by_label("beside")).to_have_value("warm start")  # no reading stands beside itself


def test_a_part_of_a_bar_opens_the_readings_that_the_figure_counts(page: Page, readings: Readings, tmp_path: Path):
    """Two facts of one reading may have one outcome, or two; a document may have no set length."""
    twice = readings.results[readings.opening(chunks=8)["key"]]
    evidence = (*twice.example.evidence, *[Span(0, 40)] * 2)
    readings.add("trained", replace(twice, example=replace(twice.example, id="twice", evidence=evidence)))
    rows = to_frame(readings.results.values()).assign(policy=list(readings.policies.values()))
    drawn = plots.evidence_outcomes(rows.assign(chunks=rows["chunks"].fillna(99))).containers
    saved_page(page, readings, tmp_path)
    expect(page.locator(".ma-outcomes tr")).to_have_count(len(drawn[0]))
    counts = set()
    for at, bar in enumerate(page.locator(".ma-outcomes tr").all()):
        total = int(bar.locator("td").last.inner_text().split()[0])
        for part in bar.get_by_role("button").all():
            outcome, _, words = part.get_attribute("aria-label").partition(": ")
            counts.add((at, outcome, int(words.split()[0]) / total))
            part.click()
            expect(page.get_by_label("outcome", exact=True)).to_have_value(outcome)
            expect(page.locator(".ma-count")).to_have_text(re.compile(rf" of {words.split()[-2]}$"))
    parts = {(at, one.get_label(), bar.get_width()) for one in drawn for at, bar in enumerate(one) if bar.get_width()}
    assert counts == parts and (1, "noted and lost to another statement", 2 / 3) in parts


def test_a_rollout_has_its_credit_turn_by_turn_and_its_group(page: Page, training: RunFolder):
    opened(page, Readings({f"step {step}": found for step, found in training.rollouts()}), turn=1)
    group, trained = page.locator(".ma-group"), page.locator(".ma-trained")
    expect(group).to_contain_text("10 trained, 6 masked, 5 left out, 2 of padding added")
    expect(group.get_by_role("button")).to_have_text(
        ["✓ rollout 1: 1.25 (0.000 to +0.500)", "✗ rollout 0: 0.25 (−0.500)"]
    )
    words = "reward 0.25 · advantage −0.500: made less likely · 4 of 5 replies carry policy gradient"
    expect(trained.first).to_have_text(f"{words} · 30 trained tokens · 1 masked")
    expect(page.locator(".ma-turn-head").first).to_contain_text("advantage −0.500 on 9 tokens")
    group.get_by_role("button").first.click()
    expect(trained.nth(1)).to_contain_text("made more likely · 4 of 5")
    page.keyboard.press("End")
    expect(page.locator(".ma-turn-head").first).to_contain_text("no gradient: masked")
    page.get_by_label("reading", exact=True).select_option(label="✗ other · rollout 0")
    expect(trained.first).to_contain_text("left out of the update")


PLAYED_KERNEL = """async ([script, state]) => {
  const { default: widget } = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
  const slots = [], kernel = { statusChanged: { connect: (slot) => slots.push(slot) } };
  const answer = ({ id, what }) => window.alive && what !== "rerun" && model.answered({ id, answer: {} });
  const model = {
    get: (name) => state[name], set: () => {}, save_changes: () => {}, widget_manager: { kernel },
    on: (name, call) => name === "msg:custom" && (model.answered = call),
    send: (request) => setTimeout(answer, 0, request),
  };
  window.kernelIs = (status) => slots.forEach((slot) => slot(kernel, status));
  window.alive = true;
  window.draw = () => widget.render({ model, el: document.body });
  window.draw();
}"""


@pytest.mark.parametrize("dies", ["before", "while"])
def test_reading_on_without_a_kernel_says_what_to_run(page: Page, readings: Readings, dies: str):
    key = readings.opening()["key"]
    state = {"catalog": readings.catalog(), "state": readings.opening(turn=2, beside=""), "can_rerun": ["warm start"]}
    state |= {"saved": readings.embedded([key], 1e6), "live": "inspector.show('there')"}
    page.clock.install()
    page.goto("about:blank")
    page.evaluate(PLAYED_KERNEL, [SCRIPT, state])
    page.get_by_role("button", name="Edit this memory and read on").click()
    memory = page.get_by_label("memory to read on with")
    memory.fill("typed")
    page.evaluate("window.draw()")  # as JupyterLab draws an output again
    page.get_by_label("changes since turn").fill("1")
    expect(page.locator(".ma-memory")).to_contain_text("compared with turn 1")  # the turn is drawn again
    expect(memory).to_have_value("typed")
    expect(memory).to_be_visible()
    note = page.locator(".ma-edit small")
    if dies == "before":  # and nobody says so
        page.evaluate("window.alive = false")
    page.get_by_role("button", name="Read on with this memory").click()
    page.clock.run_for(1_000)
    expect(note).to_contain_text("reading")
    if dies == "before":
        page.clock.run_for(20_000)
    else:
        page.evaluate("kernelIs('autorestarting')")
        expect(page.get_by_role("status").first).to_contain_text("inspector.show('there')")
    expect(note).to_contain_text("inspector.show('there')")
    page.get_by_label("reading", exact=True).select_option(index=1)  # nothing stays of the one before
    page.clock.run_for(20_000)
    expect(page.locator(".ma-detail").first).to_contain_text("inspector.show('there')")
    expect(page.locator(".ma-time-box:visible, .ma-chunk:visible")).to_have_count(0)
