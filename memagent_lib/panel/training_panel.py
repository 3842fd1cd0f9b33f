"""The live panel: widgets that display a run's files, and a thread that reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ipywidgets as w
from markupsafe import Markup

from memagent_lib.evaluation import Result
from memagent_lib.pages import SavedCopy
from memagent_lib.panel import progress as page
from memagent_lib.panel.progress import Follower, Progress
from memagent_lib.rl import RunFolder, TrainingRun, TrainingState

POLL_S = 1.0
RESUMABLE = (TrainingState.STOPPED, TrainingState.FAILED, TrainingState.DIED)
LIVE = "mt-live"


class TrainingPanel(w.VBox):
    """The widgets, and the thread that updates them.

    Below the widgets a notebook has a page of the same state, which appears only where the widgets cannot: in a
    converted copy, and without a kernel.
    """

    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self.folder = folder
        self.follower = Follower(folder)
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self.doing = ""
        self.listed: tuple[Result, ...] = ()
        self.copy: SavedCopy | None = None
        self.drawn: object = None
        self.head = w.HTML()
        self.curves = w.HTML()
        self.detail = w.HTML(layout=w.Layout(flex="1 1 0", min_width="0", overflow="auto"))
        whole = w.Layout(flex="0 0 auto")  # a long message beside the buttons would cut their labels
        self.stop = w.Button(
            description="Stop", icon="stop", tooltip="End after this step, with a checkpoint", layout=whole
        )
        self.resume = w.Button(
            description="Resume", icon="play", tooltip="Continue from the last checkpoint", layout=whole
        )
        self.message = w.Label()
        self.list = w.Select(rows=9, layout=w.Layout(width="270px", flex="0 0 auto"))
        buttons = w.HBox([self.stop, self.resume, self.message])
        self.children = [self.head, buttons, self.curves, w.HBox([self.list, self.detail])]
        self.add_class(LIVE)
        buttons.add_class("mt-buttons")
        self.stop.on_click(lambda _: self._do("stopping", partial(TrainingRun(folder).stop, until_resumed=True)))
        self.resume.on_click(lambda _: self._do("resuming", TrainingRun(folder).resume))
        # The callback must not take the lock: refresh has it when it sets the index, which calls the callback.
        self.list.observe(lambda _: self._update_rollout(), "index")
        self.refresh()
        threading.Thread(target=self._follow, name=f"panel of {folder.path.name}", daemon=True).start()

    def refresh(self) -> None:
        """Read the run's files and update the widgets; a value that has not changed is not sent to the browser."""
        with self.lock:  # the thread and a click may both get here
            self._update(self.follower.look())

    def close(self) -> None:
        """Close the widgets and stop following the run, which itself continues."""
        self.closed.set()
        super().close()

    def _ipython_display_(self) -> None:
        with self.lock:
            self.copy = SavedCopy(page.page_of(self.follower.look()), LIVE, self._repr_mimebundle_(), {})

    def _update(self, progress: Progress) -> None:
        state = progress.status.state
        self.head.value = page.render("panel/run.html", head=page.head(progress), curves="", rollouts=())
        drawn = progress.points
        if self.drawn != drawn:
            self.drawn = drawn
            self.curves.value = page.curves(progress)
        self.stop.disabled = state.over or progress.stopping or bool(self.doing)
        self.resume.disabled = state not in RESUMABLE or bool(self.doing)
        chosen = self._chosen()
        self.listed = progress.rollouts
        labels = tuple(map(page.label, self.listed))
        if labels != self.list.options:
            self.list.options = labels
            if chosen in self.listed:  # else the first one is selected
                self.list.index = self.listed.index(chosen)
        self._update_rollout()
        at = (state, progress.status.step)
        if self.copy and self.copy.is_due(at):
            self.copy.update(page.page_of(progress), at)

    def _chosen(self) -> Result | None:
        index = self.list.index
        return self.listed[index] if index is not None and index < len(self.listed) else None

    def _update_rollout(self) -> None:
        chosen = self._chosen()
        self.detail.value = "" if chosen is None else f'<div class="mt">{page.rollout(chosen)}</div>'

    def _follow(self) -> None:
        while not self.closed.wait(POLL_S):
            try:
                self.refresh()
            except FileNotFoundError as failure:  # the run's folder was removed, and may be created again
                self.head.value = Markup("<p>{}</p>").format(failure)

    def _do(self, doing: str, action: Callable[[], object]) -> None:
        """Run ``action`` in its own thread, because stopping a run waits for the end of a step."""

        def work() -> None:
            try:
                action()
                self.message.value = ""
            except Exception as failure:  # a thread has no caller to raise to; the panel displays it
                self.message.value = f"{doing} failed: {failure}"
            finally:
                self.doing = ""
                self.refresh()

        self.doing = doing
        self.message.value = f"{doing} …"
        self.refresh()
        threading.Thread(target=work, name=doing, daemon=True).start()


def panel_of(folder: RunFolder) -> TrainingPanel:
    """Return the open panel of a folder, or a new one: two panels of a run would be two threads and two selections."""
    panel = _panels.get(folder.path)
    if panel is None or panel.closed.is_set():
        panel = _panels[folder.path] = TrainingPanel(folder)
    return panel


_panels: dict[Path, TrainingPanel] = {}
