"""The list of backends. Opening one imports its engine; if that is missing, the error explains how to install it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from memagent_lib.backends.engine_pool import EnginePool
from memagent_lib.backends.interface import Backend, Sampling
from memagent_lib.errors import nearest
from memagent_lib.paths import bytes_of, model_path
from memagent_lib.system import LOCAL, require_packages

BACKENDS = {
    "vllm": "memagent_lib.backends.vllm:VLLM",
    "transformers": "memagent_lib.backends.transformers:Transformers",
    "openai": "memagent_lib.backends.openai:OpenAICompatible",
}
"""The class of each backend by its name; the first is the default."""
SMALL_MODEL_MB = 100
_ENGINES = {"vllm": ("vllm", "torch", "transformers"), "transformers": ("torch", "transformers")}


def open_backend(
    kind: str, model: str, sampling: Sampling | None = None, engines: int = 0, cluster: str = "", **options: Any
) -> Backend:
    """Open the backend ``kind``, one of :data:`BACKENDS`, for a model. ``options`` are passed to its class.

    With a number of ``engines``, open that many, each in its own process, as an :class:`EnginePool`. ``cluster`` is the
    address of the Ray cluster for them (default: ``local``, a private one on this machine).
    """
    require_backend(kind, engines, cluster)
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
    weights = bytes_of(model_path(model), "model*.safetensors") if Path(model_path(model)).is_dir() else 0
    if not 0 < weights <= SMALL_MODEL_MB * 1e6 or not all(map(find_spec, _ENGINES["transformers"])):
        return "vllm"
    import torch  # only now: vLLM's settings must be in the environment before torch is imported

    return "vllm" if torch.cuda.is_available() else "transformers"


def require_backend(kind: str, engines: int = 0, cluster: str = "") -> None:
    """Raise an error if there is no such backend, its engine is not installed, or it cannot use ``engines``.

    This imports no engine.
    """
    if kind not in BACKENDS:
        raise ValueError(f"no backend {kind!r}; choose from {', '.join(BACKENDS)}{nearest(kind, BACKENDS)}")
    otherwise = ", or name a server (backend openai)"
    require_packages(f"the {kind} backend", *_ENGINES.get(kind, ()), otherwise=otherwise)
    if engines < 0 or (engines and kind == "openai"):
        raise ValueError(f"engines {engines}: choose at least 1 with {' or '.join(_ENGINES)}, or leave engines out")
    if cluster and not engines:
        raise ValueError(f"the cluster {cluster!r} needs a number of engines, such as its number of GPUs")
