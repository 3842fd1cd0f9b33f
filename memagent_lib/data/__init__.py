"""Examples, which tasks generate from a seed, or which are read from the files of other projects and users.

This package covers examples, their files, and the layout of a document of a requested length. Reading and training are
not part of it; the caller passes the agents for the no-context filter.
"""

from memagent_lib.data.conversion import Selection, convert
from memagent_lib.data.examples import Example, Span, data_hash
from memagent_lib.data.filtering import known_without_document
from memagent_lib.data.formats import FORMATS, read_original, require_options
from memagent_lib.data.layout import (
    DocumentPlan,
    ExampleKey,
    Filler,
    Layout,
    Length,
    Meter,
    Statement,
    end_of_chunks,
    fill_chunks,
    free_positions,
    in_order,
    insert,
    replace_units,
)
from memagent_lib.data.overview import data_files
from memagent_lib.data.splits import make_splits, split_file
from memagent_lib.data.storage import (
    copy_without,
    count,
    document_bytes,
    is_as_saved,
    load,
    require_parquet,
    save,
    stream,
    stream_records,
)
from memagent_lib.data.tasks import (
    TASKS,
    AtLeastOne,
    NotNegative,
    Preset,
    Share,
    configured,
    make,
    noise,
    preset,
    prose,
    prose_stock,
    terms,
)

__all__ = [
    "FORMATS",
    "TASKS",
    "AtLeastOne",
    "DocumentPlan",
    "Example",
    "ExampleKey",
    "Filler",
    "Layout",
    "Length",
    "Meter",
    "NotNegative",
    "Preset",
    "Selection",
    "Share",
    "Span",
    "Statement",
    "configured",
    "convert",
    "copy_without",
    "count",
    "data_files",
    "data_hash",
    "document_bytes",
    "end_of_chunks",
    "fill_chunks",
    "free_positions",
    "in_order",
    "insert",
    "is_as_saved",
    "known_without_document",
    "load",
    "make",
    "make_splits",
    "noise",
    "preset",
    "prose",
    "prose_stock",
    "read_original",
    "replace_units",
    "require_options",
    "require_parquet",
    "save",
    "split_file",
    "stream",
    "stream_records",
    "terms",
]
