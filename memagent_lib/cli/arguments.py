"""Helpers with which every verb declares its options: help that shows defaults, one line for an option."""

from __future__ import annotations

import argparse
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

Verbs = argparse._SubParsersAction
# The top-level keys by which a recipe of `memagent train` and a file of `memagent sweep` can be recognised.
_FILE_KEYS = {"train": {"model", "data", "reading", "train"}, "sweep": {"notebook", "stage", "grid", "points"}}


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults that are not empty, and leaves the line breaks of an epilog as they are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, False, [], ""):
            return action.help
        return super()._get_help_string(action)


class VerbParser(argparse.ArgumentParser):
    """Accepts positional words anywhere, so that ``key=value`` may follow an option."""

    _intermixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
        words = [action for action in self._actions if not action.option_strings]
        nested = any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in words)
        # argparse intermixes by calling this very method again, and refuses where a parser has sub-parsers.
        if self._intermixing or nested:
            return super().parse_known_args(args, namespace)
        self._intermixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixing = False


def add_verb(
    verbs: Verbs,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    examples: str = "",
    how_to_continue: Callable[[argparse.Namespace], str] = lambda a: "",
) -> argparse.ArgumentParser:
    """Declare a verb with a one-line summary, and examples below its options.

    ``how_to_continue`` returns what to print after Ctrl-C, from the options of the stopped command.
    """
    verb = verbs.add_parser(
        name, formatter_class=HelpFormatter, help=summary, description=summary, epilog=examples or None
    )
    verb.set_defaults(run=run, how_to_continue=how_to_continue)
    return verb


def option(target: argparse._ActionsContainer, flag: str, metavar: str, text: str, **more: Any) -> None:
    """Add an option with a value: an integer for the metavar ``N``, a float for ``X``, else a string."""
    kind = {"N": int, "X": float}.get(metavar, str)
    target.add_argument(flag, metavar=metavar, help=text, type=kind, **more)


def require_port(flag: str, port: int, free: bool = False) -> None:
    """Raise if ``port`` is no port number; ``free`` allows 0, which stands for any free port."""
    lowest = 0 if free else 1
    if not lowest <= port <= 65535:
        any_free = " (0 for any free one)" if free else ""
        raise ValueError(f"{flag} must be 1 to 65535{any_free}, got {port}")


def file_of(verb: str, path: str) -> Path:
    """Return the TOML file at ``path``, relative to the working directory or to the checkout's root.

    Raises ``ValueError`` for a sweep handed to ``train`` or a recipe handed to ``sweep``, with the right command.
    """
    from memagent_lib.paths import absolute
    from memagent_lib.settings import read_toml

    file = Path(path) if Path(path).is_file() else absolute(path)
    keys = read_toml(file, "file").keys() if file.is_file() else set()
    other = "sweep" if verb == "train" else "train"
    if keys & _FILE_KEYS[other] and not keys & _FILE_KEYS[verb]:
        raise ValueError(f"{path} is a file of `memagent {other}`; run it with: memagent {other} {path}")
    return file.absolute()


def port_refused(host: str, port: int, failure: OSError) -> str:
    """Explain why listening on a port failed."""
    if failure.errno == errno.EACCES:
        return f"port {port} of {host} is not yours to listen on (ports below 1024 need rights)"
    return f"port {port} of {host} is in use"


def switch(target: argparse._ActionsContainer, flag: str, text: str) -> None:
    """Add an option without a value, off unless it is set."""
    target.add_argument(flag, action="store_true", help=text)
