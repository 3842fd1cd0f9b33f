"""``python -m experiments.studies.speed WHAT``: measure both sides of a comparison.

README.md has the commands behind the saved rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from experiments.studies.speed.results import table, write_json
from memagent_lib.paths import absolute
from memagent_lib.settings import key_value, parse

BENCHES = {
    "read": "reading: chunk first, overhead, length, a huge file, cost",
    "client": "the client's processor time per turn, against a bare loop of posts",
    "engines": "several engines on the same cores as one",
    "train": "a training step, part by part: ours, verl's own loop, the engine alone",
    "walls": "how long a person waits for 00, a reading, a report and MLflow's pages, beside the targets",
}


def main(argv: Sequence[str] | None = None) -> None:
    described = "; ".join(f"{name} ({what})" for name, what in BENCHES.items())
    top = argparse.ArgumentParser(prog="python -m experiments.studies.speed", description=described)
    top.add_argument("what", choices=BENCHES)
    top.add_argument("settings", nargs="*", metavar="key=value", help="sizes; an unknown one lists them all")
    top.add_argument("--out", metavar="FILE.json", help="where all rows go (default: runs/bench_WHAT.json)")
    top.add_argument("--measure", action="append", metavar="NAME", help="only this one, or these (read)")
    a = top.parse_intermixed_args(argv)
    module = import_module(f"experiments.studies.speed.{a.what}")
    given = dict(map(key_value, a.settings)) | ({"measures": a.measure} if a.measure else {})
    settings = parse(getattr(module, f"{a.what.title()}Bench"), given, "the bench")
    found = getattr(module, f"bench_{a.what}")(settings, report=_say)
    print(table([ratio for measured in found.values() for ratio in measured.ratios]))
    for name, measured in found.items():
        if measured.note:
            print(f"{name}: {measured.note}")
    _say(f"wrote {write_json(absolute(a.out or f'runs/bench_{a.what}.json'), settings, found)}")


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
