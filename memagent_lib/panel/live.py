"""A run in a notebook: the live panel in Jupyter, a page elsewhere. The run does not depend on either."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.pages import Page
from memagent_lib.panel import progress_page as page
from memagent_lib.panel.run_access import attach, watch
from memagent_lib.rl import RunFolder, TrainingRun, TrainingStatus
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
    if in_jupyter():
        return _panel(run.folder)
    return page.report(run)


def settle(run: TrainingRun, stop_on_interrupt: bool = False) -> TrainingStatus:
    """Wait with :func:`watch` until the run is over and return its status; in Jupyter, return the status at once.

    In Jupyter a cell must not wait, because a reopened tab displays its widgets only while the kernel is idle.
    """
    if in_jupyter():
        return run.status()
    return watch(run, stop_on_interrupt)


def _panel(folder: RunFolder) -> TrainingPanel:
    """Return the open panel of a folder, or a new one: two panels of a run would be two threads and two selections."""
    from memagent_lib.panel.training_panel import TrainingPanel  # loads ipywidgets, which a page does not need

    panel = _panels.get(folder.path)
    if panel is None or panel.closed.is_set():
        panel = _panels[folder.path] = TrainingPanel(folder)
    return panel


_panels: dict[Path, TrainingPanel] = {}
