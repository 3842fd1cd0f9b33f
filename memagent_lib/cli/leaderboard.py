"""``memagent leaderboard``: every evaluation of a store in one table."""

from __future__ import annotations

import argparse

from memagent_lib.cli.arguments import Verbs, add_verb, look_next, option, tracking_option, warn

EXAMPLES = """\
examples:
  memagent leaderboard                        a page that sorts by any column and filters by task, length, judge, code
  memagent leaderboard --out board.tex        the same as a LaTeX table; or board.csv with all digits
"""


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "leaderboard", run, "write one table of all evaluations: score and cost", EXAMPLES)
    out = "the file to write: .html, .csv or .tex (default: STORE/leaderboard.html, or leaderboard.html for a server's)"
    option(verb, "--out", "FILE", out, default="")
    tracking_option(verb)


def run(a: argparse.Namespace) -> int:
    from memagent_lib.inspector import require_form, save_leaderboard
    from memagent_lib.status_line import status_line
    from memagent_lib.tracking import EVALUATIONS, Experiment, different_kinds, leaderboard, mlflow_page

    folder = "" if "://" in a.tracking else f"{a.tracking}/"
    out = require_form(a.out or f"{folder}leaderboard.html")
    with status_line(f"writing the leaderboard of {a.tracking}"):
        experiment = Experiment.open(a.tracking, create=False)
        board = leaderboard(experiment)
        path = save_leaderboard(board, out)
    warn(*different_kinds(board))
    print(path)
    look_next(mlflow=mlflow_page(experiment.uri, f"experiments/{experiment.experiment_id}/{EVALUATIONS}"))
    return 0
