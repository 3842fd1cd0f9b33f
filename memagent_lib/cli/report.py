"""``memagent report`` and ``leaderboard``: a page for a sweep or a folder of evaluations, and one for a whole store."""

from __future__ import annotations

import click

from memagent_lib.cli.options import look_next, require_page, tracking_option, warn


@click.command()
@click.argument("folder")
@click.option("--out", metavar="PAGE", help="The file to write.  [default: FOLDER/report.html]")
@click.option("--tracking", metavar="STORE", default="", show_default=False, help="The MLflow store of its runs.")
@click.option(
    "--first", metavar="POLICY", default="", show_default=False, help="The policy with which all others are compared."
)
def report(folder: str, out: str | None, tracking: str, first: str) -> None:
    """Write one page about FOLDER, a sweep's or the --out of evaluations: figures, tables, differences, readings."""
    from memagent_lib.inspector import EvaluationReport
    from memagent_lib.paths import absolute
    from memagent_lib.status_line import status_line
    from memagent_lib.tracking import Experiment, mlflow_page

    page = absolute(out or f"{folder}/report.html")
    require_page("--out", page)
    if tracking:  # a misspelt one would become a new, empty store
        Experiment.open(tracking, create=False)
    with status_line(f"writing the report of {folder}"):
        made = EvaluationReport.of(folder, tracking, first)
        path = made.page().save(page)
    warn(*made.warnings)
    print(path)
    look_next(mlflow=mlflow_page(made.experiment.uri, f"experiments/{made.experiment.experiment_id}/runs"))


@click.command()
@click.option("--out", metavar="FILE", help="The file to write: .html or .csv.  [default: STORE/leaderboard.html]")
@tracking_option
def leaderboard(out: str | None, tracking: str) -> None:
    """Write one table of all evaluations in a store: score and cost."""
    from memagent_lib.inspector import require_form, save_leaderboard
    from memagent_lib.status_line import status_line
    from memagent_lib.tracking import Experiment, different_kinds
    from memagent_lib.tracking import leaderboard as rows_of

    folder = "" if "://" in tracking else f"{tracking}/"
    file = require_form(out or f"{folder}leaderboard.html")
    with status_line(f"writing the leaderboard of {tracking}"):
        board = rows_of(Experiment.open(tracking, create=False))
        path = save_leaderboard(board, file)
    warn(*different_kinds(board))
    print(path)
