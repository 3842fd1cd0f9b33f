"""The inspector's widget in a real browser, without JupyterLab: which of its texts come from the kernel, and when.

The kernel's side is the real widget. The page's model passes its messages on one after the other, as a kernel does.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.evaluation import Result
from memagent_lib.inspector import Readings, widget
from memagent_lib.inspector.static_pages import SCRIPT
from memagent_lib.prompts import Encoder

pytestmark = pytest.mark.browser
ADDRESS = "http://127.0.0.1"
RENDER = """async (state) => {
    const { default: inspector } = await import("/inspector.js"), listeners = [];
    const tell = (event, ...what) => listeners.forEach(([name, listener]) => name === event && listener(...what));
    let turn = Promise.resolve();
    const answer = async (request) => {
        await (request.what === "rerun" ? window.reading : window.idle);
        const [changed, message] = await window.respond(request);
        Object.assign(state, changed);
        Object.keys(changed).forEach((name) => tell(`change:${name}`));
        tell("msg:custom", message);
    };
    const model = {
        get: (name) => state[name],
        set: (name, value) => { state[name] = value; },
        save_changes: () => {},
        on: (event, listener) => listeners.push([event, listener]),
        send: (request) => { turn = turn.then(() => answer(request)); },
    };
    inspector.render({ model, el: document.body });
}"""


@pytest.fixture
def inspector(lost: Result, encoder: Encoder) -> widget.Inspector:
    """The widget with one reading, and an agent that notes nothing new."""
    readings = Readings({"before": [lost]})
    agent = Agent(encoder, Scripted(lambda prompt: "\\boxed{4711}"))
    return widget.Inspector(readings, readings.opening(), {"before": lambda: agent}, 'inspector.show("abc")')


def synced(inspector: widget.Inspector) -> dict[str, object]:
    """Return what the kernel sends to a tab that is opened or reloaded."""
    return {name: getattr(inspector, name) for name in ("catalog", "state", "saved", "live", "can_rerun")}


def respond(inspector: widget.Inspector, request: dict[str, object]) -> list[object]:
    """Return what one request changes in the widget, and the message that follows."""
    message = inspector.respond(request)
    return [{name: getattr(inspector, name) for name in ("catalog", "saved")}, message]


def opened(page: Page, inspector: widget.Inspector) -> None:
    page.route(f"{ADDRESS}/", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
    script = {"body": SCRIPT, "content_type": "text/javascript"}
    page.route(f"{ADDRESS}/inspector.js", lambda route: route.fulfill(**script))
    page.expose_function("respond", lambda request: respond(inspector, request))
    page.goto(ADDRESS)
    page.evaluate(RENDER, synced(inspector))
    expect(page.locator(".ma-detail").first).to_have_attribute("data-turn", "3")


def read_on(page: Page, memory: str) -> None:
    page.get_by_role("button", name="Edit this memory and read on").first.click()
    page.get_by_label("memory to read on with").first.fill(memory)
    page.get_by_role("button", name="Read on with this memory").first.click()


def test_a_memory_edited_twice_shows_the_second_reading(page: Page, inspector: widget.Inspector) -> None:
    opened(page, inspector)
    other = page.locator(".ma-detail").nth(1)
    for words in ("a first thought", "a second one"):
        read_on(page, words)
        expect(other).to_contain_text(words)
        page.goto(ADDRESS)  # the tab is reloaded, and the kernel lives on
        page.evaluate(RENDER, synced(inspector))
        page.get_by_label("beside").select_option("before, other memory after turn 3")
        expect(other).to_contain_text(words)


def test_requests_wait_while_the_kernel_reads_on(page: Page, inspector: widget.Inspector, monkeypatch) -> None:
    monkeypatch.setattr(widget, "SAVED_BYTES", 0)
    inspector.saved = {}
    page.clock.install()
    opened(page, inspector)
    detail = page.locator(".ma-detail").first
    expect(detail).to_contain_text("turn 3: chunk 3")
    page.evaluate("() => { window.reading = new Promise((end) => { window.end = end; }); }")
    read_on(page, "a first thought")
    page.locator(".ma-inspector").focus()
    page.keyboard.press("Home")
    page.clock.run_for(60_000)
    expect(detail).to_contain_text("turn 3: chunk 3")
    page.evaluate("window.end()")
    expect(page.locator(".ma-detail").nth(1)).to_contain_text("a first thought")

    page.evaluate("() => { window.idle = new Promise(() => {}); }")
    page.get_by_role("button", name="Where did these words come from?").first.click()
    page.clock.run_for(16_000)
    gone = 'The kernel is busy or gone, and this was not saved. Try again when it is idle, or: inspector.show("abc")'
    expect(page.get_by_text(gone)).to_be_visible()
