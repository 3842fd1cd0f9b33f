"""Look into evaluations: what was read, what was remembered, what changed, and what became of the evidence.

:func:`show` opens the interactive inspector on a run or on results. :func:`to_html` turns it into a page that needs no
kernel. :class:`EvaluationReport` is a page of all numbers with links to the readings behind them, and
:func:`leaderboard_page` one of all evaluations. Text from documents,
questions and models is always escaped, never markup. This package depends on results and runs, not on running models.
"""

from memagent_lib.inspector.evaluation_report import EvaluationReport
from memagent_lib.inspector.leaderboard_page import leaderboard_page, require_form, save_leaderboard
from memagent_lib.inspector.readings import Readings
from memagent_lib.inspector.static_pages import document, to_html
from memagent_lib.inspector.views import InspectorError, show

__all__ = [
    "EvaluationReport",
    "InspectorError",
    "Readings",
    "document",
    "leaderboard_page",
    "require_form",
    "save_leaderboard",
    "show",
    "to_html",
]
