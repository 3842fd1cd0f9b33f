"""Open a backend by its name, alone or as several equal engines, each an actor of Ray on this machine or in a cluster.

Opening a backend imports its engine; if that is missing, the error explains how to install it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from memagent_lib.backends.interface import Backend, BackendUnavailable, Sampling, require_room
from memagent_lib.errors import nearest
from memagent_lib.paths import model_path
from memagent_lib.prompts import Request
from memagent_lib.system import LOCAL, ClusterError, end_ray, require_answer, require_packages, start_ray
from memagent_lib.trace import Reply

BACKENDS = {
    "vllm": "memagent_lib.backends.vllm:VLLM",
    "transformers": "memagent_lib.backends.transformers:Transformers",
    "openai": "memagent_lib.backends.openai:OpenAICompatible",
}
"""The class of each backend by its name; the first is the default."""
SMALL_MODEL_MB = 100  # of weights at most: such a model starts sooner with transformers and needs one CPU thread
_LOG = logging.getLogger("memagent_lib")
_ENGINES = {"vllm": ("vllm", "torch", "transformers"), "transformers": ("torch", "transformers")}


def open_backend(
    kind: str, model: str, sampling: Sampling | None = None, engines: int = 0, cluster: str = "", **options: Any
) -> Backend:
    """Open the backend ``kind``, one of :data:`BACKENDS`, for a model. ``options`` are passed to its class.

    Without a number of ``threads``, a CPU runs a small model (:data:`SMALL_MODEL_MB`) with one. More would gain little,
    and would wait for each other several times in every layer: on busy cores, readings take many times as long. A
    larger model takes all cores.

    With a number of ``engines``, open that many, each in its own process, as an :class:`EnginePool`. ``cluster`` is the
    address of the Ray cluster for them (default: ``local``, a private one on this machine).
    """
    require_backend(kind, engines, cluster)
    if kind in _ENGINES and not options.get("threads") and _is_small(model):
        options["threads"] = 1
    if engines:
        return EnginePool(BACKENDS[kind], model, sampling or Sampling(), engines, cluster or LOCAL, **options)
    try:
        return resolve_name(BACKENDS[kind])(model, sampling or Sampling(), **options)
    except TypeError as failure:
        unknown = re.search("unexpected keyword argument ('.*')", str(failure))
        if unknown is None:
            raise
        raise ValueError(f"the {kind} backend has no option {unknown[1]}; leave it out") from failure


def backend_for_one_reading(model: str) -> str:
    """Return the name of the backend that answers soonest when ``model`` reads one document.

    It is ``transformers`` for a folder with at most :data:`SMALL_MODEL_MB` of weights on a machine without a GPU, and
    else ``vllm``, which takes longer to start and is faster from then on.
    """
    if not _is_small(model) or not all(map(find_spec, _ENGINES["transformers"])):
        return "vllm"
    import torch  # only now: vLLM's settings must be in the environment before torch is imported

    return "vllm" if torch.cuda.is_available() else "transformers"


def _is_small(model: str) -> bool:
    """Return whether ``model`` is a folder with at most :data:`SMALL_MODEL_MB` of weights."""
    weights = sum(file.stat().st_size for file in Path(model_path(model)).glob("model*.safetensors"))
    return 0 < weights <= SMALL_MODEL_MB * 1e6


def require_backend(kind: str, engines: int = 0, cluster: str = "") -> None:
    """Raise an error if there is no such backend, its engine is not installed, or it cannot use ``engines``.

    This imports no engine.
    """
    if kind not in BACKENDS:
        raise ValueError(f"no backend {kind!r}; choose from {', '.join(BACKENDS)}{nearest(kind, BACKENDS)}")
    packages = [*_ENGINES.get(kind, ()), *(["ray"] if engines else [])]
    require_packages(f"the {kind} backend", *packages, otherwise=", or name a server (backend openai)")
    if engines < 0 or (engines and kind == "openai"):
        raise ValueError(f"engines {engines}: choose at least 1 with {' or '.join(_ENGINES)}, or leave engines out")
    if cluster and not engines:
        raise ValueError(f"the cluster {cluster!r} needs a number of engines, such as its number of GPUs")


class _Engine:
    """An engine in a process of its own. Ray runs its methods."""

    async def open(self, engine: str, model: str, sampling: Sampling, options: Mapping[str, Any]) -> int:
        self._backend = resolve_name(engine)(model, sampling, **options)
        return self._backend.window

    async def complete(self, request: Request) -> Reply:
        return await self._backend.complete(request)


class EnginePool:
    """A backend of several equal engines, each with a copy of the model. ``engine`` is their class, ``MODULE:NAME``.

    Readers, journals and MLflow stay in the process that evaluates. The loss of an engine costs at most the turns that
    it was generating; another engine generates them again.

    ``cluster`` is the address of a Ray cluster, ``auto``, or ``local`` for a private Ray on this machine, which ends
    with the pool. Every engine gets a GPU, or on a cluster without any, ``threads`` cores (default: one). ``options``
    are those of the engines. Raises :class:`ClusterError` if no cluster answers or it has too few GPUs or cores.
    """

    def __init__(self, engine: str, model: str, sampling: Sampling, engines: int, cluster: str, **options: Any) -> None:
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
