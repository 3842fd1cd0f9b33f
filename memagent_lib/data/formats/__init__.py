"""Files of other projects, read as those projects publish them. Their words stay theirs: nothing is rewritten.

A reader gives examples; HotpotQA's and SQuAD's files also give a pool of documents to build longer ones from. Knows
examples and pools; knows no generated task, no model and no tokenizer.
"""

from memagent_lib.data.formats.hotpot import read_hotpot_pool
from memagent_lib.data.formats.originals import (
    FORMATS,
    Format,
    format_named,
    likely_format,
    read_original,
    read_pool,
    require_file,
    require_options,
)
from memagent_lib.data.formats.records import unique, utf8_text
from memagent_lib.data.formats.squad import read_squad_pool

__all__ = [
    "FORMATS",
    "Format",
    "format_named",
    "likely_format",
    "read_hotpot_pool",
    "read_original",
    "read_pool",
    "read_squad_pool",
    "require_file",
    "require_options",
    "unique",
    "utf8_text",
]
