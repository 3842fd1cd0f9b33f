"""Convert files of many formats to text, with the position of each piece and a line for each flaw in the text.

A converter is a function from a :class:`Source` to :class:`Converted`. :data:`CONVERTERS` lists them by format, and
:func:`convert` chooses one by the file's content. This package converts one file at a time; it does not depend on
tokenizers or models.
"""

from memagent_lib.documents.converters.converted import (
    Converted,
    ConverterOptions,
    Piece,
    Source,
    Unreadable,
    natural_order,
    printable,
)
from memagent_lib.documents.converters.formats import CONVERTERS, convert, format_of
from memagent_lib.documents.converters.scanned_pages import require_ocr

__all__ = [
    "CONVERTERS",
    "Converted",
    "ConverterOptions",
    "Piece",
    "Source",
    "Unreadable",
    "convert",
    "format_of",
    "natural_order",
    "printable",
    "require_ocr",
]
