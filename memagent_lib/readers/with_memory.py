"""Readers that read chunk by chunk into a memory: MemAgent's own, several memories, and parts read concurrently.

``overwrite`` is MemAgent's (arXiv 2507.02259, section 3). ``multislot`` is after MHM-LRU (arXiv 2607.01523).
``map_merge`` merges memories in a tree, after hierarchical merging (BooookScore, arXiv 2310.00785); to merge two, the
model reads one of them as if it were a chunk, so any policy that can read can merge.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from memagent_lib.readers.declaration import ReaderSession, reader, turns_and_memory
from memagent_lib.text import Chunk
from memagent_lib.trace import NO_MEMORY, Kind, Prompt, Trace, Turn

SLOTS = 4
PARTS = 8


@reader({Kind.READ: 1, Kind.ANSWER: 1})
def overwrite(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> ReaderSession:
    """Read chunk by chunk, and pass only the memory to the next turn. The cost is linear in the document's length.

    ``previous`` is a reading to continue from: its last memory becomes the first one here, and its turns stay in the
    trace.
    """
    turns, memory = yield from read_chunks(question, chunks, previous)
    answer = yield Prompt(Kind.ANSWER, question, memory)
    return Trace(question, (*turns, answer))


def read_chunks(
    question: str, chunks: Iterable[Chunk], previous: Trace | None
) -> Generator[Prompt, Turn, tuple[list[Turn], str]]:
    """Read all chunks as ``overwrite`` does; return the turns and the last memory."""
    turns, memory = turns_and_memory(previous)
    for chunk in chunks:
        turn = yield Prompt(Kind.READ, question, memory, chunk)
        turns.append(turn)
        memory = turn.reply.text
    return turns, memory


@reader({Kind.READ: 1, Kind.ANSWER: SLOTS})
def multislot(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> ReaderSession:
    """Let each chunk rewrite the least recently written of :data:`SLOTS` memories, and answer from all of them.

    Each read prompt includes only the memory to be rewritten. Each memory is rewritten once every :data:`SLOTS` turns,
    so if a share ``r`` of its content survives each rewrite, ``r ** (T / SLOTS)`` remains after ``T`` chunks.
    """
    turns, _ = turns_and_memory(previous)
    slots = [NO_MEMORY] * SLOTS
    # Slots are written in turn, so a turn's number gives its slot.
    for number, turn in enumerate(turns):
        slots[number % SLOTS] = turn.reply.text
    for chunk in chunks:
        slot = len(turns) % SLOTS
        turn = yield Prompt(Kind.READ, question, slots[slot], chunk)
        turns.append(turn)
        slots[slot] = turn.reply.text
    # A short document leaves slots empty; the prompt's budget counts only those in use.
    memories = [memory for memory in slots if memory]
    answer = yield Prompt(Kind.ANSWER, question, "\n".join(memories), memories=max(1, len(memories)))
    return Trace(question, (*turns, answer))


class _Summary(NamedTuple):
    """A memory, and the stretch of the document that it covers (a chunk without text)."""

    memory: str
    stretch: Chunk


@reader({Kind.READ: 1, Kind.MERGE: 1, Kind.ANSWER: 1})
def map_merge(question: str, chunks: Iterable[Chunk]) -> ReaderSession:
    """Read up to :data:`PARTS` equal parts concurrently, merge neighbouring memories pairwise, then answer.

    All chunks are needed at once, so the whole document is loaded. The trace has the turns in prompt order.
    """
    # Parts of equal length finish at the same time, so no request waits for a longer one.
    parts = _split(list(chunks), PARTS)
    turns: list[Turn] = []
    memories = [NO_MEMORY] * len(parts)
    for step in range(max(map(len, parts))):
        active = [i for i, part in enumerate(parts) if step < len(part)]
        prompts = [Prompt(Kind.READ, question, memories[i], parts[i][step]) for i in active]
        replies = yield from _send(prompts, turns)
        for i, reply in zip(active, replies, strict=True):
            memories[i] = reply
    level = [_Summary(memory, _stretch(part)) for memory, part in zip(memories, parts, strict=True)]
    while len(level) > 1:
        level = yield from _merge_neighbours(question, level, turns)
    yield from _send([Prompt(Kind.ANSWER, question, level[0].memory)], turns)
    return Trace(question, tuple(turns))


def _merge_neighbours(
    question: str, level: list[_Summary], turns: list[Turn]
) -> Generator[tuple[Prompt, ...], tuple[Turn, ...], list[_Summary]]:
    """Merge each memory at an even position with the next one. A last memory without a neighbour stays as it is."""
    pairs = list(zip(level[::2], level[1::2], strict=False))
    replies = yield from _send([_merge_prompt(question, left, right) for left, right in pairs], turns)
    merged = [
        _Summary(reply, _stretch([left.stretch, right.stretch]))
        for (left, right), reply in zip(pairs, replies, strict=True)
    ]
    return merged + level[2 * len(pairs) :]


def _send(prompts: list[Prompt], turns: list[Turn]) -> Generator[tuple[Prompt, ...], tuple[Turn, ...], list[str]]:
    """Yield ``prompts`` to be answered concurrently, add their turns to ``turns``, and return the replies' texts."""
    finished = yield tuple(prompts)
    turns.extend(finished)
    return [turn.reply.text for turn in finished]


def _merge_prompt(question: str, left: _Summary, right: _Summary) -> Prompt:
    stretch = right.stretch
    # The span is that of the text that the memory covers, so that progress and positions stay right.
    as_chunk = Chunk(stretch.index, right.memory, stretch.start, stretch.end, stretch.tokens)
    return Prompt(Kind.MERGE, question, left.memory, as_chunk)


def _stretch(chunks: Sequence[Chunk]) -> Chunk:
    return Chunk(chunks[0].index, "", chunks[0].start, chunks[-1].end, sum(c.tokens for c in chunks))


def _split(chunks: list[Chunk], parts: int) -> list[list[Chunk]]:
    """Split ``chunks`` into at most ``parts`` consecutive runs whose lengths differ by at most one."""
    parts = min(parts, len(chunks))
    # Rounded cumulative ends spread a remainder over the parts instead of giving it to the last.
    ends = [round(i * len(chunks) / parts) for i in range(parts + 1)]
    return [chunks[a:b] for a, b in pairwise(ends)]
