"""How verbs are declared alike: help that shows defaults, options in a line each."""

from __future__ import annotations

import argparse
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

Verbs = argparse._SubParsersAction
_FILE_KEYS = {"train": {"model", "data", "reading", "train"}, "sweep": {"notebook", "stage", "grid", "points"}}


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default where there is one worth showing, and keeps the lines of an epilog."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, [], "") else super()._get_help_string(action)


class VerbParser(argparse.ArgumentParser):
    """Takes ``key=value`` words wherever they stand: after options and between them too."""

    _intermixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
        words = [action for action in self._actions if not action.option_strings]
        if self._intermixing or any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in words):
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
    kept: Callable[[argparse.Namespace], str] = lambda a: "",
) -> argparse.ArgumentParser:
    """A verb with its one-line summary and, below its options, examples. ``kept`` says what is left when Ctrl-C stops
    it."""
    given = {"help": summary, "description": summary, "epilog": examples or None}
    verb = verbs.add_parser(name, formatter_class=HelpFormatter, **given)
    verb.set_defaults(run=run, kept=kept)
    return verb


def option(target: argparse._ActionsContainer, flag: str, metavar: str, text: str, **more: Any) -> None:
    """An option with a value: ``N`` stands for a whole number, ``X`` for any number, all others for texts."""
    target.add_argument(flag, metavar=metavar, help=text, type={"N": int, "X": float}.get(metavar, str), **more)


def require_port(flag: str, port: int, free: bool = False) -> None:
    """An error where no port has this number; ``free`` where 0 stands for any that nothing uses."""
    if not (0 if free else 1) <= port <= 65535:
        more = " (0 for any free one)" if free else ""
        raise ValueError(f"{flag} must be 1 to 65535{more}, got {port}")


def file_of(verb: str, path: str) -> Path:
    """A TOML file from here or from the checkout's root; an error that names the other verb where it is clearly a file
    of that one.
    """
    from memagent_lib.paths import absolute
    from memagent_lib.settings import read_toml

    there = next((file for file in (Path(path), absolute(path)) if file.is_file()), None)
    found = read_toml(there, "file").keys() if there else set()
    other = next(other for other in _FILE_KEYS if other != verb)
    if found & _FILE_KEYS[other] and not found & _FILE_KEYS[verb]:
        raise ValueError(f"{path} is a file of `memagent {other}`; run it with: memagent {other} {path}")
    return (there or absolute(path)).absolute()


def port_refused(host: str, port: int, failure: OSError) -> str:
    """Why a port cannot be listened on, in words."""
    if failure.errno == errno.EACCES:
        return f"port {port} of {host} is not yours to listen on (ports below 1024 need rights)"
    return f"port {port} of {host} is in use"


def switch(target: argparse._ActionsContainer, flag: str, text: str) -> None:
    target.add_argument(flag, action="store_true", help=text)
