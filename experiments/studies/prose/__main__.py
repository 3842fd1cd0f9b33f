"""Draw the study's figure: the saved scores as lines, and what this machine has read as dots on them.

``python -m experiments.studies.prose [FOLDER] [--out FIGURE.png]``; ``make prose`` makes FOLDER.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.errors import MissingFile
from memagent_lib.evaluation import gather_rows, rate_of, read_rows
from memagent_lib.plots import accuracy_by_task, save_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

HERE = Path(__file__).parent
SEEDS = ("trained", "trained, seed 3")
TASKS = ("prose_needle", "prose_update", "prose_hop")


def figure(saved: pd.DataFrame, own: pd.DataFrame | None = None) -> Axes:
    """Draw saved rows by task and length, and the means of the policy's ``own`` readings with their intervals."""
    saved = saved[saved["task"].isin(TASKS)].sort_values("task", key=lambda task: task.map(TASKS.index), kind="stable")
    first = accuracy_by_task(saved)
    if own is not None:
        own = own[own["reader"] == "overwrite"]
        for panel, task in zip(first.figure.axes, saved["task"].unique(), strict=True):
            for chunks, there in own[own["task"] == task].groupby("chunks"):
                rate = rate_of(there)
                reach = [[rate.value - rate.low], [rate.high - rate.value]]
                panel.errorbar([chunks], [rate.value], reach, fmt="D", color="black")
                beside = {"xytext": (4, 0), "textcoords": "offset points", "fontsize": 8}
                panel.annotate(f"here, n = {rate.n}", (chunks, rate.low), **beside)
    return first


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.prose", description=__doc__)
    parser.add_argument("folder", nargs="?", help="results of the policy read on this machine, drawn as dots")
    parser.add_argument("--out", default="runs/prose/accuracy.png", help="the figure (default: %(default)s)")
    options = parser.parse_args()
    try:
        own = read_rows(options.folder) if options.folder else None
        saved = gather_rows(HERE / "scores", ["warm start", *SEEDS])
    except (MissingFile, ValueError) as error:
        parser.error(str(error))
    print(*save_figure(figure(saved, own), options.out), sep="\n")


if __name__ == "__main__":
    main()
