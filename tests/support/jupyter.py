"""What a person does in JupyterLab: open a notebook, run all its cells, save it, come back."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

PATIENCE_MS = 150_000


def ready(page: Page) -> None:
    """Wait until the notebook is open and its kernel answers."""
    expect(page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell").first).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Spinner")).to_have_count(0, timeout=PATIENCE_MS)
    expect(page.get_by_role("button", name=re.compile(r"\| (Idle|Busy)$"))).to_be_visible(timeout=PATIENCE_MS)


def choose(page: Page, menu: str, item: str) -> None:
    """Click a menu, then one of its items."""
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.locator(".lm-Menu").get_by_text(item, exact=True).click()


def theme(page: Page, name: str) -> None:
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.locator(".lm-Menu").get_by_text("Theme", exact=True).hover()
    page.locator(".lm-Menu").get_by_text(name, exact=True).click()


def run_all(page: Page) -> None:
    choose(page, "Run", "Run All Cells")


def run_all_to_the_end(page: Page, patience_ms: float = 4 * PATIENCE_MS) -> None:
    """Run all cells and wait until the last one is done. Fails if a cell has raised an error or written to stderr."""
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt")
    first, before = prompts.first, prompts.first.text_content()
    run_all(page)
    expect(first).not_to_have_text(re.compile(rf"^({re.escape(before)}|\[\*\]:)$"), timeout=patience_ms)
    expect(prompts.filter(has_text="[*]")).to_have_count(0, timeout=patience_ms)
    expect(page.get_by_role("button", name=re.compile(r"\| Idle$"))).to_be_visible(timeout=patience_ms)
    wrong = failures(page)
    assert not wrong, "\n".join(wrong)  # pytest does not take apart an assert outside of a test file


def failures(page: Page) -> list[str]:
    """Return what the cells have raised or written to stderr, each as a person reads it."""
    return page.locator("[data-mime-type*='error'], [data-mime-type*='stderr']").all_inner_texts()


def replace_line(page: Page, line: str, by: str) -> None:
    """Replace one line of a cell by typing."""
    page.locator(".cm-line", has_text=line).click()
    page.keyboard.press("Home")
    page.keyboard.press("Shift+End")
    page.keyboard.insert_text(by)


def shut_down_kernels(page: Page) -> None:
    choose(page, "Kernel", "Shut Down All Kernels…")
    page.get_by_role("button", name="Shut Down All").click()
    expect(page.get_by_role("button", name="No Kernel", exact=True)).to_be_visible(timeout=PATIENCE_MS)


def save(page: Page) -> None:
    choose(page, "File", "Save Notebook")
    expect(page.locator(".jp-mod-dirty")).to_have_count(0, timeout=PATIENCE_MS)


def output(page: Page, holds: str) -> Locator:
    """Wait for an output that contains the selector ``holds``, and return the first one."""
    found = page.locator(".jp-OutputArea-output", has=page.locator(holds)).first
    expect(found).to_be_visible(timeout=PATIENCE_MS)
    return found
