"""Parts read side by side, their memories merged in a tree: latency grows with the part, not with the document.

The idea of hierarchical merging (BooookScore, arXiv 2310.00785) with a reader in each part. A memory is merged into
another by reading it as if it were a chunk, so that any policy that can read can merge.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import pairwise

from memagent_lib.text import Chunk
from memagent_lib.trace import NO_MEMORY, Kind, Prompt, Trace, Turn

PARTS = 8
Held = tuple[str, Chunk]
"""A memory, and the stretch of the document that it stands for."""


def map_merge(question: str, chunks: Iterable[Chunk]) -> Generator[tuple[Prompt, ...], tuple[Turn, ...], Trace]:
    """Read up to :data:`PARTS` equal parts in parallel, then merge neighbours pairwise, then answer.

    Needs all chunks at once: for documents that fit in memory. Turns are in the order in which they were asked.
    """
    parts = _split(list(chunks), PARTS)
    turns: list[Turn] = []
    memories = [NO_MEMORY] * len(parts)
    for step in range(max(map(len, parts))):
        reading = [i for i, part in enumerate(parts) if step < len(part)]
        replies = yield from _ask(turns, [Prompt(Kind.READ, question, memories[i], parts[i][step]) for i in reading])
        for i, reply in zip(reading, replies, strict=True):
            memories[i] = reply
    level = [(memory, _stretch(part)) for memory, part in zip(memories, parts, strict=True)]
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        replies = yield from _ask(turns, [_merge(question, left, right) for left, right in pairs])
        merged = [(reply, _stretch([left[1], right[1]])) for (left, right), reply in zip(pairs, replies, strict=True)]
        level = merged + level[2 * len(pairs) :]
    yield from _ask(turns, [Prompt(Kind.ANSWER, question, level[0][0])])
    return Trace(question, tuple(turns), reader="map_merge")


def _ask(turns: list[Turn], prompts: list[Prompt]) -> Generator[tuple[Prompt, ...], tuple[Turn, ...], list[str]]:
    asked = yield tuple(prompts)
    turns.extend(asked)
    return [turn.reply.text for turn in asked]


def _merge(question: str, left: Held, right: Held) -> Prompt:
    memory, place = right
    return Prompt(Kind.MERGE, question, left[0], Chunk(place.index, memory, place.start, place.end, place.tokens))


def _stretch(chunks: Sequence[Chunk]) -> Chunk:
    return Chunk(chunks[0].index, "", chunks[0].start, chunks[-1].end, sum(c.tokens for c in chunks))


def _split(chunks: list[Chunk], parts: int) -> list[list[Chunk]]:
    """``chunks`` in at most ``parts`` consecutive runs whose lengths differ by at most one."""
    parts = min(parts, len(chunks))
    ends = [round(i * len(chunks) / parts) for i in range(parts + 1)]
    return [chunks[a:b] for a, b in pairwise(ends)]
