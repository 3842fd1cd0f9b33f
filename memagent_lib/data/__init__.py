"""Examples and where they come from: generators that are pure functions of their seed, and files of others."""

from memagent_lib.data.examples import Example, Span, data_hash
from memagent_lib.data.formats.originals import FORMATS, read_original
from memagent_lib.data.storage import load, save, stream
from memagent_lib.data.tasks.catalog import TASKS, describe, make
from memagent_lib.data.tasks.needles import NeedleTask, make_needles

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
