"""Several engines as one backend: each is an actor of Ray, on this machine or on any node of a cluster.

Readers, journals and MLflow stay in the process that evaluates. The loss of an engine costs at most the turns that it
was generating; another engine generates them again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from memagent_lib.backends.interface import BackendUnavailable, Sampling, require_room
from memagent_lib.prompts import Request
from memagent_lib.system import LOCAL, ClusterError, end_ray, require_answer, require_packages, start_ray
from memagent_lib.trace import Reply

_LOG = logging.getLogger("memagent_lib")


class _Engine:
    """An engine in a process of its own. Ray runs its methods."""

    async def open(self, engine: str, model: str, sampling: Sampling, options: Mapping[str, Any]) -> int:
        self._backend = resolve_name(engine)(model, sampling, **options)
        return self._backend.window

    async def complete(self, request: Request) -> Reply:
        return await self._backend.complete(request)


class EnginePool:
    """A backend of several equal engines, each with a copy of the model. ``engine`` is their class, ``MODULE:NAME``.

    ``cluster`` is the address of a Ray cluster, ``auto``, or ``local`` for a private Ray on this machine, which ends
    with the pool. Every engine gets a GPU, or on a cluster without any, ``threads`` cores (default: one). ``options``
    are those of the engines. Raises :class:`ClusterError` if no cluster answers or it has too few GPUs or cores.
    """

    def __init__(
        self, engine: str, model: str, sampling: Sampling, engines: int, cluster: str = LOCAL, **options: Any
    ) -> None:
        require_packages("several engines", "ray")
        import ray

        self.sampling = sampling
        self._busy: dict[Any, int] = {}  # the turns that each engine is generating
        self._owns_ray = not ray.is_initialized()
        self._session: Path | None = None
        start = {"namespace": "memagent-engines", "log_to_driver": False, "logging_level": "ERROR"}
        if self._owns_ray and cluster == LOCAL:
            self._session = start_ray(start | {"address": LOCAL, "include_dashboard": False})
        elif self._owns_ray:
            require_answer(cluster)
            ray.init(address=cluster, **start)
        try:
            has = ray.cluster_resources()
            share = {"num_gpus": 1} if has.get("GPU") else {"num_cpus": options.setdefault("threads", 1)}
            room = has.get("GPU") or has.get("CPU", 0) // share["num_cpus"]
            if room < engines:  # Ray would wait
                raise ClusterError(f"engines {engines}: Ray has room for {room:.0f}; lower engines")
            # SPREAD: all nodes before the second engine of one. An engine batches its turns itself, so no call waits.
            placed = ray.remote(_Engine).options(**share, scheduling_strategy="SPREAD", max_concurrency=1000)
            self._busy = {placed.remote(): 0 for _ in range(engines)}
            self.window = min(ray.get([each.open.remote(engine, model, sampling, options) for each in self._busy]))
        except BaseException as failure:
            self._end()
            if isinstance(failure, ray.exceptions.RayTaskError):  # Ray's message has a traceback
                raise failure.cause from None
            raise

    async def complete(self, request: Request) -> Reply:
        require_room(request, self.window)
        import ray

        while self._busy:
            engine = min(self._busy, key=self._busy.__getitem__)
            self._busy[engine] += 1
            try:
                return await engine.complete.remote(request)
            except ray.exceptions.RayTaskError as failure:
                if not isinstance(failure.cause, BackendUnavailable):
                    raise failure.cause from None
                self._drop(engine, failure.cause)
            except ray.exceptions.RayError as failure:
                self._drop(engine, failure)
            finally:
                if engine in self._busy:
                    self._busy[engine] -= 1
        raise BackendUnavailable("all engines have ended; the same command continues after the finished turns")

    def _drop(self, engine: Any, failure: Exception) -> None:
        """Leave out an engine that can give no more replies. Several turns may find this out at the same time."""
        if self._busy.pop(engine, None) is not None:
            reason = str(failure).strip().splitlines()[0]
            _LOG.warning("an engine ended (%s); its turns go to the other %d", reason, len(self._busy))

    async def close(self) -> None:
        self._end()

    def _end(self) -> None:
        import ray

        for engine in self._busy:
            ray.kill(engine)
        self._busy = {}
        if self._owns_ray:
            self._owns_ray = False
            end_ray(self._session)
