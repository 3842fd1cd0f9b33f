"""Errors that a person can put right: the command and a notebook show each as one line. Knows nothing else."""

from __future__ import annotations


class UserError(Exception):
    """Its message says what is wrong, the value, what would be right and the fix."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it; ``%debug`` still has the frames."""
        return [f"{type(self).__name__}: {self}"]


class MissingFile(UserError, FileNotFoundError):
    """Nothing is where something was asked for; the message says what makes it."""
