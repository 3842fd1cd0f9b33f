"""The agent loop of a recipe, on a server that a test plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
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


def in_order(*replies: str) -> Callable[[str], str]:
    left: Iterator[str] = iter(replies)
    return lambda prompt: next(left)


class ScriptedServer:
    """verl's rollout server with replies that a function of the prompt's text gives; it records sampling settings."""

    def __init__(self, tokenizer: Any, reply: Callable[[str], str]):
        self.tokenizer, self.reply, self.sampling = tokenizer, reply, []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.sampling.append(sampling_params)
        ids = self.tokenizer.encode(self.reply(self.tokenizer.decode(prompt_ids)))
        return SimpleNamespace(token_ids=ids, log_probs=[-1.0] * len(ids), stop_reason="completed", extra_fields={})
