"""One page for a sweep or a folder of evaluations: figures, tables, differences, cost, the readings behind each number.

The page is made from result rows and the runs that they name, so it can be made again at any time. This module does not
depend on agents.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from memagent_lib.errors import MissingFile
from memagent_lib.evaluation import (
    ALL_TASKS,
    COLUMNS,
    PUBLISHED,
    Rate,
    Result,
    against,
    amount,
    costs,
    failure_reasons,
    in_order,
    judges,
    keyed,
    line_name,
    mixtures,
    question_columns,
    read_rows,
    sample_size,
    summarise,
    with_all_tasks,
    with_memory,
)
from memagent_lib.inspector.readings import Readings
from memagent_lib.inspector.static_pages import to_html
from memagent_lib.pages import Page, render
from memagent_lib.paths import absolute
from memagent_lib.plots import accuracy_by_task, score_against_cost
from memagent_lib.sweeps import gather_sweep, is_sweep, store_of_sweep, sweep_frame
from memagent_lib.tracking import Experiment, Run, TrackingError, load_readings, load_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_REASONS = 10
_LINE = ["policy", "reader", "line"]
_CELL = ["task", *_LINE, "length"]
ALL_LENGTHS = "all lengths"
MOST_COLUMNS = 6
"""Lines side by side in one table; more would not fit a page of A4."""
SMALL_N = 10
"""Below this number of questions, a cell has counts instead of a percentage with an interval."""
_COSTS = {
    "capture": "capture",
    "retention": "retention",
    "turns": "turns",
    "tokens": "tokens",
    "seconds": "seconds, median",
    "seconds_95": "seconds, 95 %",
    "gflops": "GFLOPs",
    "bad_memories": "bad memories",
}
_FOLDERS = "a sweep's folder, or fill one: memagent evaluate DATA --out FOLDER, or the notebook 03_evaluate"


class _Logged(NamedTuple):
    """The readings of runs by policy, their machines by run, and a sentence for each artifact that is missing."""

    readings: dict[str, list[Result]]
    machines: dict[str, str]
    missing: list[str]


@dataclass(frozen=True)
class EvaluationReport:
    """Result rows of several policies, tasks, readers and lengths, and the page about them.

    ``rows`` has the columns of :func:`memagent_lib.evaluation.to_frame`, and also ``policy``, ``run_id`` and
    ``length``; ``missing`` names the points of a sweep that have no result, and ``mixed`` has the warnings of
    :func:`~memagent_lib.evaluation.mixtures` about all rows, before those that count once are dropped.
    """

    title: str
    rows: pd.DataFrame
    experiment: Experiment
    missing: Sequence[str] = field(default_factory=tuple)
    mixed: Sequence[str] = field(default_factory=tuple)

    @classmethod
    def of(cls, folder: str | Path, tracking: str | Path = "", first: str = "") -> EvaluationReport:
        """Make the report on a folder: that of a sweep, or one that ``memagent evaluate`` or 03_evaluate has filled.

        All other policies are compared with ``first`` (default: the first one found). ``tracking`` is the store that
        has the runs (default: the sweep's own, or ``runs``).
        """
        path = absolute(folder)
        missing: list[str] = []
        if is_sweep(path):
            tracking = tracking or store_of_sweep(path)
            saved = _require_results(gather_sweep(path, tracking=tracking), path)
            points = sweep_frame(path)
            missing = [f"{p.stage}, {p.point}: {p.status}" for p in points.itertuples() if p.status != "finished"]
        else:
            saved = _evaluated(path)
        try:
            rows = in_order(keyed(saved), [first] if first else [])
        except ValueError as failure:
            raise type(failure)(f"{path}: {failure}") from None
        of_tasks = [task.assign(length=_lengths(task)) for _, task in rows.groupby("task", sort=False)]
        # Back in the order of the rows, from which policies get their colours.
        rows = pd.concat(of_tasks).sort_index()
        rows = rows.assign(policy=rows["variant"])  # the page names a policy with the settings that varied
        return cls(path.name, rows, Experiment.open(tracking or "runs"), tuple(missing), tuple(mixtures(saved)))

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs of ``experiment``, indexed by id. Rows copied from another machine may refer to other runs."""
        return load_runs(self.experiment).set_index("run_id")

    @cached_property
    def _logged(self) -> _Logged:
        """What the runs in the store have logged besides their rows; artifacts may be missing or have moved."""
        stored = self.rows[self.rows["run_id"].isin(self.runs.index)]
        logged = _Logged({policy: [] for policy in stored["policy"].unique()}, {}, [])
        for run_id, rows in stored.groupby("run_id", sort=False):
            run = self.experiment.join(str(run_id))
            try:
                for policy, found in load_readings(self.experiment, rows).items():
                    logged.readings[policy] += found
            except TrackingError as failure:
                logged.missing.append(str(failure))
            try:
                logged.machines[run.id] = _machine(run)
            except TrackingError as failure:
                logged.missing.append(str(failure))
        return logged

    @property
    def warnings(self) -> list[str]:
        """Warnings to read before any number.

        They name missing points, mixed rows, lines side by side that have read different questions, cells in which
        every example failed, the most frequent reasons of failures, runs that are not in the store, and artifacts that
        are not where the store expects them.
        """
        counts = summarise(self.rows, _CELL)
        broken = [
            f"{row['policy']}, {row['reader']}, {row['task']} at {row['length']}: all {row['failed']} failed"
            for row in counts[counts["scored"] == 0].to_dict("records")
        ]
        missing = [f"missing: {point}" for point in self.missing]
        apart = _different_questions(self.rows)
        warnings = [*missing, *self.mixed, *apart, *broken, *failure_reasons(self.rows)[:MOST_REASONS]]
        run_ids = self.rows["run_id"].drop_duplicates()
        # Rows may be copied from another machine without its store.
        elsewhere = int((~run_ids.isin(self.runs.index)).sum())
        if elsewhere:
            warnings.append(
                f"{elsewhere} of {len(run_ids)} runs are not in {self.experiment.uri}: their readings, settings and "
                "machines are missing here; --tracking STORE names the store that has them"
            )
        lost = self._logged.missing
        if lost:
            count = f"{len(lost)} artifacts of the runs are missing here, the first: " if len(lost) > 1 else ""
            warnings.append(f"{count}{lost[0]}")
        return warnings

    def page(self) -> Page:
        """Return a page that needs no network.

        Clicking a score opens one of its readings in the inspector below the tables, if its run is in the store.
        """
        readings = Readings(self._logged.readings)
        first = _first_of_cells(readings)
        inspector = to_html(readings, first_keys=set(first.values())).body if readings.results else ""
        body = render(
            "inspector/report.html",
            title=self.title,
            warnings=self.warnings,
            figures=_figures(self.rows),
            tasks=self._sections(first),
            runs=self._runs(),
            published=_published(),
            small=SMALL_N,
            inspector=Markup(inspector),
            no_readings=self._why_no_readings(),
        )
        return Page(f"Report: {self.title}", body)

    def _why_no_readings(self) -> str:
        if not self.rows["run_id"].isin(self.runs.index).any():
            return "their runs are not in the store"
        if self._logged.missing:
            return "they are not where the store expects them"
        return "every example failed"

    def _sections(self, first: Mapping[tuple, str]) -> list[dict[str, Any]]:
        """Return the tables of each task; those over all tasks come first."""
        of_tasks = with_all_tasks(self.rows, _LINE).groupby("task", sort=False)
        return [_section(str(task), rows, first) for task, rows in of_tasks]

    def _runs(self) -> list[dict[str, Any]]:
        """Return each policy's runs and their readers, with settings and machine if the store has them."""
        runs = []
        for (policy, run_id), rows in self.rows.groupby(["policy", "run_id"], sort=False):
            run = {"policy": policy, "id": run_id, "readers": ", ".join(rows["reader"].unique())}
            if run_id in self.runs.index:
                row = self.runs.loc[run_id].dropna()
                params = {key.removeprefix("params."): value for key, value in row.items() if key.startswith("params.")}
                run["started"] = f"{row['started']:%Y-%m-%d %H:%M} UTC"
                run["settings"] = json.dumps(params, indent=1)
                run["machine"] = self._logged.machines.get(run_id, "no environment.json")
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
    """Return for each cell the key of the reading that it opens: a wrong one if there is any."""
    first: dict[tuple, str] = {}
    for key, result in readings.results.items():  # wrong ones come first
        length = result.example.metadata.get("chunks") or COLUMNS["file"].value(result) or "one document"
        line = line_name(readings.policies[key], result.reader)
        for cell in product((result.example.task, ALL_TASKS), (line,), (length, ALL_LENGTHS)):
            first.setdefault(cell, key)
    return first


def _section(task: str, rows: pd.DataFrame, first: Mapping[tuple, str]) -> dict[str, Any]:
    """Return a task's tables: a row per length, lines side by side, the first row over all lengths."""
    # Numbers of chunks come before the names of files without one.
    lengths = sorted(rows["length"].unique(), key=lambda length: (isinstance(length, str), length))
    if len(lengths) > 1:
        rows = pd.concat([rows.assign(length=ALL_LENGTHS), rows], ignore_index=True)
        lengths.insert(0, ALL_LENGTHS)
    names = {length: _length_name(length, rows) for length in lengths}
    cells = summarise(rows, [*_LINE, "length"]).set_index(["line", "length"])
    lines = rows[_LINE].drop_duplicates().to_dict("records")
    blocks = []
    for at in range(0, len(lines), MOST_COLUMNS):
        side_by_side = lines[at : at + MOST_COLUMNS]
        table = [_row(task, length, side_by_side, cells, first) | {"name": names[length]} for length in lengths]
        blocks.append({"lines": side_by_side, "rows": table})
    return {
        "name": task,
        "blocks": blocks,
        "differences": _differences(rows, names),
        "costs": _costs(rows, cells, lengths, names),
        "judges": judges(rows[rows["length"] != ALL_LENGTHS] if len(lengths) > 1 else rows),
    }


def _length_name(length: Any, rows: pd.DataFrame) -> str:
    if length == ALL_LENGTHS or not _in_chunks(rows):
        return str(length)
    return f"{length:,} chunk{'s' if length > 1 else ''}"


def _row(
    task: str, length: Any, lines: Sequence[Mapping[str, str]], cells: pd.DataFrame, first: Mapping[tuple, str]
) -> dict[str, Any]:
    """Return one row of scores. ``n`` is there once if all lines have the same, else in each cell."""
    row: list[dict[str, Any] | None] = []
    for line in lines:
        at = (line["line"], length)
        if at not in cells.index:
            row.append(None)
            continue
        link = {"key": first.get((task, *at), ""), "policy": line["policy"]}
        row.append(link | _cell(cells.loc[at]))
    numbers = {cell["n"] for cell in row if cell}
    n = numbers.pop() if len(numbers) == 1 else ""
    return {"n": n, "cells": row}


def _cell(rates: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell's numbers as text. Few questions are counted; a percentage of them would look precise."""
    rate = Rate.of(rates)
    n = rate.n
    cell = {
        "n": rate.count,
        "scored": n,
        "failed": int(rates["failed"]),
        "value": str(rate),
        "title": str(rate),
        "interval": "",
    }
    if n >= SMALL_N:
        cell |= {"value": f"{100 * rate.value:.1f}", "interval": rate.interval}
    elif n:
        cell["value"] = f"{rate.value * n:g} of {n}"
    return cell


def _costs(rows: pd.DataFrame, cells: pd.DataFrame, lengths: Sequence[Any], names: Mapping[Any, str]) -> dict[str, Any]:
    """Return capture, retention and what a question cost, a row per length and line."""
    table = costs(rows, ["line", "length"]).set_index(["line", "length"]).join(cells[["capture", "retention"]])
    if "bad_memories" in rows and rows["bad_memories"].fillna(0).any():  # replies that were no memory, in turns
        table["bad_memories"] = rows.groupby(["line", "length"])["bad_memories"].sum()
    known = [name for name in _COSTS if name in table and table[name].notna().any()]
    listed = []
    for length in lengths:
        for line in rows["line"].unique():
            if (line, length) in table.index:
                numbers = table.loc[(line, length)]
                row = ["" if pd.isna(numbers[name]) else _number(name, numbers[name]) for name in known]
                listed.append([names[length], line, *row])
    return {"names": [_COSTS[name] for name in known], "rows": listed}


def _number(name: str, value: float) -> str:
    return f"{100 * value:.0f} %" if name in ("capture", "retention") else amount(value)


def _figures(rows: pd.DataFrame) -> list[Markup]:
    """Return accuracy by length and score against cost, each if the rows have what it displays."""
    figures = []
    if _in_chunks(rows):
        figures.append(_svg(accuracy_by_task(rows)))
    if rows["line"].nunique() > 1:
        with suppress(ValueError):  # no document was read by all lines
            figures.append(_svg(score_against_cost(rows)))
    return figures


def _differences(rows: pd.DataFrame, names: Mapping[Any, str]) -> dict[str, Any]:
    """Return every line with a memory minus the first of them, on the documents that both have read."""
    codes = {length: code for code, length in enumerate(names)}
    memories = with_memory(rows)
    by_length = [
        against(of_length.assign(chunks=codes[length]))
        for length, of_length in memories.groupby("length", sort=False)
        if of_length["line"].nunique() > 1
    ]
    made = pd.concat(by_length, ignore_index=True) if by_length else pd.DataFrame()
    if made.empty:
        return {}
    # At a length that the first line has not read, another one would be the baseline.
    made = made[made["left"] == memories["line"].iloc[0]].sort_values("chunks", kind="stable")
    name_of = {code: names[length] for length, code in codes.items()}
    table = []
    for row in made.to_dict("records"):
        excludes_zero = row["low"] > 0 or row["high"] < 0
        points = {part: f"{100 * row[part]:+.1f}" for part in ("difference", "low", "high")}
        points["n"] = sample_size(row["n"], row["documents"])
        table.append(row | points | {"length": name_of[row["chunks"]], "apart": excludes_zero})
    return {"baseline": memories["line"].iloc[0], "rows": table}


def _published() -> list[dict[str, Any]]:
    """Return the published numbers of other models, one row per task and model."""
    table = pd.read_csv(PUBLISHED)
    rows = []
    for (task, model, source, judge), line in table.groupby(["task", "model", "source", "judge"], sort=False):
        pairs = zip(line["length"], line["score"], strict=True)
        scores = ", ".join(f"{length}: {score:.1f}" for length, score in pairs)
        rows.append({"task": task, "model": model, "source": f"{source}; {judge}", "scores": scores})
    return rows


def _machine(run: Run) -> str:
    """Return the environment that a run recorded, as text."""
    with tempfile.TemporaryDirectory() as folder:
        return run.fetch("environment.json", folder).read_text(encoding="utf-8")


def _svg(axes: Axes) -> Markup:
    """Return a figure as inline markup, and close the figure."""
    import matplotlib.pyplot as plt

    file = io.StringIO()
    axes.figure.savefig(file, format="svg")
    plt.close(axes.figure)
    svg = file.getvalue()
    return Markup(svg[svg.index("<svg") :])


def _require_results(rows: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Return the rows of a sweep; raise ``ValueError`` if a notebook of one's own logged another kind of table."""
    missing = [name for name in ("policy", "task", "reader", "score") if name not in rows]
    if missing:
        raise ValueError(
            f"the points of {folder} logged a results.parquet without {', '.join(missing)}, and a report is of rows "
            "that 03_evaluate logs; memagent_lib.sweeps.gather_sweep(FOLDER) returns any other table"
        )
    return rows


def _different_questions(rows: pd.DataFrame) -> list[str]:
    """Return a warning for each cell whose lines have read different questions, and one for scores over several cells.

    In a cell, fewer of the same questions are no fault. Over several lengths or tasks, they may be the easier ones.
    """
    same = question_columns(rows)
    warnings: list[str] = []
    if not same:
        return warnings
    cells = rows.groupby(["task", "length"], sort=False)
    read = {line: set(own[same].itertuples(index=False, name=None)) for line, own in rows.groupby("line")}
    if len(cells) > 1 and len(set(map(frozenset, read.values()))) > 1:
        counts = sorted(set(map(len, read.values())))
        n = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
        warnings.append(
            f"the lines have read {n} questions, not all the same: scores over all lengths or tasks do not compare"
        )
    for (task, length), cell in cells:
        of_lines = {line: set(own[same].itertuples(index=False, name=None)) for line, own in cell.groupby("line")}
        first, *others = (of_lines[line] for line in cell["line"].unique())
        if any(not (own <= first or first <= own) for own in others):
            both = len(first.intersection(*others))
            warnings.append(
                f"{task} at {length}: the lines have read different questions, {both:,} of them in common; compare "
                "them by the paired differences alone, or evaluate all on the same data"
            )
    return warnings


def _evaluated(folder: Path) -> pd.DataFrame:
    """Return the rows of a folder of evaluations, as they were saved."""
    if not folder.is_dir():
        what = f"no folder {folder}"
        if folder.exists():
            what = f"{folder} is a file"
        raise MissingFile(f"{what}; give {_FOLDERS}")
    try:
        return read_rows(folder)
    except FileNotFoundError as none:
        raise MissingFile(f"no results in {folder}; give {_FOLDERS}") from none
