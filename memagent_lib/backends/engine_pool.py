"""Several engines as one backend: each is an actor of Ray, on this machine or on any node of a cluster.

A turn goes to the engine with the fewest turns under way, so a fast engine takes work that a slow one would have
waited with. Readers, journals and MLflow stay in the process that evaluates, so there is one journal and one writer,
and the loss of an engine costs at most the turns that it was generating; another engine generates them again. A turn
fails only if every engine refuses it, because a broken engine refuses fastest and would be given all turns.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from memagent_lib.backends.interface import Backend, BackendError, BackendUnavailable, Sampling, require_room
from memagent_lib.prompts import Request
from memagent_lib.provenance import code_hash
from memagent_lib.system import LOCAL, ClusterError, end_ray, require_answer, require_packages, start_ray
from memagent_lib.trace import Reply

NO_ROOM_S = 300.0
"""How long an engine may wait for its cores or its GPU on a cluster that has other work."""
MOST_REFUSALS = 3
"""How many turns in a row an engine may refuse that another one answers, before it is left out."""
_NAMESPACE = "memagent-engines"


class Home(NamedTuple):
    """Where an engine's process runs, and whether it could open the model there."""

    host: str
    process: int
    code: str
    has_model: bool

    def __str__(self) -> str:
        return f"the engine on {self.host} (process {self.process})"


class _Engine:
    """An engine in a process of its own. Ray runs its methods."""

    def __init__(self) -> None:
        self._backend: Backend | None = None

    async def home(self, model: str) -> Home:
        return Home(socket.gethostname(), os.getpid(), code_hash(), Path(model).exists())

    async def open(self, engine: str, model: str, sampling: Sampling, options: Mapping[str, Any]) -> int:
        self._backend = resolve_name(engine)(model, sampling, **options)
        return self._backend.window

    async def complete(self, request: Request) -> Reply:
        return await self._backend.complete(request)


@dataclass(eq=False)
class Member:
    """An engine of a pool, how many turns it is generating, and how many it has refused in a row that others answer."""

    actor: Any
    home: Home | None = None
    busy: int = 0
    refused: int = 0


