"""What verbs share: the options that describe an agent, files to read and write, and what is printed on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memagent_lib.errors import nearest
from memagent_lib.paths import input_path, require_replaceable
from memagent_lib.settings import key_value, parse
from memagent_lib.system import Terminated

if TYPE_CHECKING:
    from memagent_lib.agent import Agent

_BEGINNING_BYTES = 500  # in which every kind of file that a command writes has its mark
_SIZES = ("answer_tokens", "question_tokens", "thinking_tokens")
_SAMPLING = ("temperature", "top_p", "seed")
_OTHERS = ("window", "threads", "tokenizer", "api", "on_bad_memory", "engines", "cluster")
_TABLES = ("chat_template", "extra")
_AGENT = (
    click.option(
        "--model", metavar="MODEL", required=True, help="A folder, a GGUF file, a hub name, or a server's name."
    ),
    click.option("--backend", metavar="NAME", help="vllm, transformers, or openai for a server.  [default: what fits]"),
    click.option("--base-url", metavar="URL", help="An OpenAI-compatible server, usually ending in /v1."),
    click.option("--api-key-file", metavar="FILE", help="A file that contains the server's key."),
    click.option("--template", metavar="NAME", help="The prompts: chunk_first, memory_first, short, or a .toml file."),
    click.option("--chunk-tokens", metavar="N", type=int, help="Tokens of the document in one prompt."),
    click.option("--memory-tokens", metavar="N", type=int, help="The longest memory, in tokens."),
    click.option(
        "--set",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        help=f"Any other setting of the agent; repeat it for more: {', '.join((*_SIZES, *_SAMPLING, *_OTHERS))}, "
        "chat_template.NAME (an argument of the model's chat template), extra.NAME (a field of every request to the "
        "server).",
    ),
)


def agent_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of :func:`agent_of`, except ``--reader``, which some verbs take several times.

    Reader, template and sizes that are not set are those with which the model was trained, or else MemAgent's.
    """
    for option in reversed(_AGENT):
        command = option(command)
    return command


READER = "overwrite, multislot, map_merge, full, truncated, retrieved, blind, one of experiments/readers, FILE.py:NAME."
reader_option = click.option("--reader", metavar="NAME", help=READER)
tracking_option = click.option(
    "--tracking", metavar="STORE", default="runs", help="The MLflow store: a folder or a server's address."
)


def agent_of(
    model: str,
    backend: str | None = None,
    base_url: str | None = None,
    api_key_file: str | None = None,
    template: str | None = None,
    chunk_tokens: int | None = None,
    memory_tokens: int | None = None,
    settings: Sequence[str] = (),
    reader: str | None = None,
) -> Agent:
    """Open the agent that the options of :func:`agent_options` describe. This loads the model."""
    from memagent_lib.agent import open_agent
    from memagent_lib.backends import Sampling

    options = open_settings(settings)
    sizes = {"chunk_tokens": chunk_tokens, "memory_tokens": memory_tokens}
    sizes |= {name: options.pop(name, None) for name in _SIZES}
    sampling = {name: options.pop(name) for name in _SAMPLING if name in options}
    if api_key_file:
        options["api_key"] = api_key(api_key_file)
    if base_url:
        options["base_url"] = base_url
    return open_agent(
        model,
        backend or ("openai" if base_url else None),
        reader=reader,
        template=template,
        # Only what was set, so that a trained model's own sizes apply to the rest.
        budget={name: size for name, size in sizes.items() if size is not None},
        sampling=parse(Sampling, sampling, "--set"),
        **options,
    )


def open_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Return the ``KEY=VALUE`` texts of ``--set`` as options of ``open_agent``."""
    known = (*_SIZES, *_SAMPLING, *_OTHERS)
    options: dict[str, Any] = {}
    for key, value in map(key_value, settings):
        table, _, name = key.partition(".")
        if table in _TABLES and name:
            options.setdefault(table, {})[name] = value
        elif key in ("window", "threads", "engines") and not isinstance(value, int):
            raise ValueError(f"--set {key} takes a whole number, got {value!r}")
        elif key in known:
            options[key] = value
        else:
            listed = ", ".join((*known, *_TABLES))
            raise ValueError(f"--set has no {key!r}; it has {listed}{nearest(key, known)}")
    return options


def api_key(path: str) -> str:
    """Return the server's key, read from the file at ``path``. Raises ``ValueError`` if it is empty."""
    key = Path(path).read_text(encoding="utf-8-sig").strip()
    if not key:  # without this error, requests would be sent without a key
        raise ValueError(f"--api-key-file names {path}, which is empty; put the server's key into it")
    return key


def warn(*warnings: str) -> None:
    """Print warnings to the error stream, so that they are no part of a verb's output."""
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)


def look_next(page: str | Path = "", mlflow: str = "", command: str = "") -> None:
    """Print what to look at after a command, on standard error: a page, a page of MLflow, another command."""
    for name, where in (("page", page), ("MLflow", mlflow), ("next", command)):
        if where:
            print(f"{name:<8}{where}", file=sys.stderr)


@contextmanager
def continues(how: str) -> Iterator[None]:
    """Have the line that is printed after Ctrl-C say ``how`` the work is continued."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        stop.add_note(how)
        raise


def require_words(words: Sequence[str]) -> None:
    """Raise ``ValueError`` for an empty argument, which would count as the current folder or as not set."""
    for before, word in pairwise(["memagent", *words]):
        if not word.strip() or re.fullmatch(r"[\w.-]+=\s*", word):
            where = f"{word.strip()} is" if word.strip() else f"the argument after {before} is"
            raise ValueError(f"{where} empty; is a variable of the shell not set?")


def require_own(option: str, path: str | Path, mark: str, what: str) -> None:
    """Raise ``ValueError`` if ``path`` is a file without ``mark`` at its beginning, which memagent did not write."""
    require_replaceable(path)
    file = Path(path)
    if not file.is_file():
        return
    with open(file, "rb") as content:
        beginning = content.read(_BEGINNING_BYTES)
    if beginning and mark.encode() not in beginning:
        raise ValueError(f"{option} names {path}, which is not a {what} that memagent wrote; choose another name")


def file_of(path: str) -> Path:
    """Return the absolute path of a TOML file: in the working directory, or as :func:`input_path` finds it."""
    return (Path(path) if Path(path).is_file() else input_path(path)).absolute()
