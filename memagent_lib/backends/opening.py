"""The list of backends. Opening one imports its engine; if that is missing, the error explains how to install it."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from memagent_lib.backends.interface import Backend, Sampling
from memagent_lib.errors import nearest

BACKENDS = {
    "vllm": "memagent_lib.backends.vllm:VLLM",
    "transformers": "memagent_lib.backends.transformers:Transformers",
    "openai": "memagent_lib.backends.openai:OpenAICompatible",
}
"""The class of each backend by its name; the first is the default."""


def open_backend(kind: str, model: str, sampling: Sampling | None = None, **options: Any) -> Backend:
    """Open the backend ``kind``, one of :data:`BACKENDS`, for a model. ``options`` are passed to its class."""
    if kind not in BACKENDS:
        raise ValueError(f"no backend {kind!r}; choose from {', '.join(BACKENDS)}{nearest(kind, BACKENDS)}")
    return resolve_name(BACKENDS[kind])(model, sampling or Sampling(), **options)
