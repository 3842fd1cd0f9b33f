"""One page for a sweep or a folder of evaluations: figures, tables, differences, cost, and the readings behind every
number.

Everything comes from result rows and the runs that they name, so a page can be made again at any time. Knows runs and
results; knows no agent.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from memagent_lib.errors import MissingFile
from memagent_lib.evaluation import PUBLISHED, failure_reasons, gather_rows, mixtures, paired, summarise
from memagent_lib.inspector.pages import to_html
from memagent_lib.inspector.readings import Readings
from memagent_lib.pages import Page, render
from memagent_lib.paths import absolute
from memagent_lib.plots import accuracy_by_task, svg_markup
from memagent_lib.sweeps import gather_sweep, is_sweep, unfinished_points
from memagent_lib.tracking import Experiment, load_readings, load_runs

PAGE_MB = 12.0
MOST_REASONS = 10
_LINE, _CELL = ["policy", "reader"], ["task", "policy", "reader", "length"]
_COSTS = ["turns", "tokens", "seconds", "GFLOPs"]
_COMPARED = "overwrite"
_FOLDERS = "a sweep's folder, or fill one: memagent evaluate DATA --out FOLDER, or the notebook 03_evaluate"


@dataclass(frozen=True)
class EvaluationReport:
    """Result rows of several policies, tasks, readers and lengths, and what a page says of them.

    ``rows`` are those of :func:`memagent_lib.evaluation.to_frame` with ``policy`` and ``run_id``; ``missing`` names
    what should be there and is not.
    """

    title: str
    rows: pd.DataFrame
    experiment: Experiment
    missing: Sequence[str] = field(default_factory=tuple)

    @classmethod
    def of(cls, folder: str | Path, tracking: str | Path = "runs", first: str = "") -> EvaluationReport:
        """A sweep's folder, or one that ``memagent evaluate`` or 03_evaluate filled (rows in ``POLICY.parquet``).

        The other policies are compared with ``first``.
        """
        path = absolute(folder)
        if is_sweep(path):
            rows, missing = gather_sweep(path), unfinished_points(path)
        else:
            rows, missing = _evaluated(path, first), []
        of_tasks = [task.assign(length=_lengths(task)) for _, task in rows.groupby("task", sort=False)]
        rows = pd.concat(of_tasks).sort_index()
        return cls(path.name, rows, Experiment.open(tracking), tuple(missing))

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs in the store, by id; results that were brought from elsewhere may name others."""
        return load_runs(self.experiment).set_index("run_id")

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before any number: missing points, mixtures, cells in which all failed, and why;
        and which runs are not there to lead to readings.
        """
        counts = summarise(self.rows, _CELL)
        broken = [
            f"{row['policy']}, {row['reader']}, {row['task']} at {row['length']}: all {row['failed']} failed"
            for row in counts[counts["scored"] == 0].to_dict("records")
        ]
        why = failure_reasons(self.rows)[:MOST_REASONS]
        named = self.rows["run_id"].drop_duplicates()
        if elsewhere := int((~named.isin(self.runs.index)).sum()):
            why.append(
                f"{elsewhere} of {len(named)} runs are not in {self.experiment.uri}: their readings, settings and "
                "machines are not shown; --tracking STORE names the store that has them"
            )
        return [*(f"missing: {point}" for point in self.missing), *mixtures(self.rows), *broken, *why]

    def page(self) -> Page:
        """A page that needs no network: a cell of a table opens the readings behind it in the inspector below, where
        their run is in the store.
        """
        there = self.rows[self.rows["run_id"].isin(self.runs.index)]
        readings = Readings(load_readings(self.experiment, there))
        first = _first_of_cells(readings)
        inspector = to_html(readings, PAGE_MB, set(first.values())).body if readings.results else ""
        body = render(
            "inspector/report.html",
            title=self.title,
            warnings=self.warnings,
            figure=_svg(accuracy_by_task(self.rows)) if _in_chunks(self.rows) else "",
            tasks=[self._task(task, rows, first) for task, rows in self.rows.groupby("task", sort=False)],
            runs=self._runs(),
            published=_published(),
            inspector=Markup(inspector),
            no_readings="every example failed" if len(there) else "their runs are not in the store",
        )
        return Page(f"Report: {self.title}", body)

    def _task(self, task: str, rows: pd.DataFrame, first: Mapping[tuple, str]) -> dict[str, Any]:
        lengths = sorted(rows["length"].unique())
        cells = summarise(rows, _CELL).set_index([*_LINE, "length"])
        costs = rows.assign(
            tokens=rows["prompt_tokens"] + rows["reply_tokens"],
            GFLOPs=rows.reindex(columns=["flops"]).astype(float) / 1e9,
        )
        means = costs.groupby([*_LINE, "length"])[_COSTS].mean()
        lines = []
        for policy, reader in rows[_LINE].drop_duplicates().itertuples(index=False, name=None):
            shown = []
            for length in lengths:
                at = (policy, reader, length)
                cell = {"key": first.get((task, *at), ""), "policy": policy}
                shown.append(cell | _shown(cells.loc[at], means.loc[at]) if at in cells.index else None)
            lines.append({"policy": policy, "reader": reader, "cells": shown})
        names = [f"{length:,} chunks" if _in_chunks(rows) else str(length) for length in lengths]
        return {"name": task, "lengths": names, "lines": lines, "pairs": _pairs(rows)}

    def _runs(self) -> list[dict[str, Any]]:
        told = []
        for policy, run_id in self.rows[["policy", "run_id"]].drop_duplicates().itertuples(index=False):
            run = {"policy": policy, "id": run_id}
            if run_id in self.runs.index:
                row = self.runs.loc[run_id].dropna()
                params = {key.removeprefix("params."): of for key, of in row.items() if key.startswith("params.")}
                run |= {"started": f"{row['started']:%Y-%m-%d %H:%M} UTC", "settings": json.dumps(params, indent=1)}
                run["machine"] = _machine(self.experiment, run_id)
            told.append(run)
        return told


def _in_chunks(rows: pd.DataFrame) -> bool:
    """Whether every document's length is known in chunks."""
    return bool(rows["chunks"].notna().all())


