"""verl's own training loop on the data, policy and prompts of a recipe of ours: the other side of ``bench train``.

``verl.trainer.main_ppo`` runs as it comes: verl's trainer, workers, FSDP engine, rollout server and agent loop workers.
From us are what verl has no CPU version of (platform, loading of weights into vLLM) and the agent loop.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memagent_lib.prompts import Budget
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.rl.verl_config import AGENT_FILE, ROLLOUT, verl_settings

LOOP = "experiments.bench.verl_loop"
OURS = (
    "+trainer.v1.memagent",
    "actor_rollout_ref.model.external_lib",
    "actor_rollout_ref.actor.policy_loss.loss_mode",
    "algorithm.rollout_correction.bypass_mode",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
)


def arguments(recipe: Recipe, folder: RunFolder, device: str) -> list[str]:
    """What ``python -m verl.trainer.main_ppo`` is given: the recipe's settings less what is ours alone."""
    folder.path.mkdir(parents=True, exist_ok=True)
    agent = {"name": "plain", "_target_": f"{LOOP}.PlainLoop", "template": recipe.reading.template}
    budget = {name: getattr(recipe.reading.budget, name) for name in Budget.__dataclass_fields__}
    (folder.path / AGENT_FILE).write_text(json.dumps([agent | {"budget": budget}]), encoding="utf-8")
    chosen = {name: value for name, value in verl_settings(recipe, folder, device).items() if name not in OURS}
    chosen[f"{ROLLOUT}.agent.default_agent_loop"] = "plain"
    chosen[f"{ROLLOUT}.agent.num_workers"] = 1
    if device == "cpu":
        chosen[f"+{ROLLOUT}.engine_kwargs.vllm"]["worker_extension_cls"] = f"{LOOP}.VerlWeights"
        chosen |= {"+ray_kwargs.ray_init.num_gpus": 1, "ray_kwargs.ray_init.num_cpus": 32}
    chosen |= {"+ray_kwargs.ray_init.include_dashboard": False}
    return [f"{name}={_hydra(value)}" for name, value in chosen.items()]


def _hydra(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_hydra(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_hydra, value)) + "]"
    return "null" if value is None else f"'{value}'" if isinstance(value, str | Path) else str(value)
