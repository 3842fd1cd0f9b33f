"""Start a private Ray for a run on this machine, or join a cluster.

A run's actors have their own namespace, and a second run on the same cluster is refused.
"""

from __future__ import annotations

import fcntl
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run.training_run import RunError
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.rl.verl.verl_settings import environment
from memagent_lib.system import LOCAL, cores, require_answer, start_ray

LOGICAL_CPUS = 32  # Ray hands out logical CPUs; with fewer, verl's small actors wait for one another for ever
STORE_BYTES = 1 << 30
MACHINE_LOCK = "memagent-gpu-run.lock"
CLAIM = "memagent-run"
CLAIM_WAIT_S = 30.0


def cluster_environment(recipe: Recipe) -> dict[str, str]:
    """Return the environment variables that make a private Ray listen on loopback, to set before Ray is imported."""
    if recipe.cluster.address != LOCAL:
        return {}
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo"}


class Membership(NamedTuple):
    """The Ray of a run: its ``claim``, and the folder of a private Ray's logs and sockets (``session``).

    The reservation lasts until the claim is dropped. A private Ray on a CPU needs none.
    """

    claim: object | None
    session: Path | None


def connect(recipe: Recipe, folder: RunFolder, device: str, verl: Any) -> Membership:
    """Start Ray or join the cluster at ``[cluster] address``, and reserve it for this run.

    Raises :class:`~memagent_lib.system.ClusterError` if no cluster answers, and
    :class:`RunError` if it is too small, is reserved for another run, or cannot see the run's folder.
    """
    import ray

    wanted = init_arguments(recipe, folder, device, verl)
    if recipe.cluster.address == LOCAL:
        claim = claim_machine(folder) if device == "cuda" else None
        return Membership(claim, start_ray(wanted))
    require_answer(recipe.cluster.address)
    ray.init(**wanted)
    claim = claim_cluster(recipe.cluster.address, folder)
    require_devices(recipe, ray.cluster_resources())
    require_folder(folder)
    return Membership(claim, None)


def claim_machine(folder: RunFolder) -> IO[str]:
    """Reserve this machine's GPUs for the run's own Ray; raise :class:`RunError` if another run has them.

    Two runs on one machine would mix up their weights: verl names the sockets that carry weights after Ray's job
    number, which is the same in every new Ray.
    """
    claim = _opened(Path(tempfile.gettempdir()) / MACHINE_LOCK)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with claim:
            claim.seek(0)
            other = claim.read()
        raise RunError(
            f"the run {other} trains on this machine with a Ray of its own, and both would hand their weights "
            'through the same sockets; wait for it, or start one Ray for both and join it: cluster.address = "auto"'
        ) from None
    if claim.writable():
        claim.truncate(0)  # only now: until the lock is held, the file has the name of the other run
        print(folder.path, end="", file=claim, flush=True)
    return claim


def _opened(lock: Path) -> IO[str]:
    """Open the lock that all users of this machine share, and let each of them write the name of a run in it."""
    try:
        # Not "a+" alone: Linux lets nobody open another user's file in /tmp with O_CREAT (fs.protected_regular).
        file = lock.open("r+" if lock.exists() else "a+", encoding="utf-8")
    except PermissionError:
        return lock.open(encoding="utf-8")  # it can be locked all the same
    with suppress(PermissionError):
        lock.chmod(0o666)
    return file


def claim_cluster(address: str, folder: RunFolder) -> Any:
    """Reserve the joined cluster for this run; raise :class:`RunError` if another run has it.

    Two runs would mix their rollouts, because verl has one queue per cluster. A killed run's claim lasts until Ray
    notices the end of that run.
    """
    import ray

    @ray.remote(num_cpus=0)  # it must start even if the cluster is busy
    class Claim:
        def path(self) -> str:
            return str(folder.path)

    deadline = time.monotonic() + CLAIM_WAIT_S
    while True:
        try:
            claim = Claim.options(name=CLAIM, namespace=CLAIM).remote()
            ray.get(claim.path.remote())
            break
        except ValueError:  # an actor with this name exists
            if time.monotonic() > deadline:
                raise RunError(_taken(address, _holder())) from None
        time.sleep(1)
    if _alive("TransferQueueController", "transfer_queue"):
        raise RunError(_taken(address, "a run of verl that was not started here"))
    return claim


def _holder() -> str:
    import ray

    try:
        return f"the run {ray.get(ray.get_actor(CLAIM, namespace=CLAIM).path.remote())}"
    except (ValueError, ray.exceptions.RayError):
        return "a run that is just ending"


def _alive(actor: str, namespace: str) -> bool:
    import ray

    try:
        ray.get_actor(actor, namespace=namespace)
    except ValueError:
        return False
    return True


def _taken(address: str, holder: str) -> str:
    return (
        f"the Ray cluster at {address} carries {holder}, and two would share verl's queue of rollouts; "
        "wait for its end or stop it, or give this run a cluster of its own"
    )


def init_arguments(recipe: Recipe, folder: RunFolder, device: str, verl: Any) -> dict[str, Any]:
    """Return the arguments of ``ray.init``.

    The number of GPUs and the object store's size are set only for a private Ray on a machine without a GPU. verl's
    ``ray_kwargs.ray_init`` overrides all arguments but ``runtime_env``.
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
        runtime["env_vars"] |= environment(device, recipe.workers, folder)
    chosen = OmegaConf.to_container(verl.ray_kwargs.get("ray_init", {}), resolve=True) or {}
    return own | {key: value for key, value in chosen.items() if value is not None} | {"runtime_env": runtime}


def require_devices(recipe: Recipe, resources: dict[str, float]) -> None:
    """Raise :class:`RunError` if the cluster's ``resources`` have fewer devices than the recipe needs."""
    wanted = recipe.nodes * recipe.workers
    found = int(resources.get("GPU", 0))
    if found < wanted:
        at = recipe.cluster.address
        raise RunError(
            f"the Ray cluster at {at} has {found} GPUs and the run needs {recipe.nodes} nodes x "
            f"{recipe.workers} = {wanted}; add nodes, or lower trainer.nnodes or trainer.n_gpus_per_node"
        )


def require_folder(folder: RunFolder) -> None:
    """Raise :class:`RunError` unless every node can see the run's folder, because all nodes write there."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    def sees(path: str) -> bool:
        return Path(path).is_file()

    nodes = [node for node in ray.nodes() if node["Alive"]]
    looks = [
        sees.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            str(folder.config)
        )
        for node in nodes
    ]
    blind = [node["NodeManagerHostname"] for node, seen in zip(nodes, ray.get(looks), strict=True) if not seen]
    if blind:
        raise RunError(f"{folder.path} is not seen by {', '.join(blind)}; use a folder that all nodes share")
