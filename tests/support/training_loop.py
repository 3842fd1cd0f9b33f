"""The agent loop of a recipe, on a server that a test plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memagent_lib.rl import Recipe, RunFolder


def recipe_of(
    model: str | Path, budget: dict[str, int], reader: str = "overwrite", reading: Any = None, **tables: Any
) -> Recipe:
    """A recipe whose data is not read."""
    made = {"model": {"path": str(model), "device": "cpu"}, "data": {"train": "a.parquet", "eval": "b.parquet"}}
    made["reading"] = {"reader": reader, "template": "short", **budget, **(reading or {})}
    return Recipe.from_tables(made | tables | {"verl": {"trainer.total_training_steps": 1} | tables.get("verl", {})})


def loop_of(folder: Path, server: Any, recipe: Recipe) -> Any:
    """The loop of a run in ``folder``, as verl's worker builds it."""
    from memagent_lib.rl.agent_loop import MemAgentLoop

    RunFolder(folder).traces.mkdir(parents=True)
    RunFolder(folder).write_recipe(recipe, "cpu")
    return MemAgentLoop(server_manager=server, folder=str(folder), tokenizer=None)
