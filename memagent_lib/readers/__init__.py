"""Readers: strategies that decide the next prompt from the replies so far, as sans-I/O generators.

A reader yields a :class:`~memagent_lib.trace.Prompt` and is sent the :class:`~memagent_lib.trace.Turn`, that prompt
with its reply; or it yields a tuple of independent prompts and is sent their turns in the same order. It returns a
:class:`~memagent_lib.trace.Trace`. It knows no tokenizer, wording, model or event loop, so the evaluator, the verl
rollout, the inspector and the tests all drive the same code.

A reader shows every chunk once and in the order it gets them: a chunk's text is gone after its turn, and capture, cost
and progress count by chunks. One that takes ``previous`` gets the chunks that are left and goes on from that trace.
"""

from memagent_lib.readers.baselines import blind, full, retrieved, truncated
from memagent_lib.readers.gated import gated
from memagent_lib.readers.map_merge import map_merge
from memagent_lib.readers.multislot import multislot
from memagent_lib.readers.overwrite import overwrite, question_list, several_questions
from memagent_lib.readers.recall import recall
from memagent_lib.readers.registry import (
    BASELINES,
    MEMORY_READERS,
    READERS,
    Reader,
    ReaderSession,
    continues,
    reader_named,
    shows,
)

__all__ = [
    "BASELINES",
    "MEMORY_READERS",
    "READERS",
    "Reader",
    "ReaderSession",
    "blind",
    "continues",
    "full",
    "gated",
    "map_merge",
    "multislot",
    "overwrite",
    "question_list",
    "reader_named",
    "recall",
    "retrieved",
    "several_questions",
    "shows",
    "truncated",
]
