"""`make screenshots`: the README's pictures of the workbench, taken of the real servers on the run that `make demo`
left.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import jupyter
import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "experiments" / "figures"
RUN = "runs/demo/train"


@pytest.fixture(scope="module")
def trained(lab) -> str:
    """A copy of the demo's training run, without its checkpoints."""
    if not (ROOT / RUN / "model").is_dir():
        pytest.fail(f"no trained policy at {RUN}: `make demo` makes one", pytrace=False)
    shutil.copytree(ROOT / RUN, lab.root / RUN, ignore=shutil.ignore_patterns("checkpoints"))
    return RUN


def take(page: Page, name: str, at: Locator | None = None, height: int = 640) -> None:
    """The page as a person sees it, with ``at`` at its top."""
    page.set_viewport_size({"width": 1400, "height": height})
    if at:
        at.evaluate("cell => cell.closest('.jp-Cell').scrollIntoView()")
    page.wait_for_timeout(1500)  # scrolling and MLflow's own animations
    page.screenshot(path=FIGURES / f"{name}.png")


def full_width(page: Page) -> None:
    page.locator(".jp-SideBar [data-id='filebrowser']").click()


def test_the_inspector(page: Page, lab, trained: str) -> None:
    page.goto(lab.notebook("00_quickstart.ipynb"))
    jupyter.ready(page)
    full_width(page)
    jupyter.run_all(page)
    jupyter.output(page, ".ma-inspector")

    expect(page.get_by_role("button", name=re.compile(r"\| Idle$"))).to_be_visible(timeout=jupyter.PATIENCE_MS)
    page.locator(".ma-inspector").focus()
    page.keyboard.press("n")
    take(page, "lab_inspector", page.locator(".ma-inspector"))

    page.goto(lab.mlflow.replace("/runs", "/traces"))
    expect(page.get_by_text("What is the code of").first).to_be_visible(timeout=jupyter.PATIENCE_MS)
    page.get_by_role("button", name="Got it").click()
    page.locator("[aria-label='Close']").last.click()
    take(page, "mlflow_traces")


def test_the_training_panel(page: Page, lab, trained: str) -> None:
    cell = nbformat.v4.new_code_cell(f'from memagent_lib import panel\n\npanel.show("{trained}")')
    notebook = nbformat.v4.new_notebook(
        cells=[cell], metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    nbformat.write(notebook, lab.root / "notebooks/training.ipynb")
    page.goto(lab.notebook("training.ipynb"))
    jupyter.ready(page)
    full_width(page)
    jupyter.run_all(page)
    panel = jupyter.output(page, ".mt-tiles")
    panel.locator("select").select_option(index=0)
    take(page, "lab_training", height=800)
