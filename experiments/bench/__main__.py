"""``python -m experiments.bench train|read|data|client|sweep``: measure, side by side in one run. The commands are in
README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from memagent_lib.cli.arguments import POCKET, HelpFormatter
from memagent_lib.settings import key_value, parse


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except ValueError as error:
        print(f"bench {arguments.what}: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m experiments.bench", description=(__doc__ or "").partition(": ")[2])
    benches = top.add_subparsers(dest="what", required=True, metavar="WHAT")

    data = _bench(benches, "data", _data, "our generators beside one that tokenises everything at each step")
    data.add_argument("--task", default="multihop_2", metavar="TASK", help="what is generated")
    data.add_argument("--length-tokens", type=int, default=3_500_000, metavar="N", help="length of a document")
    data.add_argument("--n", type=int, default=128, metavar="N", help="how many examples")
    data.add_argument("--workers", type=int, default=2, metavar="N", help="processes")
    data.add_argument("--model", default=POCKET, metavar="MODEL", help="whose tokenizer counts")

    read = _bench(benches, "read", _read, "reading: chunk first, our overhead, lock step, length, a huge file")
    _settings(read, "rounds=1 or chunk_tokens=256", "runs/bench_read.json")
    read.add_argument(
        "--measure", action="append", default=[], metavar="NAME", help="only this one; may be given several times"
    )
    read.add_argument("--model", default=POCKET, metavar="MODEL", help="whose tokenizer counts; the weights are random")

    client = _bench(benches, "client", _client, "the client's processor time per turn, beside a bare loop of posts")
    _settings(client, "readings=16 or rounds=1", "runs/bench_client.json")
    client.add_argument("--model", default=POCKET, metavar="MODEL", help="whose tokenizer counts")

    train = _bench(benches, "train", _train, "a training step, part by part: ours, verl's own loop, the engine alone")
    _settings(train, "steps=4 or base=../older-checkout", "runs/bench_train.json")

    sweep = _bench(
        benches, "sweep", _sweep, "what a sweep adds to papermill, whether it loses a row, what memory traces cost"
    )
    _settings(sweep, "points=8 or logging_points=0", "runs/bench_sweep.json")
    return top


def _bench(benches: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
    bench = benches.add_parser(name, help=summary, description=summary, formatter_class=HelpFormatter)
    bench.set_defaults(run=run)
    return bench


def _settings(bench: argparse.ArgumentParser, such_as: str, out: str) -> None:
    bench.add_argument(
        "settings", nargs="*", metavar="key=value", help=f"sizes, such as {such_as}; a wrong one lists them all"
    )
    bench.add_argument("--out", default=out, metavar="FILE.json", help="where all rows go")


def _data(a: argparse.Namespace) -> int:
    from experiments.bench.data import bench_data
    from memagent_lib.text import Tokenizer

    print(bench_data(Tokenizer.load(a.model), a.task, a.length_tokens, a.n, a.workers).to_string(index=False))
    return 0


def _read(a: argparse.Namespace) -> int:
    from experiments.bench.read import ReadBench, bench_read

    settings = made(ReadBench, a.settings)
    return _measured(bench_read(a.model, settings, a.measure, report=_say), settings, a.out)


def _client(a: argparse.Namespace) -> int:
    from experiments.bench.client import ClientBench, bench_client

    settings = made(ClientBench, a.settings)
    return _measured(bench_client(a.model, settings), settings, a.out)


def _train(a: argparse.Namespace) -> int:
    from experiments.bench.train import TrainBench, bench_train

    settings = made(TrainBench, a.settings)
    return _measured(bench_train(settings, report=_say), settings, a.out)


def _sweep(a: argparse.Namespace) -> int:
    from experiments.bench.ledger import SweepBench, bench_sweep

    settings = made(SweepBench, a.settings)
    return _measured(bench_sweep(settings, report=_say), settings, a.out)


def made(kind: type, settings: Sequence[str]) -> Any:
    """A bench's settings from ``key=value`` texts; an unknown key lists the known ones."""
    return parse(kind, dict(map(key_value, settings)), "the bench")


def _measured(found: dict[str, Any], settings: Any, out: str) -> int:
    from experiments.bench.results import table, write_json

    print(table([ratio for measured in found.values() for ratio in measured.ratios]))
    for name, measured in found.items():
        if measured.note:
            print(f"{name}: {measured.note}")
    _say(f"wrote {write_json(out, settings, found)}")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
