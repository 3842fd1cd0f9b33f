"""Files of other projects, read as those projects publish them. Their wording is not changed.

A format is a module with its ``FORMAT``, and one entry in ``FORMATS`` (``originals.py``). HotpotQA's and SQuAD's files
also yield a pool of documents to build longer ones from. Knows examples and pools; knows no generated task, no model
and no tokenizer.
"""

from memagent_lib.data.formats.originals import (
    FORMATS,
    format_named,
    likely_format,
    read_original,
    read_pool,
    require_file,
    require_options,
)
from memagent_lib.data.formats.records import unique, utf8_text

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
