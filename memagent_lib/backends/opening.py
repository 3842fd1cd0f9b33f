"""A backend by name; its engine is imported when it is opened, and says what to install when it is missing."""

from __future__ import annotations

from typing import Any

from memagent_lib.backends.interface import Backend, Sampling


def open_backend(kind: str, model: str, sampling: Sampling | None = None, **options: Any) -> Backend:
    """A backend by name: ``vllm``, ``openai`` (any server) or ``transformers``; each class names its ``options``."""
    sampling = sampling or Sampling()
    if kind == "vllm":
        from memagent_lib.backends.vllm import VLLM

        return VLLM(model, sampling, **options)
    if kind == "openai":
        from memagent_lib.backends.openai import OpenAICompatible

        return OpenAICompatible(model, sampling, **options)
    if kind == "transformers":
        from memagent_lib.backends.transformers import Transformers

        return Transformers(model, sampling, **options)
    raise ValueError(f"no backend {kind!r}; choose from openai, transformers, vllm")
