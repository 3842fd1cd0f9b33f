"""Read other projects' files as published, and users' own files.

Their wording is not changed; a question may be completed by its options, or by an instruction that the file lacks.
Formats are here or, one per benchmark, in ``experiments/benchmarks/NAME.py`` as ``FORMAT``. HotpotQA's and SQuAD's
files also have a pool of documents, from which longer documents are built. Reading needs no task, model or tokenizer.
"""

from memagent_lib.data.formats.reading import (
    FORMATS,
    Format,
    format_named,
    format_names,
    read_original,
    read_pool,
    require_file,
    require_options,
)
from memagent_lib.data.formats.records import (
    accepted_answers,
    records,
    texts,
    utf8_text,
    written_value,
)
from memagent_lib.data.formats.ruler import FOLLOW_DOCUMENT

__all__ = [
    "FOLLOW_DOCUMENT", "FORMATS", "Format", "accepted_answers", "format_named", "format_names", 
    "read_original", "read_pool", "records", "require_file", "require_options", "texts", "utf8_text", "written_value",
]  # fmt: skip
