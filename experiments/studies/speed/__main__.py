"""``python -m experiments.studies.speed WHAT``: measure both sides of a comparison.

README.md has the commands behind the saved rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from experiments.studies.speed.results import table, write_json
from memagent_lib.paths import absolute, require_replaceable
from memagent_lib.settings import key_value, parse

BENCHES = {
    "data": ("our generators against one that tokenises everything at each step", "n=16 or task=vt"),
    "read": ("reading: chunk first, overhead, lock step, length, a huge file", "rounds=1 or chunk_tokens=256"),
    "client": ("the client's processor time per turn, against a bare loop of posts", "readings=16 or rounds=1"),
    "engines": ("several engines on the same cores as one", "engines=4 or backend=transformers or cluster=auto"),
    "train": (
        "a training step, part by part: ours, verl's own loop, the engine alone",
        "steps=4 or base=../older-checkout",
    ),
    "walls": (
        "how long a person waits for 00, a reading, a report and MLflow's pages, beside the aims",
        "rounds=3 or readings=0",
    ),
    "sweep": (
        "time that a sweep adds to papermill, rows it loses, time of memory traces",
        "points=8 or logging_points=0",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    a = parser().parse_args(argv)
    module = import_module(f"experiments.studies.speed.{a.what}")
    kind = getattr(module, f"{a.what.title()}Bench")
    bench = getattr(module, f"bench_{a.what}")
    out = absolute(a.out or f"runs/bench_{a.what}.json")
    try:
        require_replaceable(out)
        settings = made(kind, a.settings, **({"measures": a.measure} if a.measure else {}))
        found = bench(settings, report=_say)
    except ValueError as error:
        _say(f"bench {a.what}: {error}")
        return 2
    print(table([ratio for measured in found.values() for ratio in measured.ratios]))
    for name, measured in found.items():
        if measured.note:
            print(f"{name}: {measured.note}")
    _say(f"wrote {write_json(out, settings, found)}")
    return 0


def parser() -> argparse.ArgumentParser:
    description = (__doc__ or "").partition(": ")[2]
    top = argparse.ArgumentParser(prog="python -m experiments.studies.speed", description=description)
    benches = top.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, (summary, such_as) in BENCHES.items():
        bench = benches.add_parser(name, help=summary, description=summary)
        sizes = f"settings, such as {such_as}; an unknown one lists them all"
        bench.add_argument("settings", nargs="*", metavar="key=value", help=sizes)
        bench.add_argument("--out", metavar="FILE.json", help=f"where all rows go (default: runs/bench_{name}.json)")
        bench.set_defaults(measure=None)
        if name == "read":
            bench.add_argument("--measure", action="append", metavar="NAME", help="only this one, or these")
    return top


def made(kind: type, texts: Sequence[str], **more: Any) -> Any:
    """Create a bench's settings from ``key=value`` texts. The error for an unknown key lists the known ones."""
    return parse(kind, dict(map(key_value, texts)) | more, "the bench")


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
