"""``memagent card`` and ``push``: a model card for a trained policy, and both on the hub."""

from __future__ import annotations

import shlex

import click

from memagent_lib.cli.options import continues, look_next, tracking_option

PUSH_EPILOG = """\b
  memagent card runs/seven                        the card comes first
  memagent push runs/seven ME/NAME --dry-run      what would be uploaded: files and sizes

The hub's own settings apply: a token from `hf auth login` or HF_TOKEN, another address by HF_ENDPOINT.
"""


@click.command()
@click.argument("policy", metavar="RUN")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@click.option("--base", metavar="MODEL", help="The base model.  [default: the one that the run was started with]")
@click.option("--license", "licence", metavar="ID", help="A licence such as apache-2.0.  [default: the base model's]")
@click.option(
    "--evaluation",
    "evaluations",
    metavar="FOLDER",
    multiple=True,
    help="The --out of `memagent evaluate`; repeat it for more.  [default: all evaluations in the store]",
)
@tracking_option
def card(
    policy: str,
    overwrite: bool,
    base: str | None,
    licence: str | None,
    evaluations: tuple[str, ...],
    tracking: str,
) -> None:
    """Write a model card for RUN, the folder of a training run or a model."""
    from memagent_lib.paths import display, write_atomically
    from memagent_lib.publishing import CARD, Policy, model_card

    found = Policy.of(policy)
    file = found.folder / CARD
    if file.exists() and not overwrite:
        raise ValueError(f"{display(file)} exists; replace it with --overwrite")
    print(write_atomically(file, model_card(found, tracking, base or "", licence or "", evaluations)))
    look_next(command=f"memagent push {shlex.quote(policy)} OWNER/NAME")


@click.command(epilog=PUSH_EPILOG)
@click.argument("policy", metavar="RUN")
@click.argument("target")
@click.option("--private", is_flag=True, help="Create the repository as a private one.")
@click.option("--dry-run", is_flag=True, help="Print the files and their sizes; send nothing.")
def push(policy: str, target: str, private: bool, dry_run: bool) -> None:
    """Publish RUN with its model card in TARGET, a repository of the hub (OWNER/NAME)."""
    from memagent_lib.publishing import Policy, files_of, push_to_hub

    found = Policy.of(policy)
    for file in files_of(found):
        print(f"{file.stat().st_size / 1e6:10,.1f} MB  {file.name}", flush=True)
    with continues("the same command continues"):
        print(f"nothing was sent to {target}" if dry_run else push_to_hub(found, target, private))
