"""``memagent report`` and ``leaderboard``: a page for a sweep or a folder of evaluations, and one for a whole store."""

from __future__ import annotations

import click

from memagent_lib.cli.options import require_page, tracking_option, warn


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
    require_page("--out", page)
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
    from memagent_lib.tracking import Experiment, different_kinds
    from memagent_lib.tracking import leaderboard as rows_of

    folder = "" if "://" in tracking else f"{tracking}/"
    with status_line(f"writing the leaderboard of {tracking}"):
        board = rows_of(Experiment.open(tracking, create=False))
        path = save_leaderboard(board, out or f"{folder}leaderboard.html")
    warn(*different_kinds(board))
    print(path)
