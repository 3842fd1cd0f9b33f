"""The live panel as widgets that display a run's files, and a thread that reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import ipywidgets as w

from memagent_lib.evaluation import Result
from memagent_lib.pages import SavedCopy
from memagent_lib.panel import progress_page as page
from memagent_lib.panel.progress import Follower, Progress
from memagent_lib.panel.run_access import resume
from memagent_lib.rl import RunFolder, TrainingRun, TrainingState

POLL_S = 1.0
RESUMABLE = (TrainingState.STOPPED, TrainingState.FAILED, TrainingState.DIED)
LIVE = "mt-live"


class TrainingPanel(w.VBox):
    """The widgets, and the thread that updates them.

    A widget is updated only if its value has changed, so that nothing flickers. Below the widgets a notebook has a page
    of the same state, which appears only where the widgets cannot: in a converted copy, and without a kernel.
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
        self.head = w.HTML()
        self.curves = w.HTML()
        self.detail = w.HTML(layout=w.Layout(flex="1 1 0", min_width="0", overflow="auto"))
        stop_tip = "End after the current step, with a checkpoint to resume from"
        whole = w.Layout(flex="0 0 auto")  # a long message beside the buttons would cut their labels
        self.stop = w.Button(description="Stop", icon="stop", tooltip=stop_tip, layout=whole)
        resume_tip = "Continue from the last checkpoint, with the same settings"
        self.resume = w.Button(description="Resume", icon="play", tooltip=resume_tip, layout=whole)
        self.message = w.HTML(layout=w.Layout(width="auto"))
        self.list = w.Select(rows=9, layout=w.Layout(width="270px", flex="0 0 auto"))
        title = w.HTML(f"<b>{page.ROLLOUTS_TITLE}</b>")
        self.rollouts = w.VBox([title, w.HBox([self.list, self.detail])])
        buttons = w.HBox([self.stop, self.resume, self.message])
        self.children = [self.head, buttons, self.curves, self.rollouts]
        self.add_class(LIVE)
        buttons.add_class("mt-buttons")
        self.stop.on_click(lambda _: self._do("stopping", "stopped", self._stop))
        self.resume.on_click(lambda _: self._do("resuming", "resumed", lambda: resume(TrainingRun(folder))))
        # The callback must not take the lock: refresh has it when it sets the index, which calls the callback.
        self.list.observe(lambda _: self._update_rollout(), "index")
        self.refresh()
        threading.Thread(target=self._follow, name=f"panel of {folder.path.name}", daemon=True).start()

    def refresh(self) -> None:
        """Read the run's files and update the widgets whose values have changed."""
        with self.lock:  # the thread and a click may both get here
            self._update(self.follower.look())

    def close(self) -> None:
        """Close the widgets and stop following the run, which itself continues."""
        self.closed.set()
        super().close()

    def _ipython_display_(self) -> None:
        with self.lock:
            self.copy = SavedCopy(page.frozen(self.follower.look()), LIVE, self._repr_mimebundle_(), {})

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
        at = (state, progress.status.step)
        if self.copy and self.copy.is_due(at):
            self.copy.update(page.frozen(progress), at)

    def _chosen(self) -> Result | None:
        index = self.list.index
        return self.listed[index] if index is not None and index < len(self.listed) else None

    def _update_rollout(self) -> None:
        chosen = self._chosen()
        _set(self.detail, "value", "" if chosen is None else page.styled(page.rollout(chosen)))

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

    def _stop(self) -> None:
        TrainingRun(self.folder).stop(until_resumed=True)

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
