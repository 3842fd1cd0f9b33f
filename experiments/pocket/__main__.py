"""Train the warm start of the pocket policy: ``python -m experiments.pocket --out FOLDER``."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.pocket.warm_start import make

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m experiments.pocket", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="the folder to write to")
    parser.add_argument("--seed", type=int, default=0, help="of weights and turns (default: 0)")
    parser.add_argument(
        "--aware",
        type=Path,
        metavar="FOLDER",
        help="continue from this warm start with ideal memories, question in mind: the upper bound",
    )
    parser.add_argument("--template", help="a template's name or file (default: short)")
    parser.add_argument(
        "--unplanted",
        dest="planted",
        action="store_false",
        help="begin from random weights, without the planted lookup heads",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch (default: 1)")
    options = parser.parse_args()
    if options.aware and (options.template or not options.planted):
        parser.error("--aware uses its warm start's template and weights; leave out --template and --unplanted")
    # Options that are not set keep the defaults of make().
    make(**{name: value for name, value in vars(options).items() if value is not None})
