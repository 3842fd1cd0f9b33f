"""The options that describe an agent: model, backend, reader, prompts and sampling. Every verb that reads uses them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.cli.arguments import option
from memagent_lib.settings import key_value

if TYPE_CHECKING:
    from memagent_lib.agent import Agent
    from memagent_lib.backends import Sampling

SIZES = {
    "chunk": "tokens of the document in one prompt",
    "memory": "the longest memory, in tokens",
    "answer": "the longest answer, in tokens",
    "question": "the longest question, in tokens",
    "thinking": "tokens for a model's thought before each reply; with 0 it counts towards memory and answer",
}


def add_agent_options(
    verb: argparse.ArgumentParser,
    several_readers: bool = False,
    on_bad_memory: str = "take, as in training",
    small_models_in_transformers: bool = False,
) -> None:
    """Add the options from which :func:`agent_of` opens an agent.

    With ``several_readers``, ``--reader`` may be repeated, and its value is a list. ``on_bad_memory`` says the
    default in the help of ``--on-bad-memory`` and why; it is not applied here. With ``small_models_in_transformers``,
    ``--backend`` has no default, and its help states that of :func:`~memagent_lib.backends.backend_for_one_reading`.
    """
    from memagent_lib.bad_memory import OnBadMemory
    from memagent_lib.prompts import TEMPLATE_FOLDER, Budget
    from memagent_lib.readers import READERS

    _add_model_options(verb, small_models_in_transformers)
    reading = verb.add_argument_group(
        "reading", "A model of `memagent train` or `memagent sft` has defaults of its own; any other has these."
    )
    strategy = f"the reading strategy: overwrite (the default), {', '.join(list(READERS)[1:])}, or FILE.py:NAME"
    if several_readers:
        option(reading, "--reader", "NAME", f"{strategy}; repeat it for more readers", action="append", default=[])
    else:
        option(reading, "--reader", "NAME", strategy)
    templates = sorted(path.stem for path in TEMPLATE_FOLDER.glob("*.toml"))
    option(
        reading,
        "--template",
        "NAME",
        f"the prompts: {', '.join(templates)} (default: chunk_first), or a .toml file of your own",
    )
    paper = Budget()
    for name, what in SIZES.items():
        option(reading, f"--{name}-tokens", "N", f"{what} (default: {getattr(paper, f'{name}_tokens')})")
    action = (
        "what to do with a reply that is no memory, such as a comment about it or a refusal: take it as the memory, "
    )
    action += f"keep the old memory, or retry once and then keep the old one (default: {on_bad_memory})"
    option(reading, "--on-bad-memory", "NAME", action, choices=[str(name) for name in OnBadMemory])
    option(reading, "--temperature", "X", "0 always takes the likeliest token", default=0.0)
    option(reading, "--top-p", "X", "above temperature 0, draw from the likeliest tokens of this share", default=1.0)
    option(reading, "--seed", "N", "makes sampling repeatable; no effect at temperature 0")


def _add_model_options(verb: argparse.ArgumentParser, small_models_in_transformers: bool) -> None:
    """Add the options that name the model, what runs it and its server."""
    from memagent_lib.backends import BACKENDS, SMALL_MODEL_MB

    model = verb.add_argument_group("model")
    what = "a model or adapter folder, a GGUF file, a hub name, or a server's name for its model"
    option(model, "--model", "MODEL", what, required=True)
    where = f"what runs the model: {', '.join(BACKENDS)}; openai is for a server"
    default = next(iter(BACKENDS))
    if small_models_in_transformers:
        where += f" (default: {default}; without a GPU, transformers for a folder of up to {SMALL_MODEL_MB} MB)"
        default = None
    option(model, "--backend", "NAME", where, choices=list(BACKENDS), default=default)
    address = "the address of an OpenAI-compatible server, usually ending in /v1; only with --backend openai"
    option(model, "--base-url", "URL", address)
    how = "the server's API: completions (the default), or chat for a server that accepts no token ids"
    option(model, "--api", "NAME", how, choices=["completions", "chat"])
    option(model, "--api-key-file", "FILE", "a file that contains the server's key")
    fields = "a field of every request to the server, its value in JSON or plain text; repeat it for more"
    option(model, "--extra", "KEY=VALUE", fields, action="append", default=[])
    window = "the model's context length (prompt and reply), where the model states none, or a smaller one to save RAM"
    option(model, "--window", "N", window)
    counts = "the tokenizer to count with, if the model is neither a folder nor a hub name"
    option(model, "--tokenizer", "MODEL", counts)
    add_chat_template_option(model)


def add_chat_template_option(group: argparse._ArgumentGroup) -> None:
    """Add ``--chat-template``, whose value :func:`chat_template_of` returns."""
    switches = "an argument of the model's chat template, such as enable_thinking=false; repeat it for more"
    option(group, "--chat-template", "KEY=VALUE", switches, action="append", default=[])


def chat_template_of(a: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of the model's chat template that the options set."""
    return dict(key_value(text) for text in a.chat_template)


def agent_of(a: argparse.Namespace, **more: Any) -> Agent:
    """Open the agent that the options of :func:`add_agent_options` describe. This loads the model.

    If several readers are named, the agent has the first. ``more`` are further options of ``open_agent``.
    """
    from memagent_lib.agent import open_agent

    sizes = {f"{name}_tokens": getattr(a, f"{name}_tokens") for name in SIZES}
    server = {"base_url": a.base_url, "api": a.api, "api_key": api_key(a.api_key_file), "extra": _extra(a.extra)}
    server = {name: value for name, value in server.items() if value}
    if server and a.backend != "openai":
        raise ValueError(
            f"--base-url, --api, --api-key-file and --extra are for --backend openai, not {a.backend}; leave them out, "
            "or add --backend openai"
        )
    readers = a.reader if isinstance(a.reader, list) else [a.reader]
    return open_agent(
        a.model,
        a.backend,
        reader=readers[0] if readers else None,
        template=a.template,
        # Only what was set, so that a trained model's own sizes apply to the rest.
        budget={name: size for name, size in sizes.items() if size is not None},
        sampling=sampling_of(a),
        tokenizer=a.tokenizer,
        chat_template=chat_template_of(a),
        on_bad_memory=a.on_bad_memory,
        window=a.window,
        **server,
        **more,
    )


def sampling_of(a: argparse.Namespace) -> Sampling:
    """Return the sampling settings that the options of :func:`add_agent_options` describe."""
    from memagent_lib.backends import Sampling

    return Sampling(temperature=a.temperature, top_p=a.top_p, seed=a.seed)


def _extra(pairs: list[str]) -> dict[str, Any]:
    """Return ``KEY=VALUE`` pairs as a dict. Values are read as JSON, or as strings if they are not JSON."""
    extra = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ValueError(f"--extra takes KEY=VALUE, such as top_k=20, got {pair!r}")
        try:
            extra[key] = json.loads(value)
        except ValueError:
            extra[key] = value
    return extra


def api_key(path: str | None) -> str | None:
    """Return the server's key, read from the file at ``path``; ``None`` if ``path`` is not set.

    Raises ``FileNotFoundError`` if there is no such file, and ``ValueError`` if it is empty or not text.
    """
    if not path:
        return None
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"no file with a key at {file}; --api-key-file takes the path of one")
    try:
        key = file.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError:
        raise ValueError(f"the file with a key, {file}, is not UTF-8; save it as UTF-8") from None
    if not key:  # without this error, requests would be sent without a key
        raise ValueError(f"the file with a key, {file}, is empty; put the server's key into it")
    return key
