"""``memagent report``: one page for a sweep or a folder of evaluations."""

from __future__ import annotations

import argparse
import sys

from memagent_lib.cli.arguments import Verbs, add_verb, option

EXAMPLES = """\
examples:
  memagent report runs/demo                      a sweep: the page goes to runs/demo/report.html
  memagent report runs/hqa --out hqa.html        what `memagent evaluate --out runs/hqa` wrote
"""


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "report", run, "write one page: figures, tables, differences, readings", EXAMPLES)
    verb.add_argument("folder", metavar="FOLDER", help="a sweep's folder, or the --out of `memagent evaluate`")
    option(verb, "--out", "PAGE", "where the page goes; FOLDER/report.html by default", default="")
    option(verb, "--tracking", "STORE", "the MLflow store of its runs: a folder or a server's address", default="runs")
    option(verb, "--first", "POLICY", "the policy that comes first and that others are compared with", default="")


def run(a: argparse.Namespace) -> int:
    from memagent_lib.inspector import EvaluationReport
    from memagent_lib.paths import absolute

    report = EvaluationReport.of(a.folder, a.tracking, a.first)
    path = report.page().save(absolute(a.out) if a.out else absolute(a.folder) / "report.html")
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(path)
    return 0
