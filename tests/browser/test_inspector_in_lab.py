"""The inspector inside JupyterLab, its texts coming from the kernel: a paper-sized reading, a reload, a kernel that
starts anew.
"""

from __future__ import annotations

import json

import jupyter
import nbformat
import pytest
from playwright.sync_api import Page, expect

from memagent_lib.data import Example, Span
from memagent_lib.evaluation import Result, write_results
from memagent_lib.scoring import score
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn

pytestmark = pytest.mark.browser
CHUNKS, CHUNK_CHARS, NOTED, LOST = 723, 20_000, 100, 400
QUESTION, NEEDLE = "What is the code of the bold owl?", "The code of the bold owl is 4711. "
FROM_KEY_TO_TEXT = """() => new Promise((done) => addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const start = performance.now();
    const shown = () => document.querySelector(".ma-detail[data-turn]");
    const look = () => shown() ? done(performance.now() - start) : requestAnimationFrame(look);
    look();
}, { capture: true }))"""
FROM_CLICK_TO_TEXT = """async (turn) => {
    const canvas = document.querySelector(".ma-time"), box = canvas.getBoundingClientRect(), start = performance.now();
    const clientX = box.left + ((turn + 0.5) / 724) * box.width;
    canvas.dispatchEvent(new PointerEvent("pointerdown", { clientX, bubbles: true }));
    const shown = () => document.querySelector(".ma-detail").dataset.turn;
    while (shown() !== String(turn + 1)) await new Promise(requestAnimationFrame);
    return performance.now() - start;
}"""


@pytest.fixture(scope="module")
def notebook(lab) -> str:
    """A notebook beside the traces of a reading of 3.6M tokens: a document of 14 MB in 723 chunks, and the answer."""
    turns, memory = [], "nothing yet"
    filler = "Rain taps on the roof all night. " * (CHUNK_CHARS // 33 + 1)
    texts = [((NEEDLE if index == NOTED else "") + filler)[:CHUNK_CHARS] for index in range(CHUNKS)]
    for index, text in enumerate(texts):
        reply = NEEDLE if NOTED <= index < LOST else f"nothing in chunk {index}"
        chunk = Chunk(index, text, index * CHUNK_CHARS, (index + 1) * CHUNK_CHARS, 5000)
        turns.append(Turn(Prompt(Kind.READ, QUESTION, memory, chunk), Reply(reply, reply_tokens=9)))
        memory = reply
    turns.append(Turn(Prompt(Kind.ANSWER, QUESTION, memory), Reply("\\boxed{9}", reply_tokens=3)))
    at = NOTED * CHUNK_CHARS
    evidence = (Span(at, at + len(NEEDLE) - 1),)
    example = Example(
        id="long", task="needle", question=QUESTION, document="".join(texts), answers=("4711",), evidence=evidence
    )
    result = Result(example, "overwrite", 1.0, Trace(QUESTION, tuple(turns)), score("boxed", "\\boxed{9}", ("4711",)))
    assert write_results([result], lab.root / "runs/long", limit_bytes=1 << 30) == 0
    cells = map(nbformat.v4.new_code_cell, ("from memagent_lib.inspector import show", 'show("runs/long")'))
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells), metadata=metadata), lab.root / "notebooks/long.ipynb")
    return "long.ipynb"


def test_724_turns_open_move_survive_a_reload_and_a_new_kernel(page: Page, lab, notebook: str) -> None:
    page.goto(lab.notebook(notebook))
    jupyter.ready(page)
    page.locator(".jp-CodeCell").first.click()
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-InputPrompt").first).to_have_text("[1]:", timeout=jupyter.PATIENCE_MS)
    timer = page.evaluate_handle(f"() => ({{ ends: ({FROM_KEY_TO_TEXT})() }})")
    page.keyboard.press("Shift+Enter")
    opening = timer.evaluate("timer => timer.ends")
    detail = page.locator(".ma-detail").first
    moving = [page.evaluate(FROM_CLICK_TO_TEXT, turn) for turn in (3, 700, 99, 100, 400)]
    print(
        json.dumps({"opening_ms": round(opening), "moving_ms": [round(ms) for ms in moving]})
    )  # times are printed, never asserted
    expect(detail).to_contain_text("turn 401: chunk 401 noted and lost")
    expect(detail.locator("del").first).to_be_visible()
    page.locator(".ma-inspector").focus()
    page.keyboard.press("ArrowLeft")
    expect(detail).to_contain_text("turn 400: chunk 400 in memory")
    page.keyboard.press("n")
    expect(detail).to_contain_text("turn 401: chunk 401 noted and lost")
    page.get_by_text("All readings as a table").click()
    page.locator(".ma-list tbody tr").click()
    expect(page.locator(".ma-list tbody td").first).to_have_text("long")
    jupyter.save(page)

    page.reload()
    jupyter.ready(page)
    expect(detail).to_contain_text("turn 401: chunk 401 noted and lost", timeout=jupyter.PATIENCE_MS)

    jupyter.shut_down_kernels(page)
    page.reload()  # what is saved in the notebook appears with or without its kernel
    expect(detail).to_contain_text("turn 401: chunk 401 noted and lost", timeout=jupyter.PATIENCE_MS)
    jupyter.ready(page)

    jupyter.choose(page, "Kernel", "Restart Kernel and Run All Cells…")
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    expect(page.locator(".jp-InputPrompt").nth(1)).to_have_text("[2]:", timeout=jupyter.PATIENCE_MS)
    expect(detail).to_contain_text("turn 401: chunk 401", timeout=jupyter.PATIENCE_MS)
