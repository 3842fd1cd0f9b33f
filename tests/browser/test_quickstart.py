"""A newcomer's first minutes, with the real model: from the printed address to an inspected memory, and back after a
reload.
"""

from __future__ import annotations

import jupyter
import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser
MOST_CLICKS = 5


def test_three_clicks_lead_from_the_printed_address_to_a_memory_and_all_of_it_is_there_again_after_a_reload(
    page: Page, lab
) -> None:
    page.add_init_script("window.clicks = 0; addEventListener('click', () => window.clicks++, true)")
    page.goto(f"{lab.jupyter}&reset")  # without the tabs of other tests
    page.get_by_text("00_quickstart.ipynb").dblclick()
    jupyter.ready(page)
    jupyter.run_all(page)
    inspector = jupyter.output(page, ".ma-inspector")
    assert page.evaluate("window.clicks") <= MOST_CLICKS
    expect(inspector.locator(".ma-memory").first).to_be_visible()
    expect(page.locator(".jp-OutputArea-output pre[data-mime-type*='error'], .jp-RenderedError")).to_have_count(0)
    question = inspector.locator(".ma-question").inner_text()
    jupyter.save(page)

    page.reload()
    jupyter.ready(page)
    expect(jupyter.output(page, ".ma-inspector").locator(".ma-question")).to_have_text(question)

    page.goto(lab.mlflow)
    expect(page.get_by_role("link", name="quickstart").first).to_be_visible(timeout=jupyter.PATIENCE_MS)
    page.goto(lab.mlflow.replace("/runs", "/traces"))
    expect(page.get_by_text(question).first).to_be_visible(timeout=jupyter.PATIENCE_MS)
