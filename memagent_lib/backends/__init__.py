"""Backends: each turns one request into one raw reply, or raises :class:`BackendError`.

Knows no reader and no template. Every backend promises, whatever its engine: requests may run side by side, and each
gets its own reply; greedy replies do not depend on what else is running; token counts and finish reason are the
engine's; a reply has at most ``max_tokens`` tokens, and its finish reason is ``"length"`` where it was cut; a prompt
that does not fit ``window`` is refused before any work. ``tests/backends/test_backend_contract.py`` checks every entry
of :data:`BACKENDS`.

:class:`Scripted` needs no model; the others load theirs when they are opened. :class:`ModelShape` computes what a turn
of a model costs, without loading weights.
"""

from memagent_lib.backends.interface import Backend, BackendError, BackendUnavailable, Sampling, require_room
from memagent_lib.backends.model_shape import ModelShape, shape_of
from memagent_lib.backends.opening import BACKENDS, open_backend
from memagent_lib.backends.scripted import Scripted
from memagent_lib.backends.vllm_loop import LoopEngine

__all__ = [
    "BACKENDS",
    "Backend",
    "BackendError",
    "BackendUnavailable",
    "LoopEngine",
    "ModelShape",
    "Sampling",
    "Scripted",
    "open_backend",
    "require_room",
    "shape_of",
]
