"""What others see: ``memagent report`` and ``leaderboard`` write pages, ``card`` and ``push`` publish a policy."""

from __future__ import annotations

import shlex

import click

from memagent_lib.cli.options import continues, look_next, require_own, tracking_option


@click.command()
@click.argument("folder")
@click.option("--out", metavar="PAGE", help="The file to write.  [default: FOLDER/report.html]")
@click.option("--tracking", metavar="STORE", default="", show_default=False, help="The MLflow store of its runs.")
@click.option(
    "--first", metavar="POLICY", default="", show_default=False, help="The policy with which all others are compared."
)
def report(folder: str, out: str | None, tracking: str, first: str) -> None:
    """Write one page about FOLDER, a sweep's or the --out of evaluations: figures, tables, differences, readings."""
    from memagent_lib.inspector import save_report
    from memagent_lib.paths import absolute
    from memagent_lib.status_line import status_line
    from memagent_lib.tracking import Experiment

    page = absolute(out or f"{folder}/report.html")
    require_own("--out", page, "<html", "page")
    if tracking:  # a misspelt one would become a new, empty store
        Experiment.open(tracking, create=False)
    with status_line(f"writing the report of {folder}"):
        path = save_report(folder, page, tracking, first)
    print(path)


@click.command()
@click.option("--out", metavar="FILE", help="The file to write: .html or .csv.  [default: STORE/leaderboard.html]")
@tracking_option
def leaderboard(out: str | None, tracking: str) -> None:
    """Write one table of all evaluations in a store: score and cost."""
    from memagent_lib.inspector import save_leaderboard
    from memagent_lib.status_line import status_line
    from memagent_lib.tracking import Experiment
    from memagent_lib.tracking import leaderboard as rows_of

    folder = "" if "://" in tracking else f"{tracking}/"
    with status_line(f"writing the leaderboard of {tracking}"):
        board = rows_of(Experiment.open(tracking, create=False))
        path = save_leaderboard(board, out or f"{folder}leaderboard.html")
    print(path)


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
@click.option("--tracking", metavar="STORE", help="The MLflow store.  [default: that of the training run, else runs]")
def card(
    policy: str,
    overwrite: bool,
    base: str | None,
    licence: str | None,
    evaluations: tuple[str, ...],
    tracking: str | None,
) -> None:
    """Write a model card for RUN, the folder of a training run or a model."""
    from memagent_lib.paths import display, write_atomically
    from memagent_lib.publishing import CARD, Policy, model_card

    found = Policy.of(policy)
    file = found.folder / CARD
    if file.exists() and not overwrite:
        raise ValueError(f"{display(file)} exists; replace it with --overwrite")
    print(write_atomically(file, model_card(found, tracking or "", base or "", licence or "", evaluations)))
    look_next(command=f"memagent push {shlex.quote(policy)} OWNER/NAME")


@click.command()
@click.argument("policy", metavar="RUN")
@click.argument("target")
@click.option("--private", is_flag=True, help="Create the repository as a private one.")
@click.option("--dry-run", is_flag=True, help="Print the files and their sizes; send nothing.")
def push(policy: str, target: str, private: bool, dry_run: bool) -> None:
    """Publish RUN with its model card in TARGET, a repository of the hub (OWNER/NAME).

    \b
      memagent card runs/seven                        the card comes first
      memagent push runs/seven ME/NAME --dry-run      what would be uploaded: files and sizes

    The hub's own settings apply: a token from `hf auth login` or HF_TOKEN, another address by HF_ENDPOINT.
    """
    from memagent_lib.publishing import Policy, files_of, push_to_hub

    found = Policy.of(policy)
    for file in files_of(found):
        print(f"{file.stat().st_size / 1e6:10,.1f} MB  {file.name}", flush=True)
    with continues("the same command continues"):
        print(f"nothing was sent to {target}" if dry_run else push_to_hub(found, target, private))
