"""``memagent sweep``: run notebooks over a grid, a list of points or stages, or show a sweep's progress."""

from __future__ import annotations

import argparse
import shlex

from memagent_lib.cli.arguments import Verbs, add_verb, file_of, look_next, option, switch

EXAMPLES = """\
A grid: every combination of the values, four here. Parameters are the variables in the notebook's cell tagged
"parameters".

  notebook = "notebooks/03_evaluate.ipynb"
  folder = "runs/memory_sizes"                 # results and executed notebooks; {folder} stands for it below, and
                                               # {point} for a name of what varies, where points must not share a file
  workers = 2                                  # points side by side
  [parameters]
  data = "runs/study/data"
  results = "{folder}/results"                 # 03 writes the rows of each point into a folder of its own there
  [grid]
  memory_tokens = [16, 32]
  readers = [["overwrite"], ["gated"]]

A list of points, above the tables, instead of a grid (or together with one: each point runs with each combination):

  points = [{ policy = "before", model = "runs/warm/model" },
            { policy = "after", model = "runs/rl/model" }]

Stages, one after the other, each with a notebook, parameters and a grid or points of its own: experiments/demo.toml.

  memagent sweep FILE.toml                     run what is not finished; the same command continues after any stop
  memagent sweep --status FOLDER               its progress, from another terminal
"""


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "sweep",
        run,
        "run notebooks over a grid, a list of points or stages",
        EXAMPLES,
        how_to_continue=_how_to_continue,
    )
    # argparse's own usage line would not show that --status is used without the other options.
    verb.usage = "memagent sweep FILE.toml [--workers N] [--retry]\n       memagent sweep --status FOLDER"
    verb.add_argument("file", nargs="?", metavar="FILE.toml", help="the notebooks and their points")
    option(verb, "--workers", "N", "points run at the same time (default: the file's own number)")
    switch(verb, "--retry", "run failed points again")
    status = "show the progress of the sweep in a folder; the exit status is 0 once every point has finished"
    option(verb, "--status", "FOLDER", status)


def _how_to_continue(a: argparse.Namespace) -> str:
    if a.status:
        return ""
    return "the same command continues with what is not finished"


def run(a: argparse.Namespace) -> int:
    from memagent_lib import sweeps
    from memagent_lib.paths import display

    if a.status:  # the exit status is 1 while points are unfinished, even if the sweep is still running
        return int(not sweeps.show_sweep(a.status))
    if not a.file:
        raise ValueError("no sweep to run: memagent sweep FILE.toml; memagent sweep --help shows such a file")
    result = sweeps.run_sweep(file_of("sweep", a.file), workers=a.workers, retry=a.retry)
    report = f"memagent report {shlex.quote(display(result.folder))}"
    again = f"memagent sweep {shlex.quote(a.file)} --retry runs what failed"
    look_next(result.folder / "notebooks", result.mlflow, report if result.ok else again)
    return int(not result.ok)
