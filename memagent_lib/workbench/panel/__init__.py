"""Attaching to training: a run is started detached, watched from its files, and goes on when whoever watches goes away.

``show`` is the live panel of a notebook, ``report`` the same as a page that needs no kernel.
"""

from memagent_lib.workbench.panel.attach import attach, begin, curve, load_recipe, log_training, watch
from memagent_lib.workbench.panel.live import settle, show
from memagent_lib.workbench.panel.training_page import report

__all__ = ["attach", "begin", "curve", "load_recipe", "log_training", "report", "settle", "show", "watch"]
