"""The status of work that takes a while: one line in a terminal or a notebook, a line every 30 seconds in a log.

A notebook that papermill runs stays clean. This module does not depend on agents or runs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from memagent_lib.processes import in_jupyter

PATIENCE_S = 2.0
"""How long work may take before anything is displayed in a terminal or a notebook."""
LOG_EVERY_S = 30.0
_WIDEST_NOTE = 60
_one_line = threading.Lock()  # two lines in one terminal would overwrite each other


class StatusLine:
    """The progress of some work. ``total`` is in units, or ``None`` if it is not known.

    Units may be fractions, so that one long document is not "0 of 1" for an hour. If units differ in size, ``parts``
    has the number of units and the work of one by part, and the time left is that of the work. A note is the newest
    detail, such as the last line of a memory. Any thread may call :meth:`advance`.
    """

    def __init__(
        self,
        what: str,
        total: float | None = None,
        unit: str = "",
        parts: Mapping[Hashable, tuple[float, float]] | None = None,
    ) -> None:
        self.what = what
        self.total = total
        self.unit = unit
        self.done = 0.0
        self.note = ""
        self._work_of = {part: work for part, (_, work) in (parts or {}).items()}
        self._work = sum(units * work for units, work in (parts or {}).values())
        self._worked = 0.0
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def advance(self, units: float = 1.0, note: str = "", part: Hashable = None) -> None:
        """Count some more units of a ``part`` as done. An empty ``note`` leaves the previous note."""
        with self._lock:
            self.done += units
            self._worked += units * self._work_of.get(part, 0.0)
            self.note = note or self.note

    def line(self, seconds: float | None = None) -> str:
        """Return the line: the work, how much of it is done, the time left and taken, and the note.

        ``seconds`` is the time taken, by default that of the clock.
        """
        if seconds is None:
            seconds = self._seconds()
        parts = [self._done()]
        done, total = (self._worked, self._work) if self._work else (self.done, self.total or 0.0)
        if 0 < done < total:
            parts.append(f"{clock(seconds / done * (total - done))} left")
        parts.append(f"{clock(seconds)} so far")
        note = " ".join(self.note.split())
        if len(note) > _WIDEST_NOTE:
            note = "… " + note[-_WIDEST_NOTE:]  # the end: a memory's newest words are usually there
        return ", ".join(parts) + (f" · {note}" if note else "")

    def last_line(self, seconds: float | None = None) -> str:
        """Return the line after the work: how much of it was done, and how long that took."""
        if seconds is None:
            seconds = self._seconds()
        return f"{self._done()}, took {clock(seconds)}"

    def _done(self) -> str:
        if not self.unit:
            return self.what
        done = f"{self.done:,.1f}".removesuffix(".0")
        # An estimated total may turn out too small, and "16 of 15" is no progress.
        of = "" if self.total is None else f" of {max(self.total, self.done):,.0f}"
        return f"{self.what}: {done}{of} {self.unit}"

    def _seconds(self) -> float:
        return time.monotonic() - self._began


@contextmanager
def status_line(
    what: str,
    total: float | None = None,
    unit: str = "",
    wanted: bool = True,
    parts: Mapping[Hashable, tuple[float, float]] | None = None,
) -> Iterator[StatusLine]:
    """Display the block's progress as :meth:`StatusLine.line`, unless it ends before :data:`PATIENCE_S`.

    In a log, the first line appears after :data:`LOG_EVERY_S`. Nothing is displayed under papermill, inside another
    such block, or if not ``wanted``. Without a unit, the line says what the block waits for: ``loading trained with
    vllm, 0:05 so far``.
    """
    measured = StatusLine(what, total, unit, parts)
    display = _display() if wanted else None
    if display is None or not _one_line.acquire(blocking=False):
        yield measured
        return
    try:
        with _displayed(measured, display):
            yield measured
    finally:
        _one_line.release()


@contextmanager
def _displayed(measured: StatusLine, display: _Display) -> Iterator[None]:
    ended = threading.Event()
    shared = (measured, display, ended)
    thread = threading.Thread(target=_keep_displaying, args=shared, name=measured.what, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        display.end(measured.last_line())


def _keep_displaying(measured: StatusLine, display: _Display, ended: threading.Event) -> None:
    pause = max(PATIENCE_S, display.every_s)
    while not ended.wait(pause):
        display.show(measured.line())
        pause = display.every_s


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, ``1:05``, or with hours, ``2:00:00``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _display() -> _Display | None:
    """Return the display for this process: a notebook, a terminal or a log; ``None`` under papermill."""
    if "ipykernel" in sys.modules:
        return _Notebook() if in_jupyter() else None
    return _Terminal() if sys.stderr.isatty() else _Log()


class _Display:
    """Displays one line and replaces it, at most every ``every_s`` seconds."""

    every_s = 1.0

    def __init__(self) -> None:
        self.target: Any = None

    def show(self, line: str) -> None:
        raise NotImplementedError

    def end(self, line: str) -> None:
        """Display the last line if there was one before."""
        if self.target is not None:
            self.show(line)


class _Notebook(_Display):
    """A text output that is replaced, because a saved copy preserves text and not widgets."""

    def show(self, line: str) -> None:
        from IPython.display import display

        data = {"text/plain": line}
        if self.target is None:
            self.target = display(data, raw=True, display_id=True)
        else:
            self.target.update(data, raw=True)


class _Terminal(_Display):
    every_s = 0.5

    def show(self, line: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        text = Text(line)  # not markup: a memory may have brackets
        if self.target is None:
            # rich prints standard output above the line on standard error, which would keep it out of a file or pipe
            above = sys.stdout.isatty()
            console = Console(stderr=True)
            self._spinner = Spinner("dots", text, style="status.spinner")
            self.target = Live(self._spinner, console=console, transient=True, redirect_stdout=above)
            self.target.start()
        self._spinner.update(text=text)

    def end(self, line: str) -> None:
        if self.target is not None:
            self.target.stop()
            print(line, file=sys.stderr)


class _Log(_Display):
    @property
    def every_s(self) -> float:
        return LOG_EVERY_S

    def show(self, line: str) -> None:
        self.target = True
        print(line, file=sys.stderr, flush=True)
