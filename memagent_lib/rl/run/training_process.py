"""The process that trains: it composes verl's configuration, starts or joins Ray, and runs verl's trainer.

``python -m memagent_lib.rl.run.training_process RUN_FOLDER PARENT`` trains the recipe in the folder's ``config.json``,
and dies with the process ``PARENT``. The supervisor starts it and sets its environment.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from memagent_lib.paths import write_atomically
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run_folder import RunError, RunFolder
from memagent_lib.rl.verl.verl_settings import environment, load_composed, write_agent_file
from memagent_lib.system import LOCAL, cores, die_with_parent, end_ray, require_answer, start_ray

LOGICAL_CPUS = 32  # Ray hands out logical CPUs; with fewer, verl's small actors wait for one another for ever
STORE_BYTES = 1 << 30
END_WAIT_S = 30


def train(recipe: Recipe, folder: RunFolder, device: str) -> None:
    """Train the recipe in this process to its last step. Errors of verl and Ray are not caught."""
    write_atomically(folder.waits_for, "Ray")
    write_agent_file(folder)
    verl = load_composed(folder)
    arguments = init_arguments(recipe, folder, device, verl)
    session = claim = None
    if recipe.cluster.address == LOCAL:
        claim = claim_machine() if device == "cuda" else None
        session = start_ray(arguments)
    else:
        join_cluster(recipe, arguments)
    try:
        fit(verl, device, folder)
    except BaseException:
        session = None  # the logs there may explain the failure
        raise
    finally:
        end_ray(session)
        if claim:
            claim.close()


def init_arguments(recipe: Recipe, folder: RunFolder, device: str, verl: Any) -> dict[str, Any]:
    """Return the arguments of ``ray.init``; verl's ``ray_kwargs.ray_init`` overrides all but ``runtime_env``.

    The number of GPUs and the object store's size are set only for a private Ray on a machine without a GPU.
    """
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    address = recipe.cluster.address
    runtime = OmegaConf.to_container(OmegaConf.create(get_ppo_ray_runtime_env(verl)))
    runtime["env_vars"]["TRANSFER_QUEUE_ENABLE"] = "1"
    own: dict[str, Any] = {"address": address, "namespace": f"memagent-{folder.key}", "log_to_driver": True}
    if address == LOCAL:
        own |= {"include_dashboard": False, "num_cpus": max(LOGICAL_CPUS, cores())}
        if device == "cpu":
            own |= {"num_gpus": recipe.workers, "object_store_memory": STORE_BYTES}
    else:  # on another machine a worker inherits nothing of this process
        runtime["env_vars"] |= environment(device, recipe, folder)
    chosen = OmegaConf.to_container(verl.ray_kwargs.get("ray_init", {}), resolve=True) or {}
    return own | {key: value for key, value in chosen.items() if value is not None} | {"runtime_env": runtime}


def claim_machine() -> IO[str]:
    """Reserve this machine's GPUs for a Ray of the run's own; raise :class:`RunError` if another run has them.

    Two runs on one machine would mix up their weights: verl names the sockets that carry weights after Ray's job
    number, which is the same in every new Ray.
    """
    file = Path(tempfile.gettempdir()) / "memagent-gpu-run.lock"
    with suppress(PermissionError):  # of another user, who trained here before
        file.touch()
    lock = file.open()  # enough for a lock
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise RunError('another run trains on this machine; start one Ray for both, cluster.address = "auto"') from None
    return lock


def join_cluster(recipe: Recipe, arguments: dict[str, Any]) -> None:
    """Join a running cluster. Raise :class:`RunError` if it is too small, or if another run of verl is on it."""
    import ray

    require_answer(recipe.cluster.address)
    ray.init(**arguments)
    for _ in range(END_WAIT_S):  # until Ray notices the end of a run that was killed
        try:
            ray.get_actor("TransferQueueController", namespace="transfer_queue")
        except ValueError:  # no such actor
            break
        time.sleep(1)
    else:
        raise RunError(f"a run of verl is on the cluster at {recipe.cluster.address}, and two would share its queue")
    wanted = recipe.nodes * recipe.workers
    found = int(ray.cluster_resources().get("GPU", 0))
    if found < wanted:
        raise RunError(f"the cluster at {recipe.cluster.address} has {found} GPUs and the run needs {wanted}")


def fit(verl: Any, device: str, folder: RunFolder) -> None:
    """Build verl's trainer and its manager of rollouts, and train. verl's task runner does the same in a Ray actor."""
    import transfer_queue as tq
    from omegaconf import OmegaConf

    from memagent_lib.rl.trainer import MemAgentTrainer

    write_atomically(folder.waits_for, "the engines and the trainer")
    verl.transfer_queue.enable = True
    OmegaConf.resolve(verl)
    if device == "cpu":
        from memagent_lib.rl.verl.cpu_rollouts import start_servers

        start_servers(verl)
    tq.init(verl.transfer_queue)
    try:
        trainer = MemAgentTrainer(verl)
        trainer.init()
        if device == "cpu":
            from memagent_lib.rl.verl.cpu_rollouts import manager_of
        else:
            from memagent_lib.rl.agent_loop import manager_of
        manager = asyncio.run(manager_of(verl, trainer))
        write_atomically(folder.waits_for, "the first " + ("validation" if verl.trainer.val_before_train else "step"))
        trainer.fit(manager)
    finally:
        tq.close()


def main(arguments: list[str]) -> None:
    """Train the run in the folder ``arguments[0]``, and write a failure to ``error.txt`` there."""
    folder = RunFolder(Path(arguments[0]))
    die_with_parent(int(arguments[1]))
    try:
        recipe, device = folder.recipe()
        train(recipe, folder, device)
    except Exception as failure:
        write_atomically(folder.error, f"{type(failure).__name__}: {failure}")
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
