"""Run verl's own training loop on the data, policy and prompts of our recipe, for comparison with ``train``.

``verl.trainer.main_ppo`` runs unmodified: verl's trainer, workers, FSDP engine, rollout server and agent loop workers.
The agent loop is ours, as is what verl lacks on a CPU: the platform and the loading of weights into vLLM.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from memagent_lib.prompts import Budget
from memagent_lib.rl import Recipe, RunFolder
from memagent_lib.rl.verl.verl_settings import AGENT_FILE, environment, verl_settings

LOOP = "experiments.studies.speed.verl_loop"
# Left out, so that verl's own engine, loss and batch sizes are measured.
OURS = (
    "+trainer.v1.memagent",
    "actor_rollout_ref.model.external_lib",
    "actor_rollout_ref.actor.policy_loss.loss_mode",
    "algorithm.rollout_correction.bypass_mode",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
)


def arguments(recipe: Recipe, folder: RunFolder, device: str) -> list[str]:
    """Return the arguments of ``python -m verl.trainer.main_ppo``: the recipe's settings without our own additions."""
    folder.path.mkdir(parents=True, exist_ok=True)
    chosen = {name: value for name, value in verl_settings(recipe, folder, device).items() if name not in OURS}
    name = chosen["actor_rollout_ref.rollout.agent.default_agent_loop"]  # rows of our data name their loop so
    agent = {"name": name, "_target_": f"{LOOP}.PlainLoop", "template": recipe.reading.template}
    budget = {name: getattr(recipe.reading.budget, name) for name in Budget.__dataclass_fields__}
    (folder.path / AGENT_FILE).write_text(json.dumps([agent | {"budget": budget}]), encoding="utf-8")
    chosen["actor_rollout_ref.rollout.agent.num_workers"] = 1
    if device == "cpu":
        chosen |= {"+ray_kwargs.ray_init.num_gpus": 1, "ray_kwargs.ray_init.num_cpus": 32}
    chosen |= {"+ray_kwargs.ray_init.include_dashboard": False}
    chosen |= {"hydra.run.dir": str(folder.path / "hydra")}  # by default a folder in the checkout
    return [f"{name}={hydra_value(value)}" for name, value in chosen.items()]


def verl_environment(recipe: Recipe, folder: RunFolder, checkout: str) -> dict[str, str]:
    """Return the environment variables of verl's process, in which our modules are imported from ``checkout``."""
    own = {
        "PYTHONPATH": os.pathsep.join([str(folder.left_out), checkout]),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_ADDRESS": "local",  # verl's own command would join any Ray that runs on this machine, and then refuse it
    }
    if recipe.model.device == "cpu":
        own["VERL_ENGINE_DEVICE"] = "cuda"  # verl registers its FSDP engine, which also runs on a CPU, only for others
    return environment(recipe.model.device, recipe, folder) | own


def hydra_value(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides: strings quoted, None as null."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, str | Path):
        return f"'{value}'"
    return str(value)
