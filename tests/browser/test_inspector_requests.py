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
