"""Attaching to training: a run is started detached, watched from its files, and continues when whoever watches goes
away.

``show`` is the live panel of a notebook, ``report`` the same as a page that needs no kernel. Knows a run's files; knows
no trainer.
"""

from memagent_lib.panel.live import settle, show
from memagent_lib.panel.progress_page import report
from memagent_lib.panel.run_access import attach, begin, curve, load_recipe, log_training, outcome, watch

__all__ = ["attach", "begin", "curve", "load_recipe", "log_training", "outcome", "report", "settle", "show", "watch"]
