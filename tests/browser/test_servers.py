"""What `make lab` opens, seen by a browser."""

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


def test_the_printed_addresses_open_notebooks_and_experiment(page: Page, lab) -> None:
    page.goto(lab.notebook("06_inspect_memory.ipynb"))
    expect(page.get_by_role("heading", name="Where did the memory lose the statement?")).to_be_visible()
    page.goto(lab.mlflow)
    expect(page.get_by_role("heading", name="Training runs")).to_be_visible()
