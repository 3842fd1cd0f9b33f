"""``memagent sweep``: run notebooks over a grid, a list of points or stages."""

from __future__ import annotations

import argparse

from memagent_lib.cli.arguments import Verbs, add_verb


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "sweep", run, "run notebooks over a grid, skipping what is done")
    verb.add_argument("file", metavar="FILE.toml", help="the notebooks and their points; see experiments/demo.toml")
    verb.add_argument("--workers", type=int, metavar="N", help="points at once; the file's own number unless given")
    verb.add_argument("--retry", action="store_true", help="run failed points again")


def run(a: argparse.Namespace) -> int:
    from memagent_lib.workbench.sweep import run_sweep

    return 0 if run_sweep(a.file, workers=a.workers, retry=a.retry).ok else 1
