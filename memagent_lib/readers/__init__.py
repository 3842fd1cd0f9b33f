"""Readers: strategies that choose the next prompt from the replies so far, as sans-I/O generators.

A reader yields a :class:`~memagent_lib.trace.Prompt` and is sent a :class:`~memagent_lib.trace.Turn`: that prompt with
its reply. It may also yield a tuple of independent prompts, and is then sent their turns in the same order. It returns
a :class:`~memagent_lib.trace.Trace`. A reader does not depend on tokenizers, wording, models or event loops, so the
evaluator, the verl rollout, the inspector and the tests all run the same code.

A reader with a memory puts every chunk that it reads into exactly one prompt, because a chunk's text is dropped after
its turn, and capture, cost and progress are counted in chunks. Its prompts follow the document's order; only the parts
of ``map_merge`` are read concurrently, and ``retrieving`` reads passages that it searches for between two chunks. A
reader with a ``previous`` parameter continues that trace with the chunks that follow.

A reader of your own is one file with a generator function under :func:`reader`, opened as ``FILE.py:NAME``. A reader
that ships with the library is a module here and an entry in :data:`READERS`.
"""

from memagent_lib.readers.baselines import blind, full, passages_of, retrieved, truncated
from memagent_lib.readers.declaration import Reader, ReaderError, ReaderSession, reader, turns_and_memory
from memagent_lib.readers.gated import DONE, GATE, KEEP, gated
from memagent_lib.readers.map_merge import map_merge
from memagent_lib.readers.multislot import SLOTS, multislot
from memagent_lib.readers.overwrite import overwrite, question_list, several_questions
from memagent_lib.readers.recall import RECALL, RECALL_COMMAND, recall
from memagent_lib.readers.registry import (
    BASELINES,
    READ_KINDS,
    READERS,
    can_continue,
    reader_named,
    require_continues,
    signal_in_words,
)
from memagent_lib.readers.retrieving import FOUND, SEARCH, SEARCH_COMMAND, retrieving
from memagent_lib.readers.shared import SHARED_QUESTION, after_reading, before_answer

__all__ = [
    "BASELINES",
    "DONE",
    "FOUND",
    "GATE",
    "KEEP",
    "READERS",
    "READ_KINDS",
    "RECALL",
    "RECALL_COMMAND",
    "SEARCH",
    "SEARCH_COMMAND",
    "SHARED_QUESTION",
    "SLOTS",
    "Reader",
    "ReaderError",
    "ReaderSession",
    "after_reading",
    "before_answer",
    "blind",
    "can_continue",
    "full",
    "gated",
    "map_merge",
    "multislot",
    "overwrite",
    "passages_of",
    "question_list",
    "reader",
    "reader_named",
    "recall",
    "require_continues",
    "retrieved",
    "retrieving",
    "several_questions",
    "signal_in_words",
    "truncated",
    "turns_and_memory",
]
