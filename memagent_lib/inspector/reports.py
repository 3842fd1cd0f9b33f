"""Pages of evaluations: the notebook ``report.ipynb`` about a folder, and the leaderboard of a store as a table."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pandas as pd
from markupsafe import Markup

from memagent_lib.evaluation import (
    ALL_TASKS,
    Rate,
    Result,
    failure_reasons,
    in_order,
    keyed,
    mixtures,
    question_columns,
    rate_cell,
    read_rows,
    sample_size,
    table,
)
from memagent_lib.inspector.static_pages import introduction
from memagent_lib.pages import Page, render, style
from memagent_lib.paths import absolute, write_atomically
from memagent_lib.sweeps import gather_sweep, is_sweep, store_of_sweep, sweep_frame
from memagent_lib.tracking import Experiment, TrackingError, load_readings

REPORT = Path(__file__).with_name("report.ipynb")
MOST_REASONS = 10
_KIND = ["task", "file", "chunks", "documents", "judge", "code"]
"""Columns of a leaderboard in which rows must agree before their scores compare."""


class Evaluations(NamedTuple):
    """Keyed result rows of a folder, the store that has their runs, and warnings to read before any number."""

    rows: pd.DataFrame
    experiment: Experiment
    warnings: list[str]


def evaluations_in(folder: str | Path, tracking: str = "", first: str = "") -> Evaluations:
    """Return the rows of a sweep, or of a folder that ``memagent evaluate`` or 03_evaluate has filled.

    The policy ``first`` comes first (default: the first one found). ``tracking`` is the store that has the runs
    (default: the sweep's own, or ``runs``).
    """
    path = absolute(folder)
    warnings: list[str] = []
    if is_sweep(path):
        tracking = tracking or store_of_sweep(path)
        saved = gather_sweep(path, tracking=tracking)
        points = sweep_frame(path)
        unfinished = points[points["status"] != "finished"]
        warnings = [f"missing: {p.stage}, {p.point}: {p.status}" for p in unfinished.itertuples()]
    else:
        saved = read_rows(path)
    rows = in_order(keyed(saved), [first] if first else [])
    same = question_columns(rows)
    read = {line: frozenset(own[same].itertuples(index=False, name=None)) for line, own in rows.groupby("line")}
    warnings += [*mixtures(saved), *failure_reasons(rows)[:MOST_REASONS]]
    if same and len(set(read.values())) > 1:
        numbers = ", ".join(f"{line} {len(questions):,}" for line, questions in read.items())
        warnings.append(f"the lines have read different questions ({numbers}): only their paired differences compare")
    return Evaluations(rows, Experiment.open(tracking or "runs"), warnings)


def readings_of(evaluations: Evaluations) -> tuple[dict[str, list[Result]], str]:
    """Return the readings behind the rows by policy, and why all or some are missing here, or ""."""
    try:
        found = load_readings(evaluations.experiment, evaluations.rows)
        saved, read = sum(map(len, found.values())), int(evaluations.rows["error"].isna().sum())
        part = (
            f"{saved:,} of {read:,} readings are saved, wrong and right ones in turn: scores and bars here are of those"
        )
        return found, part if saved < read else ""
    except TrackingError as failure:  # rows may be copied from another machine without its store
        return {}, f"the readings are missing: {failure}; --tracking STORE names the store that has them"


def save_report(folder: str | Path, out: str | Path, tracking: str = "", first: str = "") -> Path:
    """Run ``report.ipynb`` about a folder with papermill, write its outputs as one page, and return its path."""
    import nbformat
    from nbconvert import HTMLExporter
    from papermill import execute_notebook

    evaluations_in(folder, tracking, first)  # a wrong folder fails here, with its own error
    parameters = {"folder": str(absolute(folder)), "tracking": tracking, "first": first}
    with tempfile.TemporaryDirectory() as executed:
        path = Path(executed) / REPORT.name
        execute_notebook(REPORT, path, parameters, progress_bar=False, kernel_name="python3")
        book = nbformat.read(path, 4)
    exporter = HTMLExporter(template_name="basic", exclude_input=True, exclude_output_prompt=True)
    body, _ = exporter.from_notebook_node(book)
    return _page(f"Report: {absolute(folder).name}", Markup(body)).save(out)


def notes(texts: Sequence[str]) -> Page:
    """Return texts as a piece of a page: the first one, and the others folded below it."""
    return Page("", render("inspector/notes.html", texts=texts))


def findings(differences: pd.DataFrame, evidence: pd.DataFrame) -> Page:
    """Return in sentences what changed between lines with a memory, and where evidence was lost.

    Takes the rows of :func:`memagent_lib.evaluation.against`, and the means of ``capture`` and ``retention`` by
    ``line`` and ``chunks``. The shortest and the longest documents are named.
    """
    pairs = [pair.to_dict("records") for _, pair in differences.groupby(["right", "left"], sort=False)]
    lines = [line.sort_values("chunks").to_dict("records") for _, line in evidence.groupby("line", sort=False)]
    return Page("", render("inspector/findings.html", pairs=pairs, lines=lines))


def tabulated(frame: pd.DataFrame, by: Sequence[str] = ()) -> Page:
    """Return a table as a piece of a page, without its empty columns.

    Rows that follow each other and agree in the columns ``by`` share a heading with these values.
    """
    return Page("", render("inspector/table.html", names=list(frame), rows=frame.to_dict("records"), by=by))


def score_table(rows: pd.DataFrame) -> Page:
    """Return the table of scores; each is a link to its readings in the inspector on the same page."""

    def linked(row: Mapping[str, Any]) -> str:
        view = {
            "policy": ", ".join(filter(None, (row["policy"], row.get("varied")))),
            "reader": row["reader"],
            "task": row.get("task", ALL_TASKS).replace(ALL_TASKS, ""),
            "length": f"{row['chunks']:.0f}" if row["chunks"] > 0 else "no set length",
        }
        return Markup('<a href="#?{}">{}</a>').format(urlencode(view), rate_cell(row))

    return tabulated(table(rows, linked), ["task"])


def board_table(board: pd.DataFrame) -> Page:
    """Return a leaderboard (:func:`memagent_lib.tracking.leaderboard`), its rows grouped by what compares.

    Rows of one group have read the same questions, and have the same judge and version of the code.
    """
    records = board.to_dict("records")
    words = board.assign(
        accuracy=[Rate.of(row).percent for row in records],
        scored=[sample_size(row["scored"], row["scored_documents"]) for row in records],
    )
    words = words.rename(columns={"scored": "n"}).drop(columns=["low", "high", "scored_documents"])
    return tabulated(words, _KIND)


def save_leaderboard(board: pd.DataFrame, path: str | Path) -> Path:
    """Write a leaderboard as a page with its numbers in words, or as they are if ``path`` ends in ``.csv``."""
    path = absolute(path)
    if path.suffix == ".csv":
        return write_atomically(path, board.to_csv(index=False))
    if path.suffix != ".html":
        raise ValueError(f"a leaderboard is written as .html or .csv, by the file's suffix; got {path.name!r}")
    without = board.attrs.get("without_rows", [])
    left_out = [f"not listed, because they have no table of rows: the runs {', '.join(without)}"] if without else []
    pieces = [introduction(board.to_dict("records")), notes(left_out), board_table(board)]
    body = render("inspector/leaderboard.html", pieces=[Markup(piece.body) for piece in pieces])
    return _page("Leaderboard", body).save(path)


def _page(title: str, body: Markup) -> Page:
    sheet = style("inspector/report.css")
    return Page(title, Markup("<style>{}</style><div class='ma-base mr'>{}</div>").format(Markup(sheet), body))
