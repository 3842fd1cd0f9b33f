"""The leaderboard as a page that sorts and filters without a network, and as CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from memagent_lib.evaluation import Rate, amount, sample_size
from memagent_lib.inspector.static_pages import SAVE_TEXT
from memagent_lib.pages import Page, render
from memagent_lib.paths import absolute, write_atomically
from memagent_lib.tracking import different_kinds

FORMS = (".html", ".csv", ".tex")
_WORDS = {
    "chunks": "length",
    "scored": "n",
    "seconds": "seconds, median",
    "seconds_95": "seconds, 95 %",
    "gflops": "GFLOPs",
    "run_id": "run",
}
_SHARES = ("capture", "retention")
_COUNTS = ("chunks", "failed")
_IN_OTHERS = ("low", "high", "scored_documents", "unclear")
"""Columns whose values are in the cells of others: the accuracy's, and n's."""
_AMOUNTS = ("tokens", "turns", "seconds", "seconds_95", "gflops")


def leaderboard_page(board: pd.DataFrame) -> Page:
    """Return the page of a leaderboard (:func:`memagent_lib.tracking.leaderboard`)."""
    # Empty columns, such as settings that nowhere differ, would only widen the page.
    filled = [name for name in board.columns if board[name].notna().any() and (board[name] != "").any()]
    columns = [name for name in filled if name not in _IN_OTHERS]
    rows = [[_cell(name, row) for name in columns] for row in board.to_dict("records")]
    warnings = different_kinds(board)
    without = board.attrs.get("without_rows", [])
    if without:
        warnings.append(f"not listed, because they have no table of rows: the runs {', '.join(without)}")
    # The page saves the cells of the CSV file, which has more columns and digits than it displays.
    saved = list(csv.reader(io.StringIO(board.to_csv(index=False), newline="")))
    data = json.dumps({"columns": [_WORDS.get(name, name) for name in columns], "rows": rows, "csv": saved})
    values = {"warnings": warnings, "data": Markup(data.replace("<", "\\u003c")), "save_text": Markup(SAVE_TEXT)}
    body = render("inspector/leaderboard.html", **values)
    return Page("Leaderboard", body)


def save_leaderboard(board: pd.DataFrame, path: str | Path) -> Path:
    """Write a leaderboard as the page, CSV or LaTeX table that the suffix of ``path`` names; return the path.

    CSV has the numbers as they are; LaTeX the words of the page.
    """
    path = require_form(path)
    if path.suffix == ".html":
        return leaderboard_page(board).save(path)
    if path.suffix == ".csv":
        return write_atomically(path, board.to_csv(index=False))
    columns = [name for name in board.columns if name not in (*_IN_OTHERS, "run_id", "started")]
    words = [[_cell(name, row)[1] for name in columns] for row in board.to_dict("records")]
    table = pd.DataFrame(words, columns=[_WORDS.get(name, name) for name in columns])
    return write_atomically(path, table.to_latex(index=False, escape=True))


def require_form(path: str | Path) -> Path:
    """Return the absolute path; raise ``ValueError`` if its suffix is none of :data:`FORMS`."""
    path = absolute(path)
    if path.suffix not in FORMS:
        raise ValueError(f"a leaderboard is written as {', '.join(FORMS)}, by the file's suffix; got {path.name!r}")
    return path


def _cell(name: str, row: dict[str, Any]) -> tuple[float | str, str]:
    """Return the value by which a cell sorts, and its text."""
    value = row[name]
    if value is None or pd.isna(value):
        return "", ""
    if name == "accuracy":
        return float(value), Rate.of(row).percent
    if name == "scored":
        size = sample_size(value, row["scored_documents"])
        return float(value), f"{size}, {row['unclear']:,} unclear" if row["unclear"] else size
    if name in _SHARES:
        return float(value), f"{100 * value:.1f} %"
    if name in _COUNTS:
        return float(value), f"{int(value):,}"
    if name in _AMOUNTS:
        return float(value), amount(value)
    if isinstance(value, pd.Timestamp):
        text = f"{value:%Y-%m-%d %H:%M}"
        return text, text
    return str(value), str(value)
