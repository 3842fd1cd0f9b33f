"""Read your own files (text, HTML, PDF, Office, mail, ...); save and continue a reading, or export it as a page.

This package depends on agents and journals, not on examples, scores or MLflow.
"""

from memagent_lib.documents.file_reading import (
    SavedReading,
    on_bad_memory_for,
    questions_to_answer,
    read_files,
)
from memagent_lib.documents.reading_page import plain
from memagent_lib.documents.sources import Document, DocumentError, SourcePosition

__all__ = [
    "Document",
    "DocumentError",
    "SavedReading",
    "SourcePosition",
    "on_bad_memory_for",
    "plain",
    "questions_to_answer",
    "read_files",
]
