"""The options that make an agent, alike in every verb that reads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.cli.arguments import option

if TYPE_CHECKING:
    from memagent_lib.agent import Agent

TOKENS = {"chunk": "read at a time", "memory": "remembered", "answer": "of an answer", "question": "of a question"}


def add_agent_options(verb: argparse.ArgumentParser, several_readers: bool = False) -> None:
    """Model, backend, reader, template, budget and sampling. :func:`agent_of` reads them."""
    from memagent_lib.backends import BACKENDS
    from memagent_lib.readers import READERS

    model = verb.add_argument_group("model")
    option(model, "--model", "MODEL", "a model folder, a hub name, or a server's name for its model", required=True)
    where = "vllm or transformers on this machine, or openai: a server"
    option(model, "--backend", "NAME", where, choices=list(BACKENDS), default=next(iter(BACKENDS)))
    option(model, "--base-url", "URL", "an OpenAI-compatible server, mostly ending in /v1; for --backend openai")
    how = "how the server is asked: completions, or chat where it takes no token ids"
    option(model, "--api", "NAME", how, choices=["completions", "chat"])
    option(model, "--api-key-file", "FILE", "a file that holds the server's key")
    option(model, "--window", "N", "the longest prompt and reply in tokens, where the model or server does not say")
    option(model, "--tokenizer", "MODEL", "whose tokenizer counts, where the model's name is no folder or hub name")

    reading = verb.add_argument_group(
        "reading", "What is not given is what the model was trained with, else the paper's."
    )
    several = {"action": "append", "default": []} if several_readers else {}
    more = "; may be given several times" if several_readers else ""
    option(reading, "--reader", "NAME", f"the strategy: {', '.join(READERS)}{more}", **several)
    option(reading, "--template", "NAME", "the wording: a template's name, or a .toml file of your own")
    for name, what in TOKENS.items():
        option(reading, f"--{name}-tokens", "N", f"tokens {what}")
    option(reading, "--temperature", "X", "0 always takes the likeliest token", default=0.0)
    option(reading, "--seed", "N", "draw the same replies again, above temperature 0")


def agent_of(a: argparse.Namespace) -> Agent:
    """The agent that the options of :func:`add_agent_options` describe."""
    from memagent_lib.agent import open_agent
    from memagent_lib.backends import Sampling

    budget = {key: size for name in TOKENS if (size := getattr(a, key := f"{name}_tokens")) is not None}
    options = {name: value for name in ("base_url", "api") if (value := getattr(a, name))}
    if a.api_key_file:
        if not (keys := Path(a.api_key_file)).is_file():
            raise FileNotFoundError(f"no file with a key at {keys}; --api-key-file takes the path of one")
        options["api_key"] = keys.read_text(encoding="utf-8").strip()
    if options and a.backend != "openai":
        raise ValueError(f"--base-url, --api and --api-key-file are for --backend openai, not {a.backend}")
    reader = (a.reader or [None])[0] if isinstance(a.reader, list) else a.reader
    named = {"reader": reader, "template": a.template, "tokenizer": a.tokenizer, "window": a.window}
    sampling = Sampling(temperature=a.temperature, seed=a.seed)
    return open_agent(a.model, a.backend, budget=budget, sampling=sampling, **named, **options)
