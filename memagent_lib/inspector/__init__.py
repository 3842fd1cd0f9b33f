"""Look into evaluations: what was read, what was remembered, what changed, and what became of the evidence.

:func:`show` opens the interactive inspector on a run or on results. :func:`to_html` turns it into a page that needs no
kernel. :func:`save_report` writes a page of all numbers of a folder with the readings behind them, and
:func:`save_leaderboard` one of all evaluations. Text from documents, questions and models is always escaped, never
markup. This package depends on results and runs, not on running models.
"""

from memagent_lib.inspector.readings import Readings
from memagent_lib.inspector.reports import (
    board_table,
    evaluations_in,
    findings,
    notes,
    readings_of,
    save_leaderboard,
    save_report,
    score_table,
    tabulated,
)
from memagent_lib.inspector.static_pages import document, introduction, to_html
from memagent_lib.inspector.views import InspectorError, show

__all__ = [
    "InspectorError",
    "Readings",
    "board_table",
    "document",
    "evaluations_in",
    "findings",
    "introduction",
    "notes",
    "readings_of",
    "save_leaderboard",
    "save_report",
    "score_table",
    "show",
    "tabulated",
    "to_html",
]
