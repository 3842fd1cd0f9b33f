"""``memagent report``: one page for a sweep or a folder of evaluations."""

from __future__ import annotations

import argparse

from memagent_lib.cli.arguments import Verbs, add_verb, look_next, option, require_page, warn

EXAMPLES = """\
examples:
  memagent report runs/demo                      a sweep: the page goes to runs/demo/report.html
  memagent report runs/hqa --out hqa.html        what `memagent evaluate --out runs/hqa` wrote
"""


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "report", run, "write one page: figures, tables, differences, readings", EXAMPLES)
    verb.add_argument("folder", metavar="FOLDER", help="a sweep's folder, or the --out of `memagent evaluate`")
    option(verb, "--out", "PAGE", "the file to write (default: FOLDER/report.html)", default="")
    store = "the MLflow store of its runs: a folder or a server's address (default: the sweep's own, or runs)"
    option(verb, "--tracking", "STORE", store, default="")
    baseline = "the baseline: listed first, and compared with all other policies (default: the first by name)"
    option(verb, "--first", "POLICY", baseline, default="")


def run(a: argparse.Namespace) -> int:
    from memagent_lib.inspector import EvaluationReport
    from memagent_lib.paths import absolute
    from memagent_lib.status_line import status_line
    from memagent_lib.tracking import EVALUATIONS, Experiment, mlflow_page

    out = absolute(a.out or f"{a.folder}/report.html")
    if a.out or out.is_file():
        require_page("--out", out)
    if a.tracking:  # a misspelt one would become a new, empty store
        Experiment.open(a.tracking, create=False)
    with status_line(f"writing the report of {a.folder}"):
        report = EvaluationReport.of(a.folder, a.tracking, a.first)
        path = report.page().save(out)
    warn(*report.warnings)
    print(path)
    look_next(mlflow=mlflow_page(report.experiment.uri, f"experiments/{report.experiment.experiment_id}/{EVALUATIONS}"))
    return 0