def _lengths(rows: pd.DataFrame) -> pd.Series:
    """How long the documents of a task are: in chunks where all are known so, else what file they are of."""
    return (rows["chunks"].astype(int) if _in_chunks(rows) else rows["file"].fillna("one document")).astype(object)


def _first_of_cells(readings: Readings) -> dict[tuple, str]:
    """For each cell the key of the reading that it opens: a wrong one where there is one."""
    first: dict[tuple, str] = {}
    for key, result in readings.results.items():  # of every policy, wrong ones come first
        length = result.example.metadata.get("chunks") or Path(result.example.metadata.get("file", "one document")).name
        first.setdefault((result.example.task, readings.policies[key], result.reader, length), key)
    return first


def _shown(cell: Mapping[str, Any], cost: Mapping[str, float]) -> dict[str, Any]:
    """A cell of a table in words: score, interval, n, failures; below it capture and retention, and the cost."""
    numbers = {name: f"{100 * cell[name]:.1f}" for name in ("accuracy", "low", "high") if cell["scored"]}
    kept = {name: f"{100 * cell[name]:.0f} %" for name in ("capture", "retention") if cell[name] == cell[name]}
    spent = {
        name: f"{cost[name]:,.0f}" if cost[name] >= 10 else f"{cost[name]:.2g}"
        for name in _COSTS
        if cost[name] == cost[name]
    }
    return numbers | {"n": int(cell["scored"]), "failed": int(cell["failed"]), "kept": kept, "spent": spent}


def _pairs(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Every later policy minus the first, on the documents that both read with memory."""
    if not _in_chunks(rows):
        return []
    rows = rows[(rows["reader"] == _COMPARED) & rows["score"].notna()]
    documents = rows.groupby("policy", sort=False)["document"].agg(set).to_dict()
    left, *others = documents or [""]
    told = []
    for right in (name for name in others if documents[name] & documents[left]):
        for row in paired(rows, left, right, _COMPARED).to_dict("records"):
            apart = row["low"] > 0 or row["high"] < 0
            points = {part: f"{100 * row[part]:+.1f}" for part in ("difference", "low", "high")}
            told.append(row | points | {"left": left, "right": right, "apart": apart})
    return told


def _published() -> list[dict[str, Any]]:
    """The published numbers, a row per task and model; of other models, and on other documents."""
    table = pd.read_csv(PUBLISHED)
    rows = []
    for (task, model, source), line in table.groupby(["task", "model", "source"], sort=False):
        shown = ", ".join(f"{length}: {score:.1f}" for length, score in zip(line["length"], line["score"], strict=True))
        rows.append({"task": task, "model": model, "source": source, "scores": shown})
    return rows


def _machine(experiment: Experiment, run_id: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return Path(experiment.join(run_id).fetch("environment.json", folder)).read_text(encoding="utf-8")


def _svg(axes: Any) -> Any:
    """A figure as markup, in the page's own theme."""
    import matplotlib.pyplot as plt

    svg = svg_markup(axes.figure)
    plt.close(axes.figure)
    return Markup(svg)


def _evaluated(folder: Path, first: str) -> pd.DataFrame:
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"no folder {folder}"
        raise MissingFile(f"{what}; give {_FOLDERS}")
    try:
        return gather_rows(folder, [first] if first else [])
    except FileNotFoundError as none:
        raise MissingFile(f"no results in {folder}; give {_FOLDERS}") from none
