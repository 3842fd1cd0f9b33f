"""The process that trains: composes verl's configuration, starts a Ray of its own, and runs verl's trainer in-process.

``python -m memagent_lib.rl.run.training_process RUN_FOLDER`` reads ``config.json`` there. Started by :mod:`memagent_lib.rl.run.launcher`,
which also sets the environment; run by hand, it logs to the terminal and to no MLflow run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from memagent_lib.files import write_atomically
from memagent_lib.processes import die_with_parent
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run.folder import RunFolder
from memagent_lib.rl.verl_config import compose, settings, write_agent_file

RAY_TRIES = 3  # a machine under load may not start a node in the half minute that Ray gives it
LOGICAL_CPUS = 32  # Ray hands out logical CPUs; with fewer, verl's small actors wait for one another for ever


def train(config: Recipe, folder: RunFolder, device: str) -> None:
    """Run verl to the end. Raises what verl raises."""
    import ray
    from verl.utils.config import validate_config

    if device == "cpu":
        from memagent_lib.rl.cpu.platform import check_registered

        check_registered()
    write_agent_file(config, folder)
    verl = compose(settings(config, folder, device))
    validate_config(config=verl, use_reference_policy=verl.actor_rollout_ref.actor.use_kl_loss, use_critic=False)
    start_ray(config, device, verl)
    try:
        fit(verl)
    finally:
        ray.shutdown()


def start_ray(config: Recipe, device: str, verl: Any) -> None:
    """A Ray of this process's own, with its files in a short temporary folder: socket paths may not be long."""
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    runtime = OmegaConf.to_container(OmegaConf.create(get_ppo_ray_runtime_env(verl)))
    runtime["env_vars"]["TRANSFER_QUEUE_ENABLE"] = "1"
    cpu = (
        {"num_gpus": config.model.workers, "num_cpus": LOGICAL_CPUS, "object_store_memory": 1 << 30}
        if device == "cpu"
        else {}
    )
    given = OmegaConf.to_container(verl.ray_kwargs.get("ray_init", {}), resolve=True) or {}
    given = {key: value for key, value in given.items() if value is not None}
    wanted = {"include_dashboard": False, "log_to_driver": True, **cpu, **given, "runtime_env": runtime}
    for tries_left in reversed(range(RAY_TRIES)):
        try:
            ray.init(**wanted)
            return
        except Exception as error:  # Ray raises a bare one
            if "timed out during startup" not in str(error) or not tries_left:
                raise
            print(f"Ray's node did not start within its 30 seconds; trying again, {tries_left} left", flush=True)
            ray.shutdown()


def fit(verl: Any) -> None:
    """What verl's own task runner does, in this process."""
    import transfer_queue as tq
    from omegaconf import OmegaConf

    from memagent_lib.rl.agent_loop import Manager
    from memagent_lib.rl.trainer import MemAgentTrainer

    verl.transfer_queue.enable = True
    OmegaConf.resolve(verl)
    tq.init(verl.transfer_queue)
    try:
        trainer = MemAgentTrainer(verl)
        trainer.init()
        manager = Manager.create(
            config=verl,
            llm_client=trainer.get_llm_client(),
            teacher_client=trainer.get_teacher_client(),
            reward_loop_worker_handles=trainer.get_reward_handles(),
        )
        trainer.fit(manager)
    finally:
        tq.close()


def main(arguments: list[str]) -> None:
    """``RUN_FOLDER [PARENT_PID]``: with a parent, die when it does, and leave the reason of a failure in ``error.txt``."""
    folder = RunFolder(Path(arguments[0]))
    if len(arguments) > 1:
        die_with_parent(int(arguments[1]))
    record = json.loads(folder.config.read_text(encoding="utf-8"))
    try:
        train(Recipe.from_tables(record["config"]), folder, record["device"])
    except Exception as failure:
        write_atomically(folder.error, f"{type(failure).__name__}: {failure}")
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
