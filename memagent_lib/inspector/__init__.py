"""Looking into memories: what was read, what was remembered, what changed, where the evidence went.

:func:`show` opens the interactive inspector on a run or on results; ``to_html`` makes a page
that needs no kernel. Text from documents, questions and models is data here: always escaped, never markup. Knows
results; knows no model.
"""

from memagent_lib.inspector.evaluation_report import EvaluationReport
from memagent_lib.inspector.pages import document, to_html
from memagent_lib.inspector.readings import Readings
from memagent_lib.inspector.views import InspectorError, show

__all__ = ["EvaluationReport", "InspectorError", "Readings", "document", "show", "to_html"]
