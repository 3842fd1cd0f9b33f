"""Pages of evaluations: the notebook ``report.ipynb`` about a folder, and the leaderboard of a store as a table."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup

from memagent_lib.evaluation import (
    Rate,
    Result,
    failure_reasons,
    in_order,
    keyed,
    mixtures,
    question_columns,
    read_rows,
    sample_size,
)
from memagent_lib.inspector.static_pages import introduction
from memagent_lib.pages import Page, style
from memagent_lib.paths import absolute, write_atomically
from memagent_lib.sweeps import gather_sweep, is_sweep, store_of_sweep, sweep_frame
from memagent_lib.tracking import Experiment, TrackingError, different_kinds, load_readings

REPORT = Path(__file__).with_name("report.ipynb")
MOST_REASONS = 10


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
        warnings.append("the lines have read different questions: only their paired differences compare")
    return Evaluations(rows, Experiment.open(tracking or "runs"), warnings)


def readings_of(evaluations: Evaluations) -> tuple[dict[str, list[Result]], str]:
    """Return the readings behind the rows by policy, and why they are missing here, or ""."""
    try:
        return load_readings(evaluations.experiment, evaluations.rows), ""
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


def notes(texts: list[str]) -> Page:
    """Return texts as a piece of a page, each in a paragraph of its own."""
    return Page("", Markup("").join(Markup('<p class="ma-warning">{}</p>').format(text) for text in texts))


def board_table(board: pd.DataFrame) -> pd.DataFrame:
    """Return a leaderboard (:func:`memagent_lib.tracking.leaderboard`) in words, without its empty columns."""
    records = board.to_dict("records")
    words = board.drop(columns=["low", "high", "scored_documents"]).rename(columns={"scored": "n"})
    words["accuracy"] = [Rate.of(row).percent for row in records]
    words["n"] = [sample_size(row["scored"], row["scored_documents"]) for row in records]
    words["unclear"] = words["unclear"].replace(0, "")
    words = words.dropna(axis="columns", how="all")
    return words.loc[:, (words != "").any()]


def save_leaderboard(board: pd.DataFrame, path: str | Path) -> Path:
    """Write a leaderboard as a page with its numbers in words, or as they are if ``path`` ends in ``.csv``."""
    path = absolute(path)
    if path.suffix == ".csv":
        return write_atomically(path, board.to_csv(index=False))
    if path.suffix != ".html":
        raise ValueError(f"a leaderboard is written as .html or .csv, by the file's suffix; got {path.name!r}")
    without = board.attrs.get("without_rows", [])
    left_out = [f"not listed, because they have no table of rows: the runs {', '.join(without)}"] if without else []
    head = introduction(board.to_dict("records")).body + notes([*different_kinds(board), *left_out]).body
    rows = board_table(board).to_html(index=False, na_rep="", float_format="{:,.4g}".format, border=0)
    return _page("Leaderboard", Markup("<h1>Leaderboard</h1>{}{}").format(Markup(head), Markup(rows))).save(path)


def _page(title: str, body: Markup) -> Page:
    sheet = style("inspector/report.css")
    return Page(title, Markup("<style>{}</style><div class='ma-base mr'>{}</div>").format(Markup(sheet), body))
