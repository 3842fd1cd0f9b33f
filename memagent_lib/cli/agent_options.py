"""The options that describe an agent, the same for every verb that reads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.cli.arguments import option

if TYPE_CHECKING:
    from memagent_lib.agent import Agent

TOKENS = {"chunk": "read at a time", "memory": "remembered", "answer": "of an answer", "question": "of a question"}


def add_agent_options(verb: argparse.ArgumentParser, several_readers: bool = False) -> None:
    """Add model, backend, reader, template, budget and sampling; :func:`agent_of` reads them."""
    from memagent_lib.backends import BACKENDS
    from memagent_lib.readers import READERS

    model = verb.add_argument_group("model")
    option(model, "--model", "MODEL", "a model folder, a hub name, or a server's name for its model", required=True)
    where = "vllm or transformers on this machine, or openai: a server"
    option(model, "--backend", "NAME", where, choices=list(BACKENDS), default=next(iter(BACKENDS)))
    option(model, "--base-url", "URL", "an OpenAI-compatible server, mostly ending in /v1; for --backend openai")
    how = "the server's API: completions, or chat if it accepts no token ids"
    option(model, "--api", "NAME", how, choices=["completions", "chat"])
    option(model, "--api-key-file", "FILE", "a file with the server's key")
    option(model, "--window", "N", "tokens of prompt and reply together, if neither model nor server states it")
    counts = "the tokenizer to count with, if the model is neither a folder nor a hub name"
    option(model, "--tokenizer", "MODEL", counts)

    reading = verb.add_argument_group(
        "reading", "Defaults are what the model was trained with, else the paper's values."
    )
    strategy = f"the strategy: {', '.join(READERS)}, or FILE.py:NAME"
    if several_readers:
        option(reading, "--reader", "NAME", f"{strategy}; repeat it for more readers", action="append", default=[])
    else:
        option(reading, "--reader", "NAME", strategy)
    option(reading, "--template", "NAME", "the wording: a template's name, or a .toml file of your own")
    for name, what in TOKENS.items():
        option(reading, f"--{name}-tokens", "N", f"tokens {what}")
    option(reading, "--temperature", "X", "0 always takes the likeliest token", default=0.0)
    option(reading, "--seed", "N", "draw the same replies again, above temperature 0")


def agent_of(a: argparse.Namespace) -> Agent:
    """Open the agent that the options of :func:`add_agent_options` describe; loads its model."""
    from memagent_lib.agent import open_agent
    from memagent_lib.backends import Sampling

    sizes = {f"{name}_tokens": getattr(a, f"{name}_tokens") for name in TOKENS}
    server = {"base_url": a.base_url, "api": a.api, "api_key": _api_key(a.api_key_file)}
    server = {name: value for name, value in server.items() if value}
    if server and a.backend != "openai":
        raise ValueError(f"--base-url, --api and --api-key-file are for --backend openai, not {a.backend}")
    readers = a.reader if isinstance(a.reader, list) else [a.reader]
    return open_agent(
        a.model,
        a.backend,
        reader=readers[0] if readers else None,
        template=a.template,
        budget={name: size for name, size in sizes.items() if size is not None},
        sampling=Sampling(temperature=a.temperature, seed=a.seed),
        tokenizer=a.tokenizer,
        window=a.window,
        **server,
    )


def _api_key(path: str | None) -> str | None:
    if not path:
        return None
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"no file with a key at {file}; --api-key-file takes the path of one")
    return file.read_text(encoding="utf-8").strip()
