"""Backends: each turns one request into one raw reply, or raises :class:`BackendError` or :class:`BackendUnavailable`.

Every backend, whatever its engine, makes these promises. Requests may run concurrently, and each gets its own reply. A
greedy reply does not depend on what else is running. Token counts and the finish reason come from the engine. A reply
has at most ``max_tokens`` tokens; if that limit truncated it, its finish reason is ``"length"``. A prompt that does not
fit ``window`` is refused before any work. ``tests/backends/test_backend_contract.py`` checks every entry of
:data:`BACKENDS`.

:class:`Scripted` needs no model; the others load theirs, or find it on its server, when they are opened.
Several engines of one of them may run in processes of their own, on one machine or a Ray cluster.
:class:`ModelShape` computes what a model's turns cost without loading its weights. This package does not depend on
readers.
"""

from memagent_lib.backends.interface import (
    RETRY_TEMPERATURE,
    Backend,
    BackendError,
    BackendUnavailable,
    Sampling,
    Scripted,
)
from memagent_lib.backends.model_shape import ModelShape, end_tokens, shape_of, trained_window
from memagent_lib.backends.opening import (
    BACKENDS,
    backend_for_one_reading,
    open_backend,
    require_backend,
)
from memagent_lib.backends.vllm import LoopEngine

__all__ = [
    "BACKENDS",
    "RETRY_TEMPERATURE",
    "Backend",
    "BackendError",
    "BackendUnavailable",
    "LoopEngine",
    "ModelShape",
    "Sampling",
    "Scripted",
    "backend_for_one_reading",
    "end_tokens",
    "open_backend",
    "require_backend",
    "shape_of",
    "trained_window",
]
