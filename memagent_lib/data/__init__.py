"""Examples and where they come from: generators that are pure functions of their seed, and files of others."""

from memagent_lib.data.catalog import TASKS, describe, make
from memagent_lib.data.examples import Example, Span, data_hash
from memagent_lib.data.needles import NeedleTask, make_needles
from memagent_lib.data.originals import FORMATS, read_original
from memagent_lib.data.storage import load, save, stream

__all__ = [
    "FORMATS",
    "TASKS",
    "Example",
    "NeedleTask",
    "Span",
    "data_hash",
    "describe",
    "load",
    "make",
    "make_needles",
    "read_original",
    "save",
    "stream",
]
