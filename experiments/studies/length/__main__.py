"""Print the table, or compare it with the README: ``python -m experiments.studies.length [FOLDER] [--check]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.studies.length.table import table
from memagent_lib.errors import MissingFile
from memagent_lib.evaluation import gather_rows

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.length", description="print the study's table")
    parser.add_argument("folder", nargs="?", default=HERE / "scores", help="results (default: the saved scores)")
    parser.add_argument("--check", action="store_true", help="fail unless README.md holds this table")
    options = parser.parse_args()
    try:
        made = table(gather_rows(options.folder))
    except (MissingFile, ValueError) as error:
        parser.error(str(error))
    if not options.check:
        print(made)
    elif made not in (HERE / "README.md").read_text(encoding="utf-8"):
        parser.error("README.md holds another table; replace it by what this command prints without --check")


if __name__ == "__main__":
    main()
