"""Errors that a user can fix. The command line and notebooks display each as one line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class UserError(Exception):
    """An error that the user can fix. The message gives the problem, the value, a correct value, and the fix."""

    def _render_traceback_(self) -> list[str]:
        """Return the one line that IPython displays instead of a traceback; ``%debug`` still has all frames."""
        return [f"{type(self).__name__}: {self}"]


class MissingFile(UserError, FileNotFoundError):
    """A file or folder is missing. The message names the command that creates it."""


class MissingPackage(UserError, ImportError):
    """A package is missing. The message names the command that installs it."""


def one_line(error: object) -> str:
    """Return another library's error, or any text, as one line."""
    return " ".join(str(error).split())


def nearest(name: object, known: Iterable[object]) -> str:
    """Return the end of a message about an unknown name, ``; did you mean 'NAME'?``, or "" if no known name is near."""
    near = get_close_matches(str(name), map(str, known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def nearest_path(path: str | Path) -> str:
    """Return what :func:`nearest` does, for a file or folder that is not there, from the names beside it."""
    whole = Path(path).absolute()
    missing = next(part for part in (whole, *whole.parents) if part.parent.exists())
    return nearest(missing.name, (beside.name for beside in missing.parent.glob("*")))


def is_user_error(error: BaseException) -> bool:
    """Return whether the message lets a user fix the error, as for a wrong value, file, server or installation."""
    expected = (UserError, ValueError, OSError, ImportError)
    if isinstance(error, RecursionError):  # of a file that is nested too deeply; any other is a bug
        return "JSON" in str(error)
    # A missing module without a message of ours is a broken installation or a bug, and its traceback names it.
    return isinstance(error, expected) and not isinstance(error, ModuleNotFoundError)
