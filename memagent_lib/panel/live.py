"""A run in a notebook: the live panel in Jupyter, a page elsewhere. The run does not depend on either."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.pages import Page
from memagent_lib.panel.progress_page import report
from memagent_lib.panel.run_access import attach, watch
from memagent_lib.rl import TrainingRun, TrainingStatus
from memagent_lib.system import in_jupyter

if TYPE_CHECKING:
    from memagent_lib.panel.training_panel import TrainingPanel


def show(run: TrainingRun | str | Path) -> TrainingPanel | Page:
    """Return the panel of a run, or of the run in a folder. Until it is closed, every call returns the same panel.

    Outside Jupyter, for example when papermill executes the notebook, a page of the run's current state is returned
    instead, because widgets do not outlive their kernel.
    """
    if not isinstance(run, TrainingRun):
        run = attach(run)
    if not in_jupyter():
        return report(run)
    from memagent_lib.panel.training_panel import panel_of  # loads ipywidgets, which a page does not need

    return panel_of(run.folder)


def settle(run: TrainingRun, stop_on_interrupt: bool = False) -> TrainingStatus:
    """Wait with :func:`watch` until the run is over and return its status; in Jupyter, return the status at once.

    In Jupyter a cell must not wait, because a reopened tab displays its widgets only while the kernel is idle.
    """
    return run.status() if in_jupyter() else watch(run, stop_on_interrupt)
