"""Results in files: one JSON record per line, and each document stored once beside them.

A chunk is recorded as its span. Its text is stored only if it is not a slice of the document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path

from memagent_lib.errors import MissingFile
from memagent_lib.evaluation.results import Result
from memagent_lib.journal import append_record, digest, records

RESULTS = "results.jsonl"
DOCUMENTS = "documents.jsonl"
STORED_BYTES = 64 << 20
"""The default limit for what is stored. Beside a journal, further documents are recorded by hash and length only;
:func:`write_results` leaves out results that do not fit."""


class DocumentStore:
    """Documents beside results, each stored once under its hash, up to ``limit_bytes`` characters in all."""

    def __init__(self, path: str | Path, limit_bytes: int = STORED_BYTES):
        self.path = Path(path)
        stored = read_documents(self.path)
        self._known = set(stored)
        self._room = limit_bytes - sum(map(len, stored.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def add(self, name: str, text: str) -> bool:
        """Store a document if there is room; return whether it is in the store."""
        if text and name not in self._known and len(text) <= self._room:
            append_record(self.path, name, {"text": text})
            self._known.add(name)
            self._room -= len(text)
        return name in self._known


def read_documents(path: str | Path) -> dict[str, str]:
    """Return the stored documents by hash. A missing file has none."""
    if not Path(path).is_file():
        return {}
    texts = (record["text"] for record in records(path))
    return {digest(text): text for text in texts}


def read_results(path: str | Path) -> list[Result]:
    """Return the results in a file, or in all files of a folder, with the documents stored beside them."""
    return list(chain.from_iterable(results_by_file(path).values()))


def results_by_file(path: str | Path) -> dict[Path, list[Result]]:
    """Return what :func:`read_results` returns, by file. Files of one folder may have different readings of a question.

    Raises :class:`MissingFile` if there is none.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.glob("*.jsonl") if file.name != DOCUMENTS)
    else:
        files = [path] if path.is_file() else []
    if not files:
        raise MissingFile(f"no results at {path}")
    documents = read_documents(files[0].parent / DOCUMENTS)
    return {
        file: [Result.from_record(record, documents.get(record["document"])) for record in records(file)]
        for file in files
    }


def write_results(results: Iterable[Result], folder: str | Path, limit_bytes: int = STORED_BYTES) -> int:
    """Write results and their documents until the limit is reached; return how many results were left out.

    The limit is for records and documents together. Wrong and right results alternate, so that both kinds are present
    even if the limit is reached.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    documents = DocumentStore(folder / DOCUMENTS, limit_bytes)
    left_out = 0
    room = limit_bytes
    for number, result in enumerate(_wrong_and_right(results)):
        record = result.to_record(stored=True)
        text = result.example.document
        # The record of a long reading can be as large as its document, so both count against the limit.
        size = len(json.dumps(record))
        # Several readers of one document store it once.
        if result.document not in documents:
            size += len(text)
        if size > room:
            left_out += 1
            continue
        documents.add(result.document, text)
        append_record(folder / RESULTS, str(number), record)
        room -= size
    return left_out


def _wrong_and_right(results: Iterable[Result]) -> Iterator[Result]:
    """Yield wrong and right results in turn, wrong ones first: people look into failures."""
    results = list(results)
    wrong = (result for result in results if not result.correct)
    right = (result for result in results if result.correct)
    return filter(None, chain.from_iterable(zip_longest(wrong, right)))
