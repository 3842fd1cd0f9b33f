"""One page for a sweep or a folder of evaluations: figures, tables, differences, cost, the readings behind each number.

The page is made from result rows and the runs that they name, so it can be made again at any time. This module does not
depend on agents.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from markupsafe import Markup

from memagent_lib.errors import MissingFile
from memagent_lib.evaluation import PUBLISHED, failure_reasons, gather_rows, judges, keyed, mixtures, paired, summarise
from memagent_lib.inspector.readings import Readings
from memagent_lib.inspector.static_pages import to_html
from memagent_lib.pages import Page, render
from memagent_lib.paths import absolute
from memagent_lib.plots import accuracy_by_task, svg_markup
from memagent_lib.sweeps import gather_sweep, is_sweep, unfinished_points
from memagent_lib.tracking import Experiment, load_readings, load_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE_MB = 12.0
MOST_REASONS = 10
_LINE = ["policy", "reader"]
_CELL = ["task", *_LINE, "length"]
_COSTS = ["turns", "tokens", "seconds", "GFLOPs"]
_COMPARED = "overwrite"
_FOLDERS = "a sweep's folder, or fill one: memagent evaluate DATA --out FOLDER, or the notebook 03_evaluate"


@dataclass(frozen=True)
class EvaluationReport:
    """Result rows of several policies, tasks, readers and lengths, and the page about them.

    ``rows`` has the columns of :func:`memagent_lib.evaluation.to_frame`, and also ``policy``, ``run_id`` and
    ``length``; ``missing`` names the points of a sweep that have no result.
    """

    title: str
    rows: pd.DataFrame
    experiment: Experiment
    missing: Sequence[str] = field(default_factory=tuple)

    @classmethod
    def of(cls, folder: str | Path, tracking: str | Path = "runs", first: str = "") -> EvaluationReport:
        """Make the report on a folder: that of a sweep, or one that ``memagent evaluate`` or 03_evaluate has filled.

        All other policies are compared with ``first``. ``tracking`` is the store that has the runs.
        """
        path = absolute(folder)
        missing: list[str] = []
        if is_sweep(path):
            rows = keyed(gather_sweep(path))
            missing = unfinished_points(path)
        else:
            rows = _evaluated(path, first)
        of_tasks = [task.assign(length=_lengths(task)) for _, task in rows.groupby("task", sort=False)]
        # Back in the order of the rows, from which policies get their colours.
        rows = pd.concat(of_tasks).sort_index()
        rows = rows.assign(policy=rows["variant"])  # the page names a policy with the settings that varied
        return cls(path.name, rows, Experiment.open(tracking), tuple(missing))

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs in this store, by id. Rows copied from another machine may refer to runs that are not here."""
        return load_runs(self.experiment).set_index("run_id")

    @property
    def warnings(self) -> list[str]:
        """Warnings to read before any number.

        They name missing points, mixed versions or settings, cells in which every example failed (with the reasons),
        and runs that are not in the store.
        """
        counts = summarise(self.rows, _CELL)
        broken = [
            f"{row['policy']}, {row['reader']}, {row['task']} at {row['length']}: all {row['failed']} failed"
            for row in counts[counts["scored"] == 0].to_dict("records")
        ]
        missing = [f"missing: {point}" for point in self.missing]
        warnings = [*missing, *mixtures(self.rows), *broken, *failure_reasons(self.rows)[:MOST_REASONS]]
        run_ids = self.rows["run_id"].drop_duplicates()
        # Rows may be copied from another machine without its store.
        elsewhere = int((~run_ids.isin(self.runs.index)).sum())
        if elsewhere:
            warnings.append(
                f"{elsewhere} of {len(run_ids)} runs are not in {self.experiment.uri}: their readings, settings and "
                "machines are missing here; --tracking STORE names the store that has them"
            )
        return warnings

    def page(self) -> Page:
        """Return a page that needs no network.

        Clicking a score opens one of its readings in the inspector below the tables, if its run is in the store.
        """
        stored = self.rows[self.rows["run_id"].isin(self.runs.index)]
        readings = Readings(load_readings(self.experiment, stored))
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
            no_readings="every example failed" if len(stored) else "their runs are not in the store",
        )
        return Page(f"Report: {self.title}", body)

    def _task(self, task: str, rows: pd.DataFrame, first: Mapping[tuple, str]) -> dict[str, Any]:
        """Return a task's table, with a line per policy and reader, and a cell per length."""
        lengths = sorted(rows["length"].unique())
        cells = summarise(rows, _CELL).set_index([*_LINE, "length"])
        costs = rows.assign(
            tokens=rows["prompt_tokens"] + rows["reply_tokens"],
            GFLOPs=rows.reindex(columns=["flops"]).astype(float) / 1e9,
        )
        means = costs.groupby([*_LINE, "length"])[_COSTS].mean()
        lines = []
        for policy, reader in rows[_LINE].drop_duplicates().itertuples(index=False, name=None):
            line: list[dict[str, Any] | None] = []
            for length in lengths:
                at = (policy, reader, length)
                # Not every policy has read every length.
                if at not in cells.index:
                    line.append(None)
                    continue
                link = {"key": first.get((task, *at), ""), "policy": policy}
                line.append(link | _cell(cells.loc[at], means.loc[at]))
            lines.append({"policy": policy, "reader": reader, "cells": line})
        names = [str(length) for length in lengths]
        if _in_chunks(rows):
            names = [f"{length:,} chunks" for length in lengths]
        return {"name": task, "lengths": names, "lines": lines, "pairs": _pairs(rows), "judges": judges(rows)}

    def _runs(self) -> list[dict[str, Any]]:
        """Return each policy's runs, with their settings and machine if the store has them."""
        runs = []
        for policy, run_id in self.rows[["policy", "run_id"]].drop_duplicates().itertuples(index=False):
            run = {"policy": policy, "id": run_id}
            if run_id in self.runs.index:
                row = self.runs.loc[run_id].dropna()
                params = {key.removeprefix("params."): value for key, value in row.items() if key.startswith("params.")}
                run["started"] = f"{row['started']:%Y-%m-%d %H:%M} UTC"
                run["settings"] = json.dumps(params, indent=1)
                run["machine"] = _machine(self.experiment, run_id)
            runs.append(run)
        return runs


