"""Notebook 04_train on a run in another process, which the test plays by writing a supervisor's files."""

from __future__ import annotations

import os
from collections.abc import Iterator

import jupyter
import pytest
from played_run import PlayedRun, played_training
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture
def run(lab) -> Iterator[PlayedRun]:
    with played_training(lab.root) as played:
        yield played


def test_the_panel_follows_a_run_past_a_closed_tab_and_stops_it(page: Page, lab, run: PlayedRun) -> None:
    page.goto(lab.notebook("04_train.ipynb"))
    jupyter.ready(page)
    jupyter.run_all(page)
    panel = jupyter.output(page, ".mt-head")
    expect(panel.locator(".mt-pill")).to_have_text("running")
    run.do_step(0.7, "The code of the owl is 4711.")
    expect(panel.locator(".mt-head")).to_contain_text("step 4 of 10, reward 0.700")
    expect(panel.locator("select option")).to_have_count(4)
    panel.locator("select").select_option("✗ step 2: answer 2")
    expect(panel.locator(".mt-turns")).to_contain_text("answer 2")
    expect(panel.locator(".mt-turns")).to_contain_text("nothing <img src=x onerror=alert(1)>")
    jupyter.save(page)

    page.close()
    run.do_step(0.8, "4711")
    page = page.context.new_page()
    page.goto(lab.notebook("04_train.ipynb"))
    jupyter.ready(page)
    panel = jupyter.output(page, ".mt-head")
    expect(panel.locator(".mt-head")).to_contain_text("step 5 of 10, reward 0.800")
    expect(panel.locator(".mt-turns")).to_contain_text("answer 2")
    panel.get_by_role("button", name="Stop").click()
    run.stop_when_requested()
    expect(panel.locator(".mt-pill")).to_have_text("stopped")
    expect(panel.get_by_role("button", name="Resume")).to_be_enabled()
    assert run.folder.stays_stopped

    lock = run.folder.lock()  # nothing is resumed beside an active run, or without the data of 01_make_data
    button = panel.get_by_role("button", name="Resume")
    button.click()
    expect(panel).to_contain_text("resuming failed: ")
    expect(button).to_be_enabled()
    assert button.evaluate("button => button.scrollWidth <= button.clientWidth"), "its label is cut"
    os.close(lock)
