"""The list of backends. Opening one imports its engine; if that is missing, the error explains how to install it."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from memagent_lib.backends.interface import Backend, Sampling
from memagent_lib.errors import nearest
from memagent_lib.provenance import require_packages

BACKENDS = {
    "vllm": "memagent_lib.backends.vllm:VLLM",
    "transformers": "memagent_lib.backends.transformers:Transformers",
    "openai": "memagent_lib.backends.openai:OpenAICompatible",
}
"""The class of each backend by its name; the first is the default."""
_ENGINES = {"vllm": ("vllm", "torch", "transformers"), "transformers": ("torch", "transformers")}


def open_backend(kind: str, model: str, sampling: Sampling | None = None, **options: Any) -> Backend:
    """Open the backend ``kind``, one of :data:`BACKENDS`, for a model. ``options`` are passed to its class."""
    require_backend(kind)
    return resolve_name(BACKENDS[kind])(model, sampling or Sampling(), **options)


def require_backend(kind: str) -> None:
    """Raise an error if there is no backend ``kind`` or its engine is not installed. This imports no engine."""
    if kind not in BACKENDS:
        raise ValueError(f"no backend {kind!r}; choose from {', '.join(BACKENDS)}{nearest(kind, BACKENDS)}")
    otherwise = ", or name a server (backend openai)"
    require_packages(f"the {kind} backend", *_ENGINES.get(kind, ()), otherwise=otherwise)
