"""Errors that a user can fix. The command line and notebooks display each as one line."""

from __future__ import annotations


class UserError(Exception):
    """An error that the user can fix. The message gives the problem, the value, a correct value, and the fix."""

    def _render_traceback_(self) -> list[str]:
        """Return the one line that IPython displays in place of a traceback; ``%debug`` still has all frames."""
        return [f"{type(self).__name__}: {self}"]


class MissingFile(UserError, FileNotFoundError):
    """A file or folder is missing. The message names the command that creates it."""
