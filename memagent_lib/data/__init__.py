"""Examples and where they come from: generators that are pure functions of their seed, and files of others.

Knows examples, their files, and how documents of a wanted length are put together. Knows no reader of documents and no
training; only the no-context filter asks an agent, which it is handed.
"""

from memagent_lib.data.conversion import Choice, convert
from memagent_lib.data.drafting import Length
from memagent_lib.data.examples import Example, Span, data_hash
from memagent_lib.data.filtering import Filtered, drop_known
from memagent_lib.data.formats import FORMATS, read_original
from memagent_lib.data.overview import data_files
from memagent_lib.data.splits import make_splits, split_file
from memagent_lib.data.storage import count, load, require_parquet, save, stream
from memagent_lib.data.tasks import TASKS, configured, describe, make, preset, world

__all__ = [
    "FORMATS",
    "TASKS",
    "Choice",
    "Example",
    "Filtered",
    "Length",
    "Span",
    "configured",
    "convert",
    "count",
    "data_files",
    "data_hash",
    "describe",
    "drop_known",
    "load",
    "make",
    "make_splits",
    "preset",
    "read_original",
    "require_parquet",
    "save",
    "split_file",
    "stream",
    "world",
]
