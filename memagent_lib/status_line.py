"""The progress of work that takes a while, on standard error: a tqdm bar, or a line that says what is waited for.

A notebook that papermill runs stays clean. This module does not depend on agents or runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Timer
from typing import Any

from tqdm import tqdm

from memagent_lib.system import in_jupyter

PATIENCE_S = 2.0
"""How long work may take before anything is displayed."""
LOG_EVERY_S = 30.0
_LEFT = ", {remaining} left"


def time_left(seconds: float) -> str:
    """Return a time left as the end of a line; "" if it is not known or nothing is left."""
    return f", about {timedelta(seconds=round(seconds))} left" if seconds >= 1 else ""


class StatusLine(tqdm):
    """A bar whose units may be fractions, so that one long document is not "0 of 1" for an hour."""

    @property
    def format_dict(self) -> dict[str, Any]:
        values = super().format_dict
        if not self.total or self.n < self.total / 10:  # loading and filling a batch say nothing
            values["bar_format"] = values["bar_format"].replace(_LEFT, "")
        return values

    def advance(self, units: float = 1.0, note: str = "") -> None:
        """Count some more units as done. An empty ``note`` leaves the previous note. Any thread may call this."""
        if note:
            self.set_postfix_str(" ".join(note.split())[-60:], refresh=False)  # the end of a long note
        if self.total is not None:  # an estimated total may turn out too small
            self.total = max(self.total, self.n + units)
        self.update(units)


@contextmanager
def status_line(what: str, total: float | None = None, unit: str = "", wanted: bool = True) -> Iterator[StatusLine]:
    """Display the block's progress once it has taken :data:`PATIENCE_S`; in a log, every :data:`LOG_EVERY_S` seconds.

    Without a unit, it is one line that says what the block waits for.
    """
    quiet = not wanted or ("ipykernel" in sys.modules and not in_jupyter())
    # JupyterLab displays what is written to standard error as if it had failed.
    stream = sys.stdout if in_jupyter() else sys.stderr
    waiting = Timer(PATIENCE_S, print, (f"{what} ...",), {"file": stream, "flush": True})
    waiting.daemon = True
    if not unit and not quiet:
        waiting.start()
    done = "{n:.0f}" if total is None else "{n:.0f} of {total:.0f}"
    shape = f"{{desc}}: {done} {unit}{_LEFT}, {{elapsed}} so far{{postfix}}"
    every = 0.5 if in_jupyter() or sys.stderr.isatty() else LOG_EVERY_S
    try:
        with StatusLine(
            file=stream,
            desc=what,
            total=total,
            bar_format=shape,
            mininterval=every,
            delay=PATIENCE_S,
            disable=quiet or not unit,
        ) as bar:
            yield bar
    finally:
        waiting.cancel()
