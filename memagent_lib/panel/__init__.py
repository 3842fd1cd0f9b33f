"""Start a training run, attach to one, and watch it. The run is detached and outlives the process that watches it.

:func:`show` returns the live panel for a notebook, and :func:`report` the same as a page that needs no kernel. Both
read only a run's files.
"""

from memagent_lib.panel.live import settle, show
from memagent_lib.panel.progress_page import report
from memagent_lib.panel.run_access import attach, begin, curve, load_recipe, log_training, outcome, resume, watch

__all__ = [
    "attach",
    "begin",
    "curve",
    "load_recipe",
    "log_training",
    "outcome",
    "report",
    "resume",
    "settle",
    "show",
    "watch",
]