def _in_chunks(rows: pd.DataFrame) -> bool:
    """Return whether every document's length is known in chunks."""
    return bool(rows["chunks"].notna().all())


def _lengths(rows: pd.DataFrame) -> pd.Series:
    """Return for each row of a task the table column that it belongs to: its length in chunks, or else its file."""
    if _in_chunks(rows):
        return rows["chunks"].astype(int).astype(object)
    return rows["file"].fillna("one document").astype(object)


def _first_of_cells(readings: Readings) -> dict[tuple, str]:
    """Return the key of the reading that each cell opens: a wrong one if there is any."""
    first: dict[tuple, str] = {}
    for key, result in readings.results.items():  # wrong ones come first
        metadata = result.example.metadata
        length = metadata.get("chunks") or Path(metadata.get("file", "one document")).name
        first.setdefault((result.example.task, readings.policies[key], result.reader, length), key)
    return first


def _cell(rates: Mapping[str, Any], costs: Mapping[str, float]) -> dict[str, Any]:
    """Return a cell's numbers as text, without those that are unknown."""
    cell: dict[str, Any] = {"n": int(rates["scored"]), "failed": int(rates["failed"])}
    if rates["scored"]:
        cell |= {name: f"{100 * rates[name]:.1f}" for name in ("accuracy", "low", "high")}
    evidence = ("capture", "retention")
    cell["evidence"] = {name: f"{100 * rates[name]:.0f} %" for name in evidence if pd.notna(rates[name])}
    cell["cost"] = {name: _amount(costs[name]) for name in _COSTS if pd.notna(costs[name])}
    return cell


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _pairs(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the difference between each other policy and the first, on the documents that both read with a memory."""
    if not _in_chunks(rows):
        return []
    rows = rows[(rows["reader"] == _COMPARED) & rows["score"].notna()]
    documents = rows.groupby("policy", sort=False)["document"].agg(set).to_dict()
    # No rows at all: nothing to compare.
    left, *others = documents or [""]
    pairs = []
    for right in others:
        if not documents[left] & documents[right]:
            continue
        for row in paired(rows, left, right, _COMPARED).to_dict("records"):
            # The page prints such a difference in bold.
            excludes_zero = row["low"] > 0 or row["high"] < 0
            points = {part: f"{100 * row[part]:+.1f}" for part in ("difference", "low", "high")}
            pairs.append(row | points | {"left": left, "right": right, "apart": excludes_zero})
    return pairs


def _published() -> list[dict[str, Any]]:
    """Return the published numbers of other models, one row per task and model."""
    table = pd.read_csv(PUBLISHED)
    rows = []
    for (task, model, source), line in table.groupby(["task", "model", "source"], sort=False):
        pairs = zip(line["length"], line["score"], strict=True)
        scores = ", ".join(f"{length}: {score:.1f}" for length, score in pairs)
        rows.append({"task": task, "model": model, "source": source, "scores": scores})
    return rows


def _machine(experiment: Experiment, run_id: str) -> str:
    """Return the environment that a run recorded, as text."""
    with tempfile.TemporaryDirectory() as folder:
        return Path(experiment.join(run_id).fetch("environment.json", folder)).read_text(encoding="utf-8")


def _svg(axes: Axes) -> Markup:
    """Return a figure as markup that takes the page's theme, and close the figure."""
    import matplotlib.pyplot as plt

    svg = svg_markup(axes.figure)  # inline, so that its grey ink is drawn on the page's own background
    plt.close(axes.figure)
    return Markup(svg)


def _evaluated(folder: Path, first: str) -> pd.DataFrame:
    """Return the rows of a folder of evaluations, ``first`` before other policies."""
    if not folder.is_dir():
        what = f"no folder {folder}"
        if folder.exists():
            what = f"{folder} is a file"
        raise MissingFile(f"{what}; give {_FOLDERS}")
    try:
        return gather_rows(folder, [first] if first else [])
    except FileNotFoundError as none:
        raise MissingFile(f"no results in {folder}; give {_FOLDERS}") from none
