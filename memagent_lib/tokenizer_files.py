"""Read a tokenizer and its chat template from the files of a model folder, without transformers.

transformers would import torch, which takes seconds and which a client of a server does not need.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

_OF_EVERY_TEMPLATE = ("messages", "add_generation_prompt", "raise_exception", "strftime_now", "tools", "documents")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


class TokenizerFiles:
    """A tokenizer read from the files of a model folder, with the attributes of transformers' own."""

    def __init__(self, folder: Path):
        import tokenizers

        self.folder = folder
        try:
            self.backend_tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as broken:  # the class itself is what tokenizers raises
            raise ValueError(f"tokenizer.json is broken ({broken})") from broken
        named = {**_json(folder / "special_tokens_map.json"), **_json(folder / "tokenizer_config.json")}
        self._special = {
            name: token["content"] if isinstance(token, dict) else token
            for name, token in named.items()
            if name.endswith("_token") and token
        }
        self.eos_token: str | None = self._special.get("eos_token")
        self.bos_token: str | None = self._special.get("bos_token")
        self.add_bos_token: bool | None = named.get("add_bos_token")
        template = named.get("chat_template")
        if isinstance(template, list):  # several by name
            template = {one["name"]: one["template"] for one in template}.get("default")
        self.chat_template: str | None = template
        path = folder / "chat_template.jinja"
        if path.is_file():
            self.chat_template = path.read_text(encoding="utf-8")

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool, tokenize: bool, **arguments: Any
    ) -> str:
        """Render the chat template for ``messages``, with the same result as transformers' method of this name."""
        assert not tokenize, "ids are the caller's"

        def refuse(message: str) -> None:
            raise ValueError(f"the chat template of {self.folder} refuses a user message: {message}")

        environment = _environment()
        environment.filters["tojson"] = lambda value, **how: json.dumps(value, **({"ensure_ascii": False} | how))
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        template = environment.from_string(self.chat_template)
        return template.render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._special,
            **arguments,
        )


def _environment() -> Any:
    """Return jinja's environment for chat templates, with the syntax that transformers gives it."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block that marks the assistant's text for training. It renders only its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])


def template_arguments(chat_template: str) -> set[str]:
    """Return the variables that a chat template reads, except the variables that every template gets."""
    from jinja2 import meta

    environment = _environment()
    used = meta.find_undeclared_variables(environment.parse(chat_template))
    used -= {*environment.globals, *_OF_EVERY_TEMPLATE}
    return {name for name in used if not name.endswith("_token")}


def downloaded(model: str) -> Path:
    """Return a folder with a hub model's tokenizer files, after downloading any missing ones."""
    from huggingface_hub import snapshot_download

    wanted = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
    try:
        return Path(snapshot_download(model, allow_patterns=wanted))
    except ValueError as odd:  # a name that the hub does not allow
        raise OSError(str(odd)) from odd


def require_tokenizer_file(folder: Path) -> None:
    """Raise :class:`ValueError` if a folder has no tokenizer. The message names a model folder inside it, if any."""
    if any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return
    inside = ""
    if (folder / "model").is_dir():
        inside = f"; its folder {folder / 'model'} may be one"
    raise ValueError(f"{folder} is no model folder: it has none of {', '.join(_TOKENIZER_FILES)}{inside}")


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as broken:
        raise ValueError(f"{path.name} is broken ({broken})") from broken


def looks_like_path(model: str | Path) -> bool:
    """Return whether ``model`` names a folder rather than a model on the hub such as ``Qwen/Qwen2.5-7B-Instruct``."""
    name = str(model)
    return isinstance(model, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists()
