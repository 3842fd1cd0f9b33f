"""Files in (text, Markdown, HTML, PDF), one reading that can be saved and continued, and the page that one sends to a
colleague.

Knows files, agents, journals and provenance. Knows no examples, no scores and no MLflow.
"""

from memagent_lib.documents.file_reading import SavedReading, asked_questions, read_files
from memagent_lib.documents.reading_page import FileReading, plain
from memagent_lib.documents.sources import Document, DocumentError, SourcePlace

__all__ = [
    "Document",
    "DocumentError",
    "FileReading",
    "SavedReading",
    "SourcePlace",
    "asked_questions",
    "plain",
    "read_files",
]
