"""The live panel: widgets over a run's files. The run knows nothing of it and outlives tab and kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.pages import Page
from memagent_lib.panel import progress_page as page
from memagent_lib.panel.progress import Follower, Progress, kept_config
from memagent_lib.panel.run_access import attach, watch
from memagent_lib.processes import in_jupyter
from memagent_lib.rl import Recipe, RunFolder, TrainingRun, TrainingState, TrainingStatus, launch

if TYPE_CHECKING:
    from ipywidgets import VBox

POLL_S = 1.0
RESUMABLE = (TrainingState.STOPPED, TrainingState.FAILED, TrainingState.DIED)


def show(run: TrainingRun | str | Path) -> VBox | Page:
    """The panel of a run, or of the run in a folder; the same one however often it is shown.

    Where nobody looks on (papermill executes the notebook) it is the run as it stands: widgets do not outlive their
    kernel.
    """
    run = run if isinstance(run, TrainingRun) else attach(run)
    return _panel(run.folder.path).box if in_jupyter() else page.report(run)


def settle(run: TrainingRun, stop_on_interrupt: bool = False) -> TrainingStatus:
    """Wait for the run's end where nobody looks on; in Jupyter the status now, because a tab that is opened again
    shows its widgets only once the kernel is free. See :func:`memagent_lib.panel.watch`.
    """
    return run.status() if in_jupyter() else watch(run, stop_on_interrupt)


@cache
def _panel(folder: Path) -> TrainingPanel:
    return TrainingPanel(RunFolder(folder))


class TrainingPanel:
    """Widgets and the thread that keeps them true. A widget is touched only when what it shows has changed."""

    def __init__(self, folder: RunFolder) -> None:
        import ipywidgets as w

        self.folder, self.follower = folder, Follower(folder)
        self.lock, self.closed = threading.Lock(), threading.Event()
        self.doing, self.shown = "", ()
        self.head, self.curves = w.HTML(), w.HTML()
        self.detail = w.HTML(layout=w.Layout(flex="1 1 0", min_width="0", overflow="auto"))
        ends = "End after the step it is in, with a checkpoint; it can be resumed"
        self.stop = w.Button(description="Stop", icon="stop", tooltip=ends)
        continues = "Go on from the last checkpoint, with the same settings"
        self.resume = w.Button(description="Resume", icon="play", tooltip=continues)
        self.said = w.HTML(layout=w.Layout(width="auto"))
        self.list = w.Select(rows=9, layout=w.Layout(width="270px", flex="0 0 auto"))
        title = w.HTML(f"<b>{page.ROLLOUTS_TITLE}</b>")
        self.rollouts = w.VBox([title, w.HBox([self.list, self.detail])])
        self.box = w.VBox([self.head, w.HBox([self.stop, self.resume, self.said]), self.curves, self.rollouts])
        self.stop.on_click(lambda _: self._do("stopping", "stopped", TrainingRun(folder).stop))
        self.resume.on_click(lambda _: self._do("resuming", "resumed", self._resume))
        self.list.observe(lambda _: self._show_rollout(), "index")
        self.refresh()
        threading.Thread(target=self._keep_true, name=f"panel of {folder.path.name}", daemon=True).start()

    def refresh(self) -> None:
        """Read the run's files and show what has changed."""
        with self.lock:
            self._show(self.follower.look())

    def close(self) -> None:
        """Follow the run no more; the run itself goes on."""
        self.closed.set()
        self.box.close()

    def _show(self, progress: Progress) -> None:
        state = progress.status.state
        _set(self.head, "value", page.styled(page.head(progress)))
        _set(self.curves, "value", page.styled(page.curves(progress)))
        _set(self.stop, "disabled", state.over or progress.stopping or bool(self.doing))
        _set(self.resume, "disabled", state not in RESUMABLE or bool(self.doing))
        _set(self.rollouts.layout, "display", None if progress.rollouts else "none")
        index = self.list.index
        chosen = self.shown[index] if index is not None else None
        self.shown = progress.rollouts
        names = tuple(map(page.label, self.shown))
        if names != self.list.options:
            self.list.options = names
            self.list.index = self.shown.index(chosen) if chosen in self.shown else 0
        self._show_rollout()

    def _show_rollout(self) -> None:
        chosen = [] if self.list.index is None else self.shown[self.list.index :][:1]
        _set(self.detail, "value", "".join(page.styled(page.rollout(kept)) for kept in chosen))

    def _keep_true(self) -> None:
        gone = False
        while not self.closed.wait(POLL_S):
            try:
                self.refresh()
                if gone:
                    self._say("")
                gone = False
            except FileNotFoundError as failure:  # someone removed the run's folder, and may make it again
                self._say(str(failure))
                gone = True

    def _resume(self) -> None:
        launch(Recipe.from_tables(kept_config(self.folder)), self.folder.path, resume=True)

    def _do(self, doing: str, done: str, action: Callable[[], object]) -> None:
        """In a thread of its own: stopping waits for the end of a step."""

        def work() -> None:
            try:
                action()
                self._say("")
            except Exception as failure:  # whoever clicked must see it, and a thread has nobody to raise it to
                self._say(f"not {done}: {failure}")
            finally:
                self.doing = ""
                self.refresh()

        self.doing = doing
        self._say(f"{doing} …")
        self.refresh()
        threading.Thread(target=work, name=doing, daemon=True).start()

    def _say(self, text: str) -> None:
        _set(self.said, "value", page.styled(text) if text else "")


def _set(widget: object, name: str, value: object) -> None:
    if getattr(widget, name) != value:
        setattr(widget, name, value)
