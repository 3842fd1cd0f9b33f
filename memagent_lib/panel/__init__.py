"""Start a training run, attach to it and watch it; the run is detached and outlives whoever watches.

:func:`show` is the live panel of a notebook, :func:`report` the same as a page that needs no kernel. Knows a run's
files. Knows no trainer.
"""

from memagent_lib.panel.live import settle, show
from memagent_lib.panel.progress_page import report
from memagent_lib.panel.run_access import attach, begin, curve, load_recipe, log_training, outcome, watch

__all__ = ["attach", "begin", "curve", "load_recipe", "log_training", "outcome", "report", "settle", "show", "watch"]
