"""MLflow as its users use it, on what evaluations log: words in its search field, two runs compared."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from memagent_lib.tracking import EVALUATIONS, READINGS, Experiment, log_results

pytestmark = pytest.mark.browser
# MLflow's table does not have its columns in order in the document.
FROM_LEFT = """(cells) => cells.map((cell) => [cell.getBoundingClientRect().left, cell.innerText.trim()])
  .sort((a, b) => a[0] - b[0]).map(([, text]) => text)"""
# Headings that do not fit their column, each with the width of the column.
CUT = """(headings) => headings.flatMap((heading) => [...heading.querySelectorAll("*")]
  .filter((text) => !text.children.length && text.innerText && text.scrollWidth > text.clientWidth)
  .map((text) => `${text.innerText} at ${heading.clientWidth}`))"""
SLOW_MS = 150_000  # a server on a busy machine


def test_mlflow_finds_a_memorys_words_and_compares_scores(page: Page, lab, kept, lost) -> None:
    experiment, runs = Experiment.open(lab.root / "runs"), []
    for policy, readings in {"warm start": [lost, kept], "trained": [kept]}.items():
        with experiment.run(f"evaluate {policy}", {"chunks": 4}) as run:
            log_results(run, readings, policy=policy)
        runs.append(run.id)

    page.goto(lab.mlflow.replace("/runs", "/traces"))
    right, wrong = (page.get_by_text(f"\\boxed{{{answer}}}") for answer in (4711, 9))
    expect(right.first).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_role("button", name="Got it")).to_have_count(0)
    expect(page.locator(".assistant-fab-label")).to_have_count(1)  # MLflow has this button while the panel is closed
    search = page.get_by_placeholder("Search traces")
    search.fill("bold</b> mole")  # in a memory of the lost reading, in no question and in no answer
    search.press("Enter")
    expect(right).to_have_count(0, timeout=SLOW_MS)
    expect(wrong.first).to_be_visible(timeout=SLOW_MS)

    page.goto(f'{lab.mlflow.partition("#")[0]}#/compare-runs?runs={json.dumps(runs)}&experiments=["1"]')
    expect(page.get_by_text("evaluate trained").first).to_be_visible(timeout=SLOW_MS)
    drawn = page.locator("svg text").filter(has_text=re.compile("^score$"))  # the axis of the chart that it opens with
    expect(drawn.first).to_be_visible(timeout=SLOW_MS)

    page.goto(lab.mlflow.replace("runs", EVALUATIONS))
    expect(page.get_by_role("columnheader", name="lengths").first).to_be_visible(timeout=SLOW_MS)
    headings = page.get_by_role("columnheader").evaluate_all(FROM_LEFT)
    of_groups = ("", "Metrics", "Parameters", "Tags")
    columns = [heading for heading in dict.fromkeys(headings) if heading not in of_groups]
    assert columns[:6] == ["Run Name", "Created", "score", "policy", "readers", "lengths"]
    assert page.get_by_role("columnheader").evaluate_all(CUT) == []
    assert page.get_by_role("columnheader", name="score", exact=True).first.bounding_box()["width"] == 100
    page.goto(lab.mlflow.replace("runs", READINGS))
    expect(page.get_by_role("columnheader", name="score")).to_be_visible(timeout=SLOW_MS)
