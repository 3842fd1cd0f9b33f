"""Read other projects' files as published, and users' own files.

Their wording is not changed; a question may be completed by its options, or by an instruction that the file lacks.
A format is a module that defines ``FORMAT``, and one entry in ``FORMATS`` (``originals.py``). HotpotQA's and SQuAD's
files also have a pool of documents, from which longer documents are built. Reading needs no task, no model and no
tokenizer.
"""

from memagent_lib.data.formats.originals import (
    FORMATS,
    format_named,
    likely_format,
    read_original,
    read_pool,
    require_options,
)
from memagent_lib.data.formats.records import require_file, unique, utf8_text

__all__ = [
    "FORMATS",
    "format_named",
    "likely_format",
    "read_original",
    "read_pool",
    "require_file",
    "require_options",
    "unique",
    "utf8_text",
]
