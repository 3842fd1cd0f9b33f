"""Readers: strategies that decide the next prompt from the replies so far, as sans-I/O generators.

A reader yields a :class:`~memagent_lib.trace.Prompt` and is sent a :class:`~memagent_lib.trace.Reply`, or yields a tuple of
prompts that do not depend on one another and is sent their replies in the same order; it returns a
:class:`~memagent_lib.trace.Trace`. It knows no tokenizer, wording, model or event loop, so the evaluator, the verl rollout,
the inspector and the tests all drive the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from memagent_lib.readers.baselines import blind, full, truncated
from memagent_lib.readers.overwrite import overwrite
from memagent_lib.text import Chunk
from memagent_lib.trace import Prompt, Reply, Trace

Move = Prompt | tuple[Prompt, ...]
Reading = Generator[Move, Reply | tuple[Reply, ...], Trace]
Reader = Callable[[str, Iterable[Chunk]], Reading]

READERS: dict[str, Reader] = {"overwrite": overwrite, "full": full, "truncated": truncated, "blind": blind}


def reader_named(name: str) -> Reader:
    if name not in READERS:
        raise ValueError(f"no reader {name!r}; choose from {', '.join(sorted(READERS))}")
    return READERS[name]


__all__ = ["READERS", "Move", "Reader", "Reading", "blind", "full", "overwrite", "reader_named", "truncated"]
