"""Errors that a user can fix: command line and notebooks display each as one line. Knows nothing else."""

from __future__ import annotations


class UserError(Exception):
    """An error whose message has what is wrong, the value, what would be right and the fix."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython displays; ``%debug`` still has the frames."""
        return [f"{type(self).__name__}: {self}"]


class MissingFile(UserError, FileNotFoundError):
    """A file or folder is missing; the message says what makes it."""
