"""Examples and where they come from: generators that are pure functions of their seed, and files of others.

Knows examples, their files, and how documents of a wanted length are put together. Knows no reader of documents and no
training; only the no-context filter asks an agent, which it is handed.
"""

from memagent_lib.data.conversion import Choice, convert
from memagent_lib.data.drafting import ExampleKey, Length, Meter, end_of_chunks, starts_of
from memagent_lib.data.examples import Example, Span, data_hash
from memagent_lib.data.filtering import known_without_document
from memagent_lib.data.formats import FORMATS, read_original, require_options
from memagent_lib.data.overview import data_files
from memagent_lib.data.splits import make_splits, split_file
from memagent_lib.data.storage import (
    copy_without,
    count,
    is_as_saved,
    load,
    require_parquet,
    save,
    stream,
    stream_records,
)
from memagent_lib.data.tasks import (
    ADJECTIVES,
    FILLER,
    NOUNS,
    TASKS,
    NotNegative,
    Preset,
    Share,
    configured,
    make,
    preset,
    terms,
)

__all__ = [
    "ADJECTIVES",
    "FILLER",
    "FORMATS",
    "NOUNS",
    "TASKS",
    "Choice",
    "Example",
    "ExampleKey",
    "Length",
    "Meter",
    "NotNegative",
    "Preset",
    "Share",
    "Span",
    "configured",
    "convert",
    "copy_without",
    "count",
    "data_files",
    "data_hash",
    "end_of_chunks",
    "is_as_saved",
    "known_without_document",
    "load",
    "make",
    "make_splits",
    "preset",
    "read_original",
    "require_options",
    "require_parquet",
    "save",
    "split_file",
    "starts_of",
    "stream",
    "stream_records",
    "terms",
]