class EnginePool:
    """A backend of several equal engines, each with a copy of the model. ``engine`` is their class, ``MODULE:NAME``.

    ``cluster`` is the address of a Ray cluster, ``auto``, or ``local`` for a private Ray on this machine, which ends
    with the pool. Every engine gets a GPU; on nodes without one, the engines share the cores equally. ``options`` are
    those of the engines. Raises :class:`ClusterError` if no cluster answers or it has too few cores or GPUs, and
    :class:`BackendUnavailable` if a node lacks the model or an engine does not open.
    """

    def __init__(
        self, engine: str, model: str, sampling: Sampling, engines: int, cluster: str = LOCAL, **options: Any
    ) -> None:
        if engines < 1:
            raise ValueError(f"engines must be at least 1, got {engines}")
        require_packages("several engines", "ray")
        import ray

        self.sampling = sampling
        self.engines = engines
        self.ended: list[str] = []
        """A sentence for each engine that has ended before the pool was closed."""
        self._all: list[Member] = []
        self._owns_ray = not ray.is_initialized()
        self._session: Path | None = None
        try:
            if self._owns_ray:
                self._session = _join(cluster)
            share = share_of([node["Resources"] for node in ray.nodes() if node["Alive"]], engines)
            if "threads" not in options and "num_gpus" not in share:
                options["threads"] = share["num_cpus"]
            # SPREAD: all nodes before the second engine of one. An engine batches its turns itself, so no call waits.
            placed = ray.remote(_Engine).options(**share, scheduling_strategy="SPREAD", max_concurrency=1000)
            self._all = [Member(placed.remote()) for _ in range(engines)]
            self._find_homes(model)
            self.window = self._open(engine, model, options)
        except BaseException:
            self._session = None  # the logs there may explain the failure
            self._end()
            raise
        self._alive = list(self._all)

    def _find_homes(self, model: str) -> None:
        """Wait until every engine has a process, and check that it can read this model with this code."""
        import ray

        homes = [engine.actor.home.remote(model) for engine in self._all]
        ready, waiting = ray.wait(homes, num_returns=len(homes), timeout=NO_ROOM_S)
        if waiting:
            raise ClusterError(
                f"only {len(ready)} of {len(homes)} engines found room on the cluster within {NO_ROOM_S:.0f} s, other "
                "work has its cores or GPUs; wait for that, or lower engines"
            )
        for engine, home in zip(self._all, homes, strict=True):
            try:
                engine.home = ray.get(home)
            except ray.exceptions.RayError as failure:
                fix = "install the same version of memagent-lib there"
                raise BackendUnavailable(f"an engine's process did not start: {_reason(failure)}; {fix}") from None
            if engine.home.code != code_hash():
                raise BackendUnavailable(
                    f"{engine.home} has another version of memagent-lib ({engine.home.code}) than this process "
                    f"({code_hash()}); install the same one on all nodes"
                )
            if Path(model).is_absolute() and not engine.home.has_model:
                fix = "put it into a folder that all nodes share, or name a model of the hub"
                raise BackendUnavailable(f"{engine.home} has no model at {model}; {fix}")

    def _open(self, engine: str, model: str, options: Mapping[str, Any]) -> int:
        """Load the model in all engines at once; return their window."""
        import ray

        windows = [one.actor.open.remote(engine, model, self.sampling, options) for one in self._all]
        for one, window in zip(self._all, windows, strict=True):
            try:
                ray.get(window)
            except ray.exceptions.RayTaskError as failure:
                raise BackendUnavailable(f"{one.home} did not open {model}: {failure.cause}") from failure.cause
            except ray.exceptions.RayError:
                fix = "its machine has too little memory for the model and all its engines; lower engines"
                raise BackendUnavailable(f"{one.home} ended while it loaded {model}; usually {fix}") from None
        return min(ray.get(windows))

    async def complete(self, request: Request) -> Reply:
        require_room(request, self.window)
        import ray

        refusals: dict[Member, BackendError] = {}
        while True:
            engine = self._next(refusals)
            engine.busy += 1
            try:
                reply = await engine.actor.complete.remote(request)
            except ray.exceptions.RayTaskError as failure:
                # Ray wraps what the engine has raised, with a traceback in the message.
                if isinstance(failure.cause, BackendUnavailable):
                    self._drop(engine, str(failure.cause))
                elif isinstance(failure.cause, BackendError):
                    refusals[engine] = failure.cause
                else:
                    raise failure.cause from None
            except ray.exceptions.RayError:
                self._drop(engine, "its process or its machine ended")
            else:
                engine.refused = 0
                self._count(refusals)
                return reply
            finally:
                engine.busy -= 1

    def _next(self, refusals: Mapping[Member, BackendError]) -> Member:
        """Return the least busy engine that has not refused the turn; raise the last refusal if all have."""
        if not self._alive:
            raise BackendUnavailable(
                f"all {self.engines} engines have ended: {'; '.join(self.ended) or 'the pool is closed'}; the same "
                "command continues after the finished turns"
            )
        others = [engine for engine in self._alive if engine not in refusals]
        if not others:
            raise list(refusals.values())[-1]
        return min(others, key=lambda each: each.busy)

    def _count(self, refusals: Mapping[Member, BackendError]) -> None:
        """Count the refusals of a turn that another engine has answered."""
        for engine, refusal in refusals.items():
            engine.refused += 1
            if engine.refused >= MOST_REFUSALS:
                self._drop(engine, f"it refused {engine.refused} turns that others answered, the last with: {refusal}")

    def _drop(self, engine: Member, reason: str) -> None:
        """Leave out an engine that can give no more replies. Several turns may find this out at the same time."""
        if engine in self._alive:
            self._alive.remove(engine)
            self.ended.append(f"{engine.home} ended: {reason}")
            _kill(engine.actor)

    async def close(self) -> None:
        self._end()

    def _end(self) -> None:
        for engine in self._all:
            _kill(engine.actor)
        self._all = []
        self._alive = []
        if self._owns_ray:
            self._owns_ray = False
            # The logs say why an engine ended early.
            end_ray(None if self.ended else self._session)


def share_of(nodes: Sequence[Mapping[str, float]], engines: int) -> dict[str, int]:
    """Return what each engine reserves, as Ray's options: a GPU, or without any GPU an equal number of cores.

    ``nodes`` are the resources of each node, by Ray's names. The number of cores is the largest with which all engines
    fit, each on one node. Raises :class:`ClusterError` if there are fewer GPUs, or without any GPU fewer cores, than
    engines.
    """
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    cores = [int(node.get("CPU", 0)) for node in nodes]
    on = f"its {len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    if gpus:
        if gpus < engines:
            raise ClusterError(f"{engines} engines need {engines} GPUs, and Ray has {gpus} on {on}; lower engines")
        return {"num_gpus": 1}
    for each in range(max(cores, default=0), 0, -1):
        if sum(count // each for count in cores) >= engines:
            return {"num_cpus": each}
    raise ClusterError(
        f"{engines} engines need {engines} cores, and Ray has {sum(cores)} on {on}; lower engines or add nodes"
    )


def _join(cluster: str) -> Path | None:
    """Join a cluster, or start a private Ray and return the folder of its logs."""
    import ray

    arguments = {"namespace": _NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if cluster == LOCAL:
        return start_ray(arguments | {"address": LOCAL, "include_dashboard": False})
    require_answer(cluster)
    ray.init(address=cluster, **arguments)
    return None


def _kill(actor: Any) -> None:
    import ray

    with suppress(Exception):  # Ray raises errors of several kinds for an actor that is gone already
        ray.kill(actor)


def _reason(failure: Exception) -> str:
    """Return the last line of an error of Ray, which ends its traceback."""
    return str(failure).strip().splitlines()[-1].strip()
