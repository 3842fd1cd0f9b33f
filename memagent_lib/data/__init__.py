"""Examples, which tasks generate from a seed, or which are read from the files of other projects and users.

:func:`make` takes a :class:`Preset`, which is a task with its parameters. For each :class:`ExampleKey` (seed, length,
number) the task returns a plan, for most tasks a :class:`DocumentPlan`: question, answers, statements and filler. The
plan then writes the document: a :class:`Meter` counts tokens, so that it fills the :class:`Length`, and the
:class:`Layout` tells where each statement came to stand, which is the example's evidence. In the other direction, a
:class:`Format` reads examples from a record of somebody else's file.

This package covers examples, their files, and the layout of a document of a requested length. Reading and training are
not part of it; the caller passes the agents that filter questions with a known answer (``--drop-known``).
"""

from memagent_lib.data.examples import (
    Example,
    Span,
    count,
    data_files,
    data_hash,
    is_as_saved,
    load,
    require_parquet,
    save,
    stream,
    stream_records,
)
from memagent_lib.data.formats import FORMATS, Format, format_named, format_names, read_original
from memagent_lib.data.layout import Layout, Length, Meter, Statement, end_of_chunks, fill_chunks, insert, join
from memagent_lib.data.plans import AtLeastOne, DocumentPlan, ExampleKey, Filler, NotNegative, Preset, Share, in_order
from memagent_lib.data.published_files import FOLLOW_DOCUMENT
from memagent_lib.data.records import accepted_answers, texts, written_value
from memagent_lib.data.selection import Selection, convert, known_without_document
from memagent_lib.data.tasks import (
    configured,
    files_of,
    make,
    make_splits,
    noise,
    preset,
    presets,
    prose,
    prose_stock,
    split_file,
    terms,
)

__all__ = [
    "FOLLOW_DOCUMENT",
    "FORMATS",
    "AtLeastOne",
    "DocumentPlan",
    "Example",
    "ExampleKey",
    "Filler",
    "Format",
    "Layout",
    "Length",
    "Meter",
    "NotNegative",
    "Preset",
    "Selection",
    "Share",
    "Span",
    "Statement",
    "accepted_answers",
    "configured",
    "convert",
    "count",
    "data_files",
    "data_hash",
    "end_of_chunks",
    "files_of",
    "fill_chunks",
    "format_named",
    "format_names",
    "in_order",
    "insert",
    "is_as_saved",
    "join",
    "known_without_document",
    "load",
    "make",
    "make_splits",
    "noise",
    "preset",
    "presets",
    "prose",
    "prose_stock",
    "read_original",
    "require_parquet",
    "save",
    "split_file",
    "stream",
    "stream_records",
    "terms",
    "texts",
    "written_value",
]
