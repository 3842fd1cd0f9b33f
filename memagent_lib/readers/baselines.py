"""What a memory is compared with, in one prompt: the whole document, its ends, its best passages, or nothing."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from memagent_lib.readers.ranking import ranked
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Trace, Turn


def full(question: str, chunks: Iterable[Chunk]) -> Generator[Prompt, Turn, Trace]:
    """The whole document in one prompt; a document that does not fit the window is an error."""
    parts = list(chunks)
    document = Chunk(0, "".join(c.text for c in parts), 0, parts[-1].end, sum(c.tokens for c in parts))
    return (yield from _once(Prompt(Kind.DIRECT, question, chunk=document), "full"))


def truncated(question: str, chunks: Iterable[Chunk]) -> Generator[Prompt, Turn, Trace]:
    """The document's head and tail in one prompt: half of its first chunk and half of its last one.

    Head and tail together are as long as what one turn of the memory agent sees.
    """
    first = last = None
    for last in chunks:
        first = first or last
    if first is last:
        return (yield from _once(Prompt(Kind.DIRECT, question, chunk=first), "truncated"))
    head, tail = first.text[: len(first.text) // 2], last.text[len(last.text) // 2 :]
    ends = Chunk(0, f"{head}\n...\n{tail}", 0, last.end, (first.tokens + last.tokens) // 2)
    return (yield from _once(Prompt(Kind.DIRECT, question, chunk=ends), "truncated"))


def retrieved(question: str, chunks: Iterable[Chunk]) -> Generator[Prompt, Turn, Trace]:
    """The passages that fit the question's words best (BM25), in the document's order, in one prompt.

    A passage is at most a quarter of a chunk and three are shown, so the prompt stays within what one turn of the
    memory agent sees.
    """
    parts = [passage for chunk in chunks for passage in _passages(chunk)]
    best = sorted((ranked(question, [p.text for p in parts]) or range(len(parts)))[:3])
    found = [parts[i] for i in best]
    shown = Chunk(0, "\n...\n".join(p.text for p in found), found[0].start, found[-1].end, sum(p.tokens for p in found))
    return (yield from _once(Prompt(Kind.DIRECT, question, chunk=shown), "retrieved"))


def _passages(chunk: Chunk) -> list[Chunk]:
    """A chunk in passages of at most a quarter of its characters, cut at line or sentence ends where there are some."""
    text, at, passages = chunk.text, 0, []
    size = max(1, -(-len(text) // 4))
    while at < len(text) or not passages:
        half, end = at + size // 2, min(at + size, len(text))
        borders = [text.rfind(mark, half, end) + len(mark) for mark in ("\n", ". ") if mark in text[half:end]]
        cut = max(borders, default=end) if end < len(text) else end
        tokens = -(-chunk.tokens * (cut - at) // max(1, len(text)))
        passages.append(Chunk(chunk.index, text[at:cut], chunk.start + at, chunk.start + cut, tokens))
        at = cut
    return passages


def blind(question: str, chunks: Iterable[Chunk]) -> Generator[Prompt, Turn, Trace]:
    """No document: what the model knows or guesses. Without this baseline, a leak looks like memory."""
    return (yield from _once(Prompt(Kind.BLIND, question), "blind"))


def _once(prompt: Prompt, reader: str) -> Generator[Prompt, Turn, Trace]:
    answer = yield prompt
    return Trace(prompt.question, (answer,), reader=reader)
