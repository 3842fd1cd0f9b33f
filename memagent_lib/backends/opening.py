"""A backend by name; its engine is imported when it is opened, and says what to install when it is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from memagent_lib.backends.interface import Backend, Sampling

_CLASSES = {"openai": "OpenAICompatible", "transformers": "Transformers", "vllm": "VLLM"}


def open_backend(kind: str, model: str, sampling: Sampling | None = None, **options: Any) -> Backend:
    """A backend by name: ``vllm``, ``openai`` (any server) or ``transformers``; each class names its ``options``."""
    if kind not in _CLASSES:
        raise ValueError(f"no backend {kind!r}; choose from {', '.join(_CLASSES)}")
    backend = getattr(import_module(f"memagent_lib.backends.{kind}"), _CLASSES[kind])
    return backend(model, sampling or Sampling(), **options)
