"""Lay out statements in a document of a requested length.

A task decides what a document states and what surrounds it; this package joins text, finds positions, counts tokens and
reports spans for every task. It uses tokenizers, but no task and no file.
"""

from memagent_lib.data.layout.lengths import Length, Meter, end_of_chunks, longest
from memagent_lib.data.layout.plans import DocumentPlan, ExampleKey, Filler, in_order
from memagent_lib.data.layout.positions import (
    DOCUMENT_SEPARATOR,
    Layout,
    Statement,
    fill_chunks,
    free_positions,
    heading,
    insert,
    join,
    numbered_documents,
    replace_units,
)

__all__ = [
    "DOCUMENT_SEPARATOR",
    "DocumentPlan",
    "ExampleKey",
    "Filler",
    "Layout",
    "Length",
    "Meter",
    "Statement",
    "end_of_chunks",
    "fill_chunks",
    "free_positions",
    "heading",
    "in_order",
    "insert",
    "join",
    "longest",
    "numbered_documents",
    "replace_units",
]
