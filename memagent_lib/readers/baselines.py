"""Baselines to compare a memory agent with.

Each uses one prompt, with the whole document, its two ends, its best passages, or none of it.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from functools import cached_property
from typing import Any

from memagent_lib.readers.declaration import ReaderSession, reader
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Trace, Turn

PASSAGES = 3
_CUT = "\n...\n"
"""The text between two passages that are not neighbours."""
# A word, or one character of a script that is written without spaces.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")


@reader({Kind.DIRECT: 1})
def full(question: str, chunks: Iterable[Chunk]) -> ReaderSession:
    """Put the whole document into one prompt. A document that does not fit the window is an error."""
    parts = list(chunks)
    text = "".join(part.text for part in parts)
    return (yield from _direct(question, Chunk(0, text, 0, parts[-1].end, sum(part.tokens for part in parts))))


@reader({Kind.DIRECT: 1})
def truncated(question: str, chunks: Iterable[Chunk]) -> ReaderSession:
    """Put the document's beginning and end into one prompt, about as long as one chunk together.

    They are half of its first chunk and half of its last one, or as much of the document's end if that one is short.
    """
    first = before = last = None
    # Only three chunks stay in memory, however long the document is.
    for chunk in chunks:
        first, before, last = first or chunk, last, chunk
    if first is last:
        return (yield from _direct(question, first))
    head = first.text[: len(first.text) // 2]
    tail, size = last.text[len(last.text) // 2 :], last.tokens
    missing = first.tokens // 2 - last.tokens
    if missing > 0:  # the last chunk is only a short rest
        start = len(before.text) - len(before.text) * missing // before.tokens
        tail, size = before.text[start:] + last.text, first.tokens
    ends = Chunk(0, f"{head}{_CUT}{tail}", 0, last.end, (first.tokens + size) // 2)
    return (yield from _direct(question, ends))


@reader({Kind.DIRECT: 1})
def retrieved(question: str, chunks: Iterable[Chunk]) -> ReaderSession:
    """Put the passages that best match the question's words (BM25) into one prompt, in document order.

    There are at most :data:`PASSAGES` passages of at most a quarter of a chunk each, so together they are shorter than
    one chunk.
    """
    parts = [passage for chunk in chunks for passage in passages_of(chunk)]
    # If no passage shares a word with the question, the document's first ones are as good as any.
    best = Ranking([part.text for part in parts]).ranked(question) or range(len(parts))
    found = [parts[i] for i in sorted(best[:PASSAGES])]
    text = _CUT.join(part.text for part in found)
    joined = Chunk(0, text, found[0].start, found[-1].end, sum(part.tokens for part in found))
    return (yield from _direct(question, joined))


@reader({Kind.BLIND: 1})
def blind(question: str, chunks: Iterable[Chunk]) -> ReaderSession:
    """Ask the question without the document, to measure what the model already knows or guesses.

    Without this baseline, answers that leaked into the model's training data look like memory.
    """
    answer = yield Prompt(Kind.BLIND, question)
    return Trace(question, (answer,))


def passages_of(chunk: Chunk) -> list[Chunk]:
    """Cut a chunk into passages of at most a quarter of its characters, at line or sentence ends if possible."""
    text = chunk.text
    # Rounded up, so that there are at most four.
    size = max(1, -(-len(text) // 4))
    at = 0
    passages = []
    while at < len(text) or not passages:
        cut = _passage_end(text, at, size)
        tokens = -(-chunk.tokens * (cut - at) // max(1, len(text)))
        passages.append(Chunk(chunk.index, text[at:cut], chunk.start + at, chunk.start + cut, tokens))
        at = cut
    return passages


def _passage_end(text: str, at: int, size: int) -> int:
    """Return the last end of a line or sentence in the second half of the passage that begins at ``at``."""
    end = at + size
    if end >= len(text):
        return len(text)
    half = at + size // 2
    ends = [text.rfind(mark, half, end) + len(mark) for mark in ("\n", ". ") if mark in text[half:end]]
    return max(ends, default=end)


def _direct(question: str, document: Chunk) -> Generator[Prompt, Turn, Trace]:
    answer = yield Prompt(Kind.DIRECT, question, chunk=document)
    return Trace(question, (answer,))


class Ranking:
    """Texts to search in with BM25. The index is built at the first search."""

    def __init__(self, texts: Sequence[str]):
        self._corpus = [_words(text) for text in texts]
        self._vocabulary = {word for text in self._corpus for word in text}

    def ranked(self, query: str) -> list[int]:
        """Return the indices of the texts that share a word with ``query``, best match first, ties in input order."""
        terms = sorted(self._vocabulary & set(_words(query)))
        if not terms:
            return []
        scores = self._index.get_scores(terms)
        # sorted is stable, so equal scores stay in order.
        return sorted((i for i, score in enumerate(scores) if score > 0), key=lambda i: -scores[i])

    @cached_property
    def _index(self) -> Any:
        import bm25s  # needs only numpy, and is exact about ties

        index = bm25s.BM25()
        index.index(self._corpus, show_progress=False)
        return index


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
