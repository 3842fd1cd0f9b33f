"""Notebooks 04, 06 and 07, saved: reopened without a kernel, exported by JupyterLab, converted by nbconvert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import jupyter
import pytest
from played_run import played_training
from playwright.sync_api import Browser, Page, expect
from saved_copies import converted, too_faint

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.evaluation import Result, save_rows
from memagent_lib.prompts import Encoder
from memagent_lib.tracking import Experiment, log_agent, log_results

pytestmark = pytest.mark.browser
PICTURES = {"04_train": ".mt-tiles svg", "06_inspect_memory": "svg.ma-timeline", "07_compare_runs": "svg.ma-timeline"}
LIVE = ".ma-time"  # the timeline of a widget that JupyterLab has restored from the file
# nbconvert's own template loads these into every page; nothing of ours needs them.
OF_NBCONVERT = ("require.js", "mathjax", "@jupyter-widgets/html-manager")


@pytest.fixture
def studied(lab, kept: Result, lost: Result, encoder: Encoder) -> Iterator[None]:
    """Two policies' readings of one document, where 06 and 07 find them, and the training that 04 attaches to."""
    experiment = Experiment.open(lab.root / "runs")
    for policy, result in {"warm start": lost, "trained": kept}.items():
        result = replace(result, example=replace(result.example, id="one"))
        with experiment.run(f"evaluate {policy}", {"policy": policy}) as run:
            log_agent(run, Agent(encoder, Scripted(str)), policy, "transformers")
            rows = log_results(run, [result], policy=policy, chunk_tokens=10)
        save_rows(rows, lab.root / "runs/study/results", policy)
    inspect = lab.root / "notebooks/06_inspect_memory.ipynb"
    inspect.write_text(inspect.read_text().replace("chunks: int = 16", "chunks: int = 4"))
    with played_training(lab.root):
        yield


@pytest.mark.parametrize("name", PICTURES)
def test_a_copy_shows_its_picture_without_kernel_and_network(
    page: Page, browser: Browser, lab, studied: None, name: str
) -> None:
    picture = PICTURES[name]
    page.goto(lab.notebook(f"{name}.ipynb"))
    jupyter.ready(page)
    jupyter.run_all_to_the_end(page)
    jupyter.save(page)
    jupyter.shut_down_kernels(page)

    page.reload()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        jupyter.theme(page, theme)
        drawn = page.locator(f"{picture}, {LIVE}").locator("visible=true")
        expect(drawn.first).to_be_visible(timeout=jupyter.PATIENCE_MS)

    page.goto(lab.export(f"{name}.ipynb"))  # the fixture fails if it requests anything from another machine
    expect(page.locator(f".ma-saved-copy {picture}").first).to_be_visible()

    for theme in ("light", "dark"):
        with converted(browser, lab.root / f"notebooks/{name}.ipynb", theme) as (copy, requested):
            expect(copy.locator(f".ma-saved-copy {picture}").first).to_be_visible()
            assert too_faint(copy, ".ma-saved-copy") == []
            assert [url for url in requested if not any(known in url for known in OF_NBCONVERT)] == []
