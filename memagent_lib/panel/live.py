"""The live panel in a notebook: widgets that display a run's files. The run does not depend on the panel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.evaluation import Result
from memagent_lib.pages import Page
from memagent_lib.panel import progress_page as page
from memagent_lib.panel.progress import Follower, Progress, recorded_config
from memagent_lib.panel.run_access import attach, watch
from memagent_lib.processes import in_jupyter
from memagent_lib.rl import Recipe, RunFolder, TrainingRun, TrainingState, TrainingStatus, launch

if TYPE_CHECKING:
    from ipywidgets import VBox

POLL_S = 1.0
RESUMABLE = (TrainingState.STOPPED, TrainingState.FAILED, TrainingState.DIED)


def show(run: TrainingRun | str | Path) -> VBox | Page:
    """Return the panel of a run, or of the run in a folder. Every call for one folder returns the same panel.

    Outside Jupyter, for example when papermill executes the notebook, a page of the run's current state is returned
    instead, because widgets do not outlive their kernel.
    """
    if not isinstance(run, TrainingRun):
        run = attach(run)
    if in_jupyter():
        return _panel(run.folder.path).box
    return page.report(run)


def settle(run: TrainingRun, stop_on_interrupt: bool = False) -> TrainingStatus:
    """Wait with :func:`watch` until the run is over and return its status; in Jupyter, return the status at once.

    In Jupyter a cell must not wait, because a reopened tab displays its widgets only while the kernel is idle.
    """
    if in_jupyter():
        return run.status()
    return watch(run, stop_on_interrupt)


@cache  # two panels of one run would be two threads and two selections
def _panel(folder: Path) -> TrainingPanel:
    return TrainingPanel(RunFolder(folder))


class TrainingPanel:
    """The widgets, and the thread that updates them.

    A widget is updated only if its value has changed, so that nothing flickers.
    """

    def __init__(self, folder: RunFolder) -> None:
        import ipywidgets as w

        self.folder = folder
        self.follower = Follower(folder)
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self.doing = ""
        self.listed: tuple[Result, ...] = ()
        self.head = w.HTML()
        self.curves = w.HTML()
        self.detail = w.HTML(layout=w.Layout(flex="1 1 0", min_width="0", overflow="auto"))
        stop_tip = "End after the current step, with a checkpoint to resume from"
        self.stop = w.Button(description="Stop", icon="stop", tooltip=stop_tip)
        resume_tip = "Continue from the last checkpoint, with the same settings"
        self.resume = w.Button(description="Resume", icon="play", tooltip=resume_tip)
        self.message = w.HTML(layout=w.Layout(width="auto"))
        self.list = w.Select(rows=9, layout=w.Layout(width="270px", flex="0 0 auto"))
        title = w.HTML(f"<b>{page.ROLLOUTS_TITLE}</b>")
        self.rollouts = w.VBox([title, w.HBox([self.list, self.detail])])
        self.box = w.VBox([self.head, w.HBox([self.stop, self.resume, self.message]), self.curves, self.rollouts])
        self.stop.on_click(lambda _: self._do("stopping", "stopped", TrainingRun(folder).stop))
        self.resume.on_click(lambda _: self._do("resuming", "resumed", self._resume))
        # The callback must not take the lock: refresh has it when it sets the index, which calls the callback.
        self.list.observe(lambda _: self._update_rollout(), "index")
        self.refresh()
        # A daemon, so that the kernel can exit while a panel is open.
        threading.Thread(target=self._follow, name=f"panel of {folder.path.name}", daemon=True).start()

    def refresh(self) -> None:
        """Read the run's files and update the widgets whose values have changed."""
        with self.lock:  # the thread and a click may both get here
            self._update(self.follower.look())

    def close(self) -> None:
        """Close the widgets and stop following the run, which itself continues."""
        self.closed.set()
        self.box.close()

    def _update(self, progress: Progress) -> None:
        state = progress.status.state
        _set(self.head, "value", page.styled(page.head(progress)))
        _set(self.curves, "value", page.styled(page.curves(progress)))
        _set(self.stop, "disabled", state.over or progress.stopping or bool(self.doing))
        _set(self.resume, "disabled", state not in RESUMABLE or bool(self.doing))
        _set(self.rollouts.layout, "display", None if progress.rollouts else "none")
        chosen = self._chosen()
        self.listed = progress.rollouts
        labels = tuple(map(page.label, self.listed))
        if labels != self.list.options:
            self.list.options = labels
            self.list.index = self.listed.index(chosen) if chosen in self.listed else 0
        self._update_rollout()

    def _chosen(self) -> Result | None:
        index = self.list.index
        if index is not None and index < len(self.listed):
            return self.listed[index]
        return None

    def _update_rollout(self) -> None:
        chosen = self._chosen()
        detail = ""
        if chosen is not None:
            detail = page.styled(page.rollout(chosen))
        _set(self.detail, "value", detail)

    def _follow(self) -> None:
        gone = False
        while not self.closed.wait(POLL_S):
            try:
                self.refresh()
                if gone:
                    self._say("")
                gone = False
            except FileNotFoundError as failure:  # the run's folder was removed, and may be created again
                self._say(str(failure))
                gone = True

    def _resume(self) -> None:
        launch(Recipe.from_tables(recorded_config(self.folder)), self.folder.path, resume=True)

    def _do(self, doing: str, done: str, action: Callable[[], object]) -> None:
        """Run ``action`` in its own thread, because stopping a run waits for the end of a step."""

        def work() -> None:
            try:
                action()
                self._say("")
            except Exception as failure:  # a thread has no caller to raise to; the panel displays it
                self._say(f"not {done}: {failure}")
            finally:
                self.doing = ""
                self.refresh()

        self.doing = doing
        self._say(f"{doing} …")
        self.refresh()
        threading.Thread(target=work, name=doing, daemon=True).start()

    def _say(self, text: str) -> None:
        _set(self.message, "value", page.styled(text) if text else "")


def _set(widget: object, name: str, value: object) -> None:
    if getattr(widget, name) != value:
        setattr(widget, name, value)
