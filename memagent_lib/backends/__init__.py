"""Backends: each turns one request into one completion, or raises :class:`BackendError`.

Knows no reader and no template. :class:`Scripted` needs no model; the others load theirs when they are opened.
:class:`ModelShape` tells what a turn of a model costs and loads no weights.
"""

from memagent_lib.backends.interface import Backend, BackendError, BackendUnavailable, Sampling, require_room
from memagent_lib.backends.model_shape import ModelShape, shape_of
from memagent_lib.backends.opening import open_backend
from memagent_lib.backends.scripted import Scripted
from memagent_lib.backends.vllm_loop import LoopEngine

__all__ = [
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
