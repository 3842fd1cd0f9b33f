"""Helpers that declare a verb or an option in one line, and show its default in the help."""

from __future__ import annotations

import argparse
import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from memagent_lib.errors import nearest
from memagent_lib.paths import require_replaceable

Verbs = argparse._SubParsersAction
# Top-level keys that only the files of one verb have, the most telling first: recipes of `memagent train` and
# `memagent sft` have others in common.
_FILE_KEYS = {"sft": {"sft"}, "sweep": {"notebook", "stage", "grid", "points"}, "train": {"train", "verl", "rewards"}}
_BEGINNING_BYTES = 500  # in which every kind of file that a command writes has its mark


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Formats help with every default that is not empty, and with the line breaks of the epilog."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # Not `in (None, False, [], "")`: 0 equals False, and a default of 0 has to be visible.
        if action.default is None or action.default is False or action.default in ([], "", argparse.SUPPRESS):
            return action.help
        return super()._get_help_string(action)


class VerbParser(argparse.ArgumentParser):
    """A parser of one verb: positional arguments, such as ``key=value``, may follow an option.

    Anything unknown is its own error. argparse would leave it to the parser of all verbs.
    """

    _intermixing = False

    def error(self, message: str) -> NoReturn:
        """Exit with one line, as for every other error; the usage of a verb with many options would hide it."""
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` shows the options\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
        if self._intermixing:
            return super().parse_known_args(args, namespace)
        self._refuse_unknown_options(args or [])
        found, left_over = self._parse_anywhere(args, namespace)
        if left_over:
            self.error(f"unrecognized arguments: {' '.join(left_over)}")
        return found, []

    def _refuse_unknown_options(self, args: Sequence[str]) -> None:
        """Exit with an error for the first unknown option, before one about what is missing."""
        for word in args:
            if word == "--":
                return
            flag = word.partition("=")[0]
            # As in argparse, numbers and texts with spaces are values, and the beginning of an option's name suffices.
            if not re.match("--?[a-zA-Z]", flag) or " " in word:
                continue
            if not any(known.startswith(flag) for known in self._option_string_actions):
                hint = nearest(flag, self._option_string_actions)
                if os.path.exists(word):
                    hint = f"; for the file of this name write {shlex.quote(f'./{word}')}"
                self.error(f"no option {flag!r}{hint}")

    def _parse_anywhere(self, args: Any, namespace: Any) -> tuple[argparse.Namespace, list[str]]:
        words = [action for action in self._actions if not action.option_strings]
        nested = any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in words)
        # argparse intermixes by calling this method again, and raises an error for a parser with sub-parsers.
        if nested:
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
    """Declare a verb with a one-line summary, and with ``examples`` below its options; return the verb's parser.

    ``run`` executes the verb and returns the exit status. After Ctrl-C, the command prints what ``how_to_continue``
    returns. Both receive the parsed options.
    """
    verb = verbs.add_parser(
        name, formatter_class=HelpFormatter, help=summary, description=summary, epilog=examples or None
    )
    verb.set_defaults(run=run, how_to_continue=how_to_continue)
    # Without a default of its own, the flag after the verb does not reset the one before it.
    trace = "show where in the code an error came from"
    verb.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=trace)
    return verb


def option(target: argparse._ActionsContainer, flag: str, metavar: str, text: str, **more: Any) -> None:
    """Add an option with a value. ``metavar`` sets its type: ``N`` an integer, ``X`` a float, any other a string."""
    kind = {"N": int, "X": float}.get(metavar, str)
    target.add_argument(flag, metavar=metavar, help=text, type=kind, **more)


def tracking_option(target: argparse._ActionsContainer) -> None:
    option(target, "--tracking", "STORE", "the MLflow store: a folder or a server's address", default="runs")


def warn(*warnings: str) -> None:
    """Print warnings to the error stream, so that they are no part of a verb's output."""
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)


def require_port(flag: str, port: int, free: bool = False) -> None:
    """Raise ``ValueError`` unless ``port`` is from 1 to 65535, or 0 (any free port) if ``free`` is set."""
    lowest = 0 if free else 1
    if not lowest <= port <= 65535:
        any_free = " (0 for any free one)" if free else ""
        raise ValueError(f"{flag} must be 1 to 65535{any_free}, got {port}")


def require_page(flag: str, path: str | Path) -> None:
    """Raise ``ValueError`` unless ``path``, a page to write, is named as HTML and may be written."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{flag} names {path}, and the page is HTML; end its name in .html")
    require_replaceable(path)
    require_own(flag, path, 'class="ma-page"', "page")


def require_own(flag: str, path: str | Path, mark: str, what: str) -> None:
    """Raise ``ValueError`` if ``path`` is a file of something else: not empty, and without ``mark`` at its beginning.

    ``what`` names the kind of file that has the mark, and that a command may therefore replace.
    """
    file = Path(path)
    if not file.is_file():
        return
    with open(file, "rb") as content:
        beginning = content.read(_BEGINNING_BYTES)
    if beginning and mark.encode() not in beginning:
        raise ValueError(
            f"{flag} names {path}, which is there already and is no {what} that memagent wrote; choose another name, "
            "or remove that file"
        )


def file_of(verb: str, path: str) -> Path:
    """Return the absolute path of a TOML file, looked up in the working directory and then by :func:`input_path`.

    Raises ``ValueError``, which names the right verb, for a file of another verb.
    """
    from memagent_lib.paths import input_path
    from memagent_lib.settings import read_toml

    file = Path(path)
    if not file.is_file():
        file = input_path(path)
    keys = set()
    if file.is_file():  # a missing file gets the error of the verb
        keys = read_toml(file, "file").keys()
    other = next((each for each, own in _FILE_KEYS.items() if keys & own), verb)
    if not keys & _FILE_KEYS[verb] and other != verb:
        raise ValueError(f"{path} is a file of `memagent {other}`; run it with: memagent {other} {shlex.quote(path)}")
    return file.absolute()


def look_next(page: str | Path = "", mlflow: str = "", command: str = "") -> None:
    """Print what to look at after a command, on standard error: a page, a page of MLflow, another command."""
    for name, where in (("page", page), ("MLflow", mlflow), ("next", command)):
        if where:
            print(f"{name:<8}{where}", file=sys.stderr)


def port_refused(host: str, port: int, failure: OSError) -> str:
    """Return a sentence that explains why listening on ``port`` failed."""
    if failure.errno == errno.EACCES:
        return f"port {port} of {host} is not yours to listen on (ports below 1024 need rights)"
    return f"port {port} of {host} is in use"


def switch(target: argparse._ActionsContainer, flag: str, text: str) -> None:
    """Add an option without a value, which is True if it is present and False otherwise."""
    target.add_argument(flag, action="store_true", help=text)
