"""What the keys of ``[train]`` change, or the parts of the set-up: a table of what the sweep of ``keys.toml`` or of
``ablations.toml``, beside this file, has found.

Three seeds of every setting stand against the same three seeds of the recipe as it is, so differences are paired. Three
differences carry no interval worth the name: all three are shown.
"""

from __future__ import annotations

import json
import sys
from statistics import mean

import pandas as pd

from memagent_lib.sweeps import gather_sweep

TASKS = "held_out "
LAST = 3
"""Training reward is that of the last steps: one step holds 128 rollouts."""


def outcomes(curves: pd.DataFrame) -> pd.DataFrame:
    """Per ``settings`` and ``seed``: the training ``reward`` of the last steps, the score of ``held_out`` documents
    after the last one and that of every task, as ``held_out TASK``; ``rollouts`` made and ``rows`` trained in all, and
    ``seconds`` of all steps.
    """

    def of(run: pd.DataFrame) -> pd.Series:
        by = {name: part.sort_values("step")["value"] for name, part in run.groupby("metric")}
        held_out = {f"{TASKS}{name.split('/')[1]}": value.iloc[-1] for name, value in by.items() if "val-core/" in name}
        return pd.Series(
            {
                "reward": by["rollout/reward"].tail(LAST).mean(),
                "held_out": mean(held_out.values()),
                **held_out,
                "rollouts": by["rollout/count"].sum(),
                "rows": by["rows/trained"].sum(),
                "seconds": by["timing_s/step"].sum(),
            }
        )

    return curves.groupby(["settings", "seed"], sort=False)[["metric", "step", "value"]].apply(of).reset_index()


def table(found: pd.DataFrame) -> str:
    """Markdown: a line for each setting; differences to the recipe as it is (``[]``), seed by seed."""
    base = found[found["settings"] == "[]"].set_index("seed")
    lines = [
        "| settings | reward, last steps | held out | of it | difference, each seed | rollouts | rows trained | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for settings, runs in found.groupby("settings", sort=False):
        runs = runs.set_index("seed")
        paired = 100 * (runs["held_out"] - base["held_out"]).dropna()
        each = ", ".join(f"{value:+.1f}" for value in paired) if settings != "[]" else ""
        tasks = {name.removeprefix(TASKS): runs[name].mean() for name in runs if name.startswith(TASKS)}
        parts = ", ".join(f"{task.removeprefix('pocket_')} {100 * score:.1f}" for task, score in tasks.items())
        name = " ".join(f"`{text}`" for text in json.loads(str(settings))) or "as the recipe is"
        lines.append(
            f"| {name} | {100 * runs['reward'].mean():.1f} | {100 * runs['held_out'].mean():.1f} | {parts} | {each} "
            f"| {runs['rollouts'].mean():,.0f} | {runs['rows'].mean():,.0f} | {runs['seconds'].mean():.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(outcomes(gather_sweep(sys.argv[1] if len(sys.argv) > 1 else "runs/keys", "curve.parquet"))))
