"""Readers: strategies that choose the next prompt from the replies so far, as sans-I/O generators.

A reader yields a :class:`~memagent_lib.trace.Prompt` and is sent a :class:`~memagent_lib.trace.Turn`: that prompt with
its reply. It may also yield a tuple of independent prompts, and is then sent their turns in the same order. It returns
a :class:`~memagent_lib.trace.Trace`. A reader does not depend on tokenizers, wording, models or event loops, so the
evaluator, the verl rollout, the inspector and the tests all run the same code.

A reader with a memory puts every chunk that it reads into exactly one prompt, because a chunk's text is dropped after
its turn, and capture, cost and progress are counted in chunks. Its prompts follow the document's order; only the parts
of ``map_merge`` are read concurrently. A reader with a ``previous`` parameter continues that trace with the chunks that
follow.

A reader of your own is one file with a generator function under :func:`reader`, opened as ``FILE.py:NAME``. The file
also has the reader's kinds of prompt, with their wording, commands and teacher (:class:`~memagent_lib.trace.Kind`), and
its rewards (:mod:`memagent_lib.rl.rewards`). ``experiments/readers`` has examples, which open by name.
"""

from memagent_lib.readers.baselines import Ranking, blind, full, passages_of, retrieved, truncated
from memagent_lib.readers.declaration import Reader, ReaderError, ReaderSession, reader, turns_and_memory
from memagent_lib.readers.questions import (
    SHARED_QUESTION,
    after_reading,
    before_answer,
    question_list,
    several_questions,
)
from memagent_lib.readers.registry import (
    BASELINES,
    READERS,
    can_continue,
    reader_named,
    require_continues,
    signal_in_words,
)
from memagent_lib.readers.with_memory import map_merge, multislot, overwrite

__all__ = [
    "BASELINES",
    "READERS",
    "SHARED_QUESTION",
    "Ranking",
    "Reader",
    "ReaderError",
    "ReaderSession",
    "after_reading",
    "before_answer",
    "blind",
    "can_continue",
    "full",
    "map_merge",
    "multislot",
    "overwrite",
    "passages_of",
    "question_list",
    "reader",
    "reader_named",
    "require_continues",
    "retrieved",
    "several_questions",
    "signal_in_words",
    "truncated",
    "turns_and_memory",
]
