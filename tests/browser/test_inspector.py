"""The inspector's page of its own in a real browser: what is drawn, what keys and clicks do, how long that takes."""

from __future__ import annotations

import json
import random

import pytest
from playwright.sync_api import Page, expect

from memagent_lib.data.examples import Example, Span
from memagent_lib.evaluation.evaluator import Result
from memagent_lib.scoring import score
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn
from memagent_lib.workbench.inspector import Readings, twin

pytestmark = pytest.mark.browser
NEEDLE, HOSTILE = (
    "The code of the bold owl is 4711.",
    "<script>document.title='taken'</script></script><img src=x onerror=alert(1)>",
)
QUESTION = "What is the code of the bold owl?"


def result(name: str, turns: int, noted: int, lost: int, answer: str, chunk_chars: int = 300) -> Result:
    """A reading of ``turns`` chunks: the fact stands in chunk ``noted`` and is in memory until turn ``lost``."""
    rng, pieces = random.Random(name), []
    for index in range(turns):
        filler = " ".join(rng.choice(["rain", "owl", "mill", "😀", "train"]) for _ in range(chunk_chars // 5))
        pieces.append(f"{HOSTILE if index == 0 else ''}{NEEDLE if index == noted else ''} {filler} ")
    made, memory, at = [], "", 0
    for index, text in enumerate(pieces):
        said = NEEDLE if noted <= index < lost else f"nothing in chunk {index} {HOSTILE if index == 0 else ''}"
        made.append(
            Turn(
                Prompt(Kind.READ, QUESTION, memory, Chunk(index, text, at, at + len(text), 99)),
                Reply(said, reply_tokens=9),
            )
        )
        memory, at = said, at + len(text)
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


def opened(page: Page, readings: Readings, **state) -> Page:
    page.set_content(
        f"<!doctype html><html class='ma-page'><body>{twin(readings, state, room_mb=30)._repr_html_()}</body></html>"
    )
    expect(page.locator(".ma-detail").first).to_have_attribute("data-turn", str(state.get("turn", 0)))
    return page


@pytest.fixture
def readings() -> Readings:
    one, other = result("first", 20, 5, 9, "\\boxed{9}"), result("second", 20, 3, 99, "\\boxed{4711}")
    better = Result(
        one.example,
        "overwrite",
        1.0,
        result("first", 20, 5, 99, "\\boxed{4711}").trace,
        score("boxed", "\\boxed{4711}", ("4711",)),
    )
    return Readings({"warm start": [other, one], "trained": [better]})


def test_failures_come_first_and_a_turn_shows_what_it_did(page: Page, readings: Readings):
    opened(page, readings, turn=5)
    expect(page.get_by_label("example")).to_have_value("first")
    detail = page.locator(".ma-detail").first
    expect(detail).to_contain_text("turn 5: chunk 5 in memory")
    expect(detail.locator("mark.ma-evidence").first).to_have_text(NEEDLE[:-1])
    expect(detail.locator("ins").last).to_contain_text("4711")
    expect(detail.locator("del").first).to_be_visible()


def test_text_of_a_document_is_never_markup(page: Page, readings: Readings):
    opened(page, readings)
    expect(page.locator(".ma-detail").first).to_contain_text("<script>document.title='taken'</script>")
    assert page.title() != "taken" and page.locator(".ma-detail img").count() == 0


def test_keys_move_through_turns_changes_and_examples(page: Page, readings: Readings):
    opened(page, readings)
    detail, box = page.locator(".ma-detail").first, page.locator(".ma-inspector")
    box.focus()
    for key, turn in [("ArrowRight", 1), ("j", 2), ("k", 1), ("n", 5), ("n", 9), ("p", 5), ("End", 20), ("Home", 0)]:
        page.keyboard.press(key)
        expect(detail).to_have_attribute("data-turn", str(turn))
    page.keyboard.press("]")
    expect(page.get_by_label("example")).to_have_value("second")


def test_filters_and_two_policies_side_by_side(page: Page, readings: Readings):
    opened(page, readings, turn=12)
    page.get_by_label("show").select_option("lost after capture")
    expect(page.locator(".ma-bar")).to_contain_text("1 reading")
    page.get_by_label("beside").select_option("trained")
    left, right = page.locator(".ma-reading").all()
    expect(left.locator(".ma-detail")).to_contain_text("noted and lost")
    expect(right.locator(".ma-detail")).to_contain_text("in memory")
    page.get_by_label("show").select_option("never captured")
    expect(page.locator(".ma-question")).to_have_text("no reading of warm start is never captured")


def test_where_the_words_came_from(page: Page, readings: Readings):
    opened(page, readings)
    page.get_by_role("button", name="Where did these words come from?").first.click()
    row = page.locator("tr", has_text="4711").first
    expect(row).to_contain_text("turn 5")
    row.get_by_role("button", name="turn 9").click()
    expect(page.locator(".ma-detail").first).to_have_attribute("data-turn", "9")


def test_724_turns_open_within_two_seconds_and_move_within_a_tenth(page: Page):
    readings = Readings({"long": [result("long", 723, 100, 400, "\\boxed{9}", chunk_chars=10_000)]})
    html = f"<!doctype html><html class='ma-page'><body>{twin(readings, {'turn': 0}, room_mb=30)._repr_html_()}</body></html>"
    opening = page.evaluate(
        """async (html) => {
            const start = performance.now();
            document.open(); document.write(html); document.close();
            while (!document.querySelector('.ma-detail[data-turn]')) await new Promise(requestAnimationFrame);
            return performance.now() - start;
        }""",
        html,
    )
    moving = page.evaluate(MOVES)
    print(json.dumps({"opening_ms": round(opening), "moving_ms": [round(ms) for ms in moving]}))
    assert len(moving) == 5  # times belong to a bench: printed here, never asserted


MOVES = """async () => {
            const canvas = document.querySelector('.ma-time'), box = canvas.getBoundingClientRect(), times = [];
            for (const turn of [400, 3, 700, 399, 100]) {
                const start = performance.now();
                const clientX = box.left + ((turn + 0.5) / 724) * box.width;
                canvas.dispatchEvent(new PointerEvent('pointerdown', { clientX, bubbles: true }));
                while (document.querySelector('.ma-detail').dataset.turn !== String(turn)) await new Promise(requestAnimationFrame);
                times.push(performance.now() - start);
            }
            return times;
        }"""
