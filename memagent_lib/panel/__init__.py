"""Start a training run, attach to one, and watch it. The run is detached and outlives the process that watches it.

:func:`show` returns the live panel for a notebook, and :func:`report` the same as a page that needs no kernel. Both
read only a run's files.
"""

from memagent_lib.panel.progress import outcome, report
from memagent_lib.panel.run_access import begin, curve, load_recipe, log_training, settle, show, watch
from memagent_lib.rl import attach

__all__ = [
    "attach",
    "begin",
    "curve",
    "load_recipe",
    "log_training",
    "outcome",
    "report",
    "settle",
    "show",
    "watch",
]
