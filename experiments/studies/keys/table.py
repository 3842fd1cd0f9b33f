"""Compare each setting of a sweep over training recipes with the unchanged recipe.

Every setting is trained with the same seeds as the recipe, so differences are paired by seed. An interval from three
seeds would mean little, so the table lists each difference.
"""

from __future__ import annotations

import json
from statistics import mean

import pandas as pd

TASK_PREFIX = "held_out "
LAST_STEPS = 3
"""The number of last steps whose training reward is averaged; a single step has only 128 rollouts."""


def outcomes(curves: pd.DataFrame) -> pd.DataFrame:
    """Return one row per ``settings`` and ``seed``, which are missing for a stage of the sweep that varies neither.

    ``reward`` is the mean training reward of the last steps, ``held_out`` the final score on held-out documents, and
    ``held_out TASK`` the same for each task. ``rollouts``, ``rows`` (trained) and ``seconds`` are totals over all
    steps.
    """
    groups = curves.groupby(["settings", "seed"], sort=False, dropna=False)[["metric", "step", "value"]]
    return groups.apply(_outcome).reset_index()


def _outcome(run: pd.DataFrame) -> pd.Series:
    metrics = {name: part.sort_values("step")["value"] for name, part in run.groupby("metric")}
    scores = {name.split("/")[1]: values.iloc[-1] for name, values in metrics.items() if "val-core/" in name}
    return pd.Series(
        {
            "reward": metrics["rollout/reward"].tail(LAST_STEPS).mean(),
            "held_out": mean(scores.values()),
            **{f"{TASK_PREFIX}{task}": score for task, score in scores.items()},
            "rollouts": metrics["rollout/count"].sum(),
            "rows": metrics["rows/trained"].sum(),
            "seconds": metrics["timing_s/step"].sum(),
        }
    )


def table(found: pd.DataFrame) -> str:
    """Return Markdown with one line per setting, which lists its difference from the unchanged recipe at each seed.

    The unchanged recipe has the settings ``[]``.
    """
    base = found[found["settings"] == "[]"].set_index("seed")
    lines = [
        "| settings | reward, last steps | held out | of it | difference, each seed | rollouts | rows trained | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for settings, runs in found.groupby("settings", sort=False, dropna=False):
        runs = runs.set_index("seed")
        differences = ""
        if settings != "[]":  # the recipe has no difference from itself
            paired = 100 * (runs["held_out"] - base["held_out"]).dropna()
            differences = ", ".join(f"{value:+.1f}" for value in paired)
        name = _name(settings)
        lines.append(
            f"| {name} | {100 * runs['reward'].mean():.1f} | {100 * runs['held_out'].mean():.1f} | {_by_task(runs)} "
            f"| {differences} | {runs['rollouts'].mean():,.0f} | {runs['rows'].mean():,.0f} "
            f"| {runs['seconds'].mean():.0f} |"
        )
    return "\n".join(lines)


def _name(settings: object) -> str:
    if not isinstance(settings, str):
        return "those of a stage that varies none"
    return " ".join(f"`{setting}`" for setting in json.loads(settings)) or "as the recipe is"


def _by_task(runs: pd.DataFrame) -> str:
    scores = {name.removeprefix(TASK_PREFIX): runs[name].mean() for name in runs if name.startswith(TASK_PREFIX)}
    return ", ".join(f"{task.removeprefix('pocket_')} {100 * score:.1f}" for task, score in scores.items())
