"""``memagent card`` and ``push``: a model card for a trained policy, and both on the hub or in a folder."""

from __future__ import annotations

import shlex

import click

from memagent_lib.cli.options import continues, look_next, tracking_option, warn

PUSH_EPILOG = """\b
  memagent card runs/seven                        the card comes first
  memagent push runs/seven ME/NAME --dry-run      what would be uploaded: files and sizes
  memagent push runs/seven ./published/seven      the same files as a copy; a folder begins with /, ./ or ~

The hub's own settings apply: a token from `hf auth login` or HF_TOKEN, another address by HF_ENDPOINT.
"""


@click.command()
@click.argument("policy", metavar="RUN")
@click.option("--out", metavar="FILE", help="The file to write.  [default: README.md in the model folder]")
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
    out: str | None,
    overwrite: bool,
    base: str | None,
    licence: str | None,
    evaluations: tuple[str, ...],
    tracking: str,
) -> None:
    """Write a model card for RUN, the folder of a training run or a model."""
    from memagent_lib.paths import absolute, display, write_atomically
    from memagent_lib.publishing import CARD, Policy, model_card

    found = Policy.of(policy)
    file = absolute(out) if out else found.folder / CARD
    if file.exists() and not overwrite:
        raise ValueError(f"{display(file)} exists; replace it with --overwrite, or name another file with --out")
    written = model_card(found, tracking, base=base or "", licence=licence or "", evaluations=evaluations)
    write_atomically(file, written.text)
    warn(*written.warnings)
    print(file)
    look_next(command=f"memagent push {shlex.quote(policy)} OWNER/NAME")


@click.command(epilog=PUSH_EPILOG)
@click.argument("policy", metavar="RUN")
@click.argument("target")
@click.option("--private", is_flag=True, help="Create the repository as a private one.")
@click.option("--dry-run", is_flag=True, help="Print the files and their sizes; send nothing.")
def push(policy: str, target: str, private: bool, dry_run: bool) -> None:
    """Publish RUN with its model card in TARGET, a repository of the hub (OWNER/NAME) or a folder."""
    from memagent_lib.publishing import Policy, Upload, copy_to_folder, is_folder, push_to_hub

    upload = Upload.of(Policy.of(policy))
    print("\n".join(upload.lines()), flush=True)
    with continues("the same command continues"):
        if dry_run:
            print(f"nothing was sent to {target}")
        elif is_folder(target):
            print(copy_to_folder(upload, target))
        else:
            print(push_to_hub(upload, target, private=private))
