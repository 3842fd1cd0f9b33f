"""What verbs share: the options that describe an agent, files to read and write, and what is printed on stderr."""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memagent_lib.errors import nearest
from memagent_lib.paths import input_path, require_replaceable
from memagent_lib.settings import key_value, read_toml
from memagent_lib.system import Terminated

if TYPE_CHECKING:
    from memagent_lib.agent import Agent

# Top-level keys that only the files of one verb have: recipes of `memagent train` and `memagent sft` share others.
_FILE_KEYS = {"sft": {"sft"}, "sweep": {"notebook", "stage", "grid", "points"}, "train": {"train", "verl", "rewards"}}
HOST = "127.0.0.1"
_BEGINNING_BYTES = 500  # in which every kind of file that a command writes has its mark
_SIZES = ("answer_tokens", "question_tokens", "thinking_tokens")
_SAMPLING = ("temperature", "top_p", "seed")
_OTHERS = ("window", "tokenizer", "api", "on_bad_memory", "engines", "cluster")
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
port_type = click.IntRange(0, 65535)
tracking_option = click.option(
    "--tracking", metavar="STORE", default="runs", help="The MLflow store: a folder or a server's address."
)


def agent_of(
    model: str,
    backend: str | None,
    base_url: str | None,
    api_key_file: str | None,
    template: str | None,
    chunk_tokens: int | None,
    memory_tokens: int | None,
    settings: Sequence[str],
    reader: str | None = None,
    **more: Any,
) -> Agent:
    """Open the agent that the options of :func:`agent_options` describe. This loads the model.

    ``more`` are further options of ``open_agent``.
    """
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
        sampling=Sampling(**sampling),
        **options | more,
    )


def open_settings(settings: Sequence[str], *more: str) -> dict[str, Any]:
    """Return the ``KEY=VALUE`` texts of ``--set`` as options of ``open_agent``; ``more`` are further keys."""
    known = (*_SIZES, *_SAMPLING, *_OTHERS, *more)
    options: dict[str, Any] = {}
    for key, value in map(key_value, settings):
        table, _, name = key.partition(".")
        if table in _TABLES and name:
            options.setdefault(table, {})[name] = value
        elif key in known:
            options[key] = value
        else:
            listed = ", ".join((*known, *(f"{table}.NAME" for table in _TABLES)))
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


def require_page(option: str, path: str | Path) -> None:
    """Raise ``ValueError`` unless ``path``, a page to write, is named as HTML and may be written."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{option} names {path}, and the page is HTML; end its name in .html")
    require_own(option, path, "<html", "page")


def require_own(option: str, path: str | Path, mark: str, what: str) -> None:
    """Raise ``ValueError`` if ``path`` is a file without ``mark`` at its beginning, which memagent did not write."""
    require_replaceable(path)
    file = Path(path)
    if not file.is_file():
        return
    with open(file, "rb") as content:
        beginning = content.read(_BEGINNING_BYTES)
    if beginning and mark.encode() not in beginning:
        raise ValueError(f"{option} names {path}, which is no {what} that memagent wrote; choose another name")


def file_of(verb: str, path: str) -> Path:
    """Return the absolute path of a TOML file of a verb. Raises ``ValueError`` for a file of another verb."""
    file = Path(path) if Path(path).is_file() else input_path(path)
    keys = read_toml(file, "file").keys()
    other = next((each for each, own in _FILE_KEYS.items() if keys & own), verb)
    if not keys & _FILE_KEYS[verb] and other != verb:
        raise ValueError(f"{path} is a file of `memagent {other}`; run it with: memagent {other} {shlex.quote(path)}")
    return file.absolute()


@contextmanager
def bound(option: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket bound to ``port`` on loopback. Raises ``OSError``, which names ``option``, if it cannot be had."""
    with socket.socket() as listening:
        # A port is free although connections of a server that has just stopped are still in TIME_WAIT.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError as failure:
            raise OSError(f"{option} {port}: {failure.strerror}; take another port, or 0 for any free one") from failure
        yield listening
