"""The process that trains: it composes verl's configuration, starts or joins Ray, and runs verl's trainer.

``python -m memagent_lib.rl.run.training_process RUN_FOLDER`` trains the recipe in the folder's ``config.json``. The
supervisor starts this process and sets its environment. If it is started by hand, its output goes to the terminal, verl
writes its metrics to a file in the working directory, and nothing is logged to MLflow.
"""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path
from typing import Any

from memagent_lib.paths import write_atomically
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.cpu import require_platform, start_rollouts
from memagent_lib.rl.run.memory_end import shortened
from memagent_lib.rl.run.ray_cluster import connect
from memagent_lib.rl.run.stacks import STACK_SIGNAL
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.rl.verl.verl_checks import validate
from memagent_lib.rl.verl.verl_settings import compose, verl_settings, write_agent_file
from memagent_lib.system import die_with_parent, end_ray


def train(recipe: Recipe, folder: RunFolder, device: str) -> None:
    """Train the recipe in this process to its last step. Errors of verl and Ray are not caught."""
    if device == "cpu":
        require_platform()
    write_agent_file(recipe, folder)
    verl = compose(verl_settings(recipe, folder, device))
    validate(verl)
    claim, session = connect(recipe, folder, device, verl)
    try:
        fit(verl, device)
    except BaseException:
        session = None  # the logs there may explain the failure
        raise
    finally:
        del claim  # it may be an actor, so it is dropped before Ray ends
        end_ray(session)


def fit(verl: Any, device: str) -> None:
    """Build verl's trainer and its manager of rollouts, and train. verl's task runner does the same in a Ray actor."""
    import transfer_queue as tq
    from omegaconf import OmegaConf

    from memagent_lib.rl.trainer import MemAgentTrainer

    verl.transfer_queue.enable = True
    OmegaConf.resolve(verl)
    if device == "cpu":
        manager_class = start_rollouts(verl)
    else:
        from memagent_lib.rl.verl.rollout_worker import RolloutManager as manager_class
    tq.init(verl.transfer_queue)
    try:
        trainer = MemAgentTrainer(verl)
        trainer.init()
        manager = manager_class.create(
            config=verl,
            llm_client=trainer.get_llm_client(),
            teacher_client=trainer.get_teacher_client(),
            reward_loop_worker_handles=trainer.get_reward_handles(),
        )
        trainer.fit(manager)
    finally:
        tq.close()


def main(arguments: list[str]) -> None:
    """Train the run in the folder ``arguments[0]``, and write a failure to ``error.txt`` there.

    ``arguments[1]``, if present, is the id of the parent process; this process dies with it.
    """
    folder = RunFolder(Path(arguments[0]))
    faulthandler.register(STACK_SIGNAL)  # the supervisor sends it if the run hangs
    if len(arguments) > 1:
        die_with_parent(int(arguments[1]))
    recipe, device = folder.recipe()
    try:
        train(recipe, folder, device)
    except Exception as failure:
        settings = verl_settings(recipe, folder, device)
        write_atomically(folder.error, shortened(f"{type(failure).__name__}: {failure}", settings))
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
