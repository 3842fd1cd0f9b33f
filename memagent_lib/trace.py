"""The record of a reading: prompts, replies, turns and traces. Only turns are stored; the rest is derived from them.

Every reading ends in a trace, whatever ran it. Frames, pages, metrics and training rows are functions of a trace. This
module does not depend on wording or models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

from memagent_lib.text import Chunk

NO_MEMORY = ""
PARTS = frozenset({"question", "memory", "chunk"})
"""What a prompt can display."""
# The bulk of a trace: several numbers per token.
_TRAINING_FIELDS = ("prompt_ids", "token_ids", "log_probs")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of prompt: the parts it displays, what its reply is, and its wording. Kinds are compared by name.

    A reader that needs a kind beyond those below declares it in its own file. Its ``words``, or the template's entry
    with its name, are appended to the template's text for the kind ``after`` ("" for none).

    If replies may contain a command besides a memory, ``commands`` maps each to the words for it on pages. ``opened``
    takes a reply and the old memory, and returns the reply with the resulting memory as its text and the command as its
    ``signal``: ``"command"`` or ``"command: words"``. ``written`` is the inverse: it takes a memory and a signal, and
    returns the text of the reply that means both. ``malformed`` tells whether an opened text still contains a command,
    in a form or position that means nothing. ``taught`` returns the signal of a lesson's reply, from a
    :class:`memagent_lib.sft.Moment`.
    """

    READ: ClassVar[Kind]
    ANSWER: ClassVar[Kind]
    DIRECT: ClassVar[Kind]
    BLIND: ClassVar[Kind]
    MERGE: ClassVar[Kind]

    name: str
    parts: frozenset[str] = field(default=PARTS, compare=False)
    reads: bool = field(default=False, compare=False)
    """Whether the chunk is text of the document and the reply is a memory."""
    answers: bool = field(default=False, compare=False)
    """Whether the reply is an answer."""
    words: str = field(default="", compare=False)
    after: str = field(default="read", compare=False)
    commands: Mapping[str, str] = field(default_factory=dict, compare=False)
    opened: Callable[[Reply, str], Reply] | None = field(default=None, compare=False, repr=False)
    written: Callable[[str, str], str] | None = field(default=None, compare=False, repr=False)
    malformed: Callable[[str], bool] | None = field(default=None, compare=False, repr=False)
    taught: Callable[[Any], str] | None = field(default=None, compare=False, repr=False)

    @property
    def writes_memory(self) -> bool:
        """Whether the reply is a memory, written from a chunk or merged from two memories."""
        return self.reads or self == Kind.MERGE

    def __str__(self) -> str:
        return self.name


Kind.READ = Kind("read", reads=True)  # the reply is the new memory
Kind.ANSWER = Kind("answer", PARTS - {"chunk"}, answers=True)
Kind.DIRECT = Kind("direct", PARTS - {"memory"}, answers=True)
Kind.BLIND = Kind("blind", frozenset({"question"}), answers=True)
Kind.MERGE = Kind("merge")  # a second memory stands where the chunk would; the reply is a memory of both
_TEMPLATE_KINDS = {kind.name: kind for kind in (Kind.READ, Kind.ANSWER, Kind.DIRECT, Kind.BLIND, Kind.MERGE)}


@dataclass(frozen=True, slots=True)
class Prompt:
    """The content of one prompt, before a template puts it into words.

    ``memories`` is how many memories ``memory`` contains, one below the other, each within the memory budget. If there
    are several, ``replaced`` is the one that the reply replaces.
    """

    kind: Kind
    question: str
    memory: str = NO_MEMORY
    chunk: Chunk | None = None
    memories: int = 1
    replaced: str | None = field(default=None, compare=False, repr=False)

    @property
    def old_memory(self) -> str:
        """The memory that the reply replaces; for a merge, the first of the two."""
        return self.memory if self.replaced is None else self.replaced

    def opened(self, reply: Reply) -> Reply:
        """Return a model's reply to this prompt as a reader gets it: a command in it is its signal."""
        return self.kind.opened(reply, self.old_memory) if self.kind.opened else reply


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply to one prompt.

    A backend returns the raw text; :meth:`memagent_lib.prompts.Encoder.interpret` then moves a reasoning model's
    thoughts from ``text`` to ``thinking``. ``finish_reason`` is ``"stop"``, or ``"length"`` if the token limit
    truncated the reply, or ``"edited"`` if a person changed it in the inspector. Token counts are the engine's.
    ``signal`` is the command that the reader found in the reply (:class:`Kind`). ``sampling_left_out`` names the
    sampling settings that the server refuses, such as ``"temperature=0.3"``; it used its own. ``started`` (Unix time)
    and ``seconds`` measure the backend's work, including its queue; comparisons of replies ignore both.
    """

    text: str
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    reply_tokens: int = 0
    cached_tokens: int = 0
    thinking: str = ""
    signal: str = ""
    sampling_left_out: str = ""
    started: float = field(default=0.0, compare=False)
    seconds: float = field(default=0.0, compare=False)
    # What training needs and records do not: the exact ids, and their log-probabilities under the sampler.
    prompt_ids: tuple[int, ...] = field(default=(), repr=False, compare=False)
    token_ids: tuple[int, ...] = field(default=(), repr=False, compare=False)
    log_probs: tuple[float, ...] = field(default=(), repr=False, compare=False)

    @property
    def cut(self) -> bool:
        return self.finish_reason == "length"

    @property
    def command(self) -> str:
        """The name of the command in ``signal``, without its words; "" if there is none."""
        return self.signal.partition(":")[0]

    def to_record(self) -> dict[str, Any]:
        """Return the fields that journals and records store, as plain JSON types; ``Reply(**record)`` restores them."""
        return {name: getattr(self, name) for name in REPLY_FIELDS}


@dataclass(frozen=True, slots=True)
class BadMemory:
    """Why a turn's reply was not a memory, what was done, and the ``replies`` that were turned away, as they came.

    ``fault`` is the first reply's. ``action`` is ``"take"``, ``"keep"``, or ``"retry"`` if the second reply was a
    memory. With ``"keep"``, all replies were turned away, and the turn's reply has the old memory as its text.
    """

    fault: str
    action: str
    replies: tuple[Reply, ...] = ()

    def __str__(self) -> str:
        """The fault and what was done, such as "the reply was not a memory (refusal); the old memory stayed"."""
        outcome = {"take": "it became the memory", "retry": "a second reply was requested"}
        was = f"the reply was not a memory ({self.fault})"
        if len(self.replies) > 1:
            was += ", nor was the second one"
        return f"{was}; {outcome.get(self.action, 'the old memory stayed')}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One independent conversation: a prompt and the reply to it.

    ``bad_memory`` is set if a reply was not a memory (:mod:`memagent_lib.bad_memory`).
    """

    prompt: Prompt
    reply: Reply
    bad_memory: BadMemory | None = None

    @property
    def attempts(self) -> tuple[Reply, ...]:
        """Every reply that the model wrote for this turn, in order.

        All but the last were turned away, and so was the last if the action is ``keep``.
        """
        bad = self.bad_memory
        if bad is None:
            return (self.reply,)
        return bad.replies if bad.action == "keep" else (*bad.replies, self.reply)

    def lean(self, keep_text: bool = False) -> Turn:
        """Return the turn without token ids, log-probabilities and, unless ``keep_text``, its chunk's text."""
        bad = self.bad_memory
        if bad is not None:
            bad = replace(bad, replies=tuple(map(_without_ids, bad.replies)))
        prompt = self.prompt
        # Without its second memory, a merge would not show which two memories the reply replaces.
        if prompt.chunk is not None and prompt.kind != Kind.MERGE and not keep_text:
            prompt = replace(prompt, chunk=replace(prompt.chunk, text=""))
        return Turn(prompt, _without_ids(self.reply), bad)


def _without_ids(reply: Reply) -> Reply:
    return replace(reply, **dict.fromkeys(_TRAINING_FIELDS, ()))


@dataclass(frozen=True, slots=True)
class Trace:
    """All turns of one reading, in order; the last turn answers.

    ``reader`` is the reader's name or ``FILE.py:NAME``.
    """

    question: str
    turns: tuple[Turn, ...]
    reader: str = "overwrite"

    @property
    def answer(self) -> str:
        return self.turns[-1].reply.text

    @property
    def reads(self) -> tuple[Turn, ...]:
        """The turns that read a chunk, in order."""
        return tuple(t for t in self.turns if t.prompt.kind.reads)

    @property
    def chunks_read(self) -> tuple[Chunk, ...]:
        """The chunks that were read, each once; a passage that was found counts if its chunk was not read."""
        chunks = [turn.prompt.chunk for turn in self.reads if turn.prompt.chunk is not None]
        # A passage has the index of the chunk that it is a part of, and fewer tokens.
        longest = {chunk.index: chunk for chunk in sorted(chunks, key=lambda chunk: chunk.tokens)}
        in_reading_order = dict.fromkeys(chunk.index for chunk in chunks)
        return tuple((in_reading_order | longest).values())

    @property
    def memories(self) -> tuple[str, ...]:
        """The memory written after each chunk.

        :func:`memagent_lib.diagnostics.live_memories` lists the memories in use after each turn.
        """
        return tuple(t.reply.text for t in self.reads)

    @property
    def answers(self) -> dict[str, str]:
        """A mapping of questions to their answers.

        It has several entries if one pass over the document served several questions.
        """
        return {t.prompt.question: t.reply.text for t in self.turns if t.prompt.kind.answers}

    @property
    def prompt_tokens(self) -> int:
        return sum(reply.prompt_tokens for t in self.turns for reply in t.attempts)

    @property
    def reply_tokens(self) -> int:
        return sum(reply.reply_tokens for t in self.turns for reply in t.attempts)

    @property
    def cut_memories(self) -> int:
        """How many memories, read or merged, were truncated at their token limit."""
        return sum(t.reply.cut for t in self.turns if t.prompt.kind.writes_memory)

    @property
    def sampling_left_out(self) -> str:
        """The sampling settings that the server refused in any turn, or ""."""
        return ", ".join(sorted({turn.reply.sampling_left_out for turn in self.turns} - {""}))

    @property
    def bad_memories(self) -> int:
        """In how many turns a reply was not a memory, whatever was done about it."""
        return sum(t.bad_memory is not None for t in self.turns)

    @property
    def bad_memory_kinds(self) -> str:
        """The turns with a bad memory by fault and action: ``"2 comment (keep), 1 refusal (retry)"``; "" for none."""
        found = Counter((t.bad_memory.fault, t.bad_memory.action) for t in self.turns if t.bad_memory)
        return ", ".join(f"{n} {fault} ({action})" for (fault, action), n in found.most_common())

    def lean(self, keep_text: bool = False) -> Trace:
        """Return the trace with :meth:`Turn.lean` applied to every turn; it is small even for a gigabyte of text."""
        return replace(self, turns=tuple(turn.lean(keep_text) for turn in self.turns))

    def to_record(self) -> dict[str, Any]:
        """Return the trace as plain JSON types for :meth:`from_record`, without the data that only training needs."""
        return {
            "question": self.question,
            "reader": self.reader,
            "turns": [_turn_record(t, self.question) for t in self.turns],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Trace:
        question = record["question"]
        return cls(question, tuple(_turn(t, question) for t in record["turns"]), record["reader"])

    def to_frame(self) -> Any:
        """Return a frame with one row per turn; turns are numbered from 1. :data:`TURN_COLUMNS` names its columns."""
        import pandas as pd

        return pd.DataFrame([_turn_row(i, t) for i, t in enumerate(self.turns, 1)], columns=TURN_COLUMNS)


_COSTS = ("prompt_tokens", "reply_tokens", "cached_tokens", "seconds", "finish_reason")
TURN_COLUMNS = ["turn", "kind", "start", "end", "memory_before", "reply", *_COSTS, "bad_memory"]
REPLY_FIELDS = tuple(each.name for each in fields(Reply) if each.name not in _TRAINING_FIELDS)
"""The fields of a reply that journals and records store."""


def _turn_row(number: int, turn: Turn) -> tuple[Any, ...]:
    prompt = turn.prompt
    place = (prompt.chunk.start, prompt.chunk.end) if prompt.chunk else (None, None)
    costs = (getattr(turn.reply, name) for name in _COSTS)
    bad = str(turn.bad_memory) if turn.bad_memory else None
    return (number, prompt.kind.name, *place, prompt.memory, turn.reply.text, *costs, bad)


def _turn_record(turn: Turn, question: str) -> dict[str, Any]:
    prompt = turn.prompt
    record: dict[str, Any] = {"kind": prompt.kind.name, "memory": prompt.memory}
    # Only differences are recorded: nearly all turns share the trace's question.
    if prompt.question != question:
        record["question"] = prompt.question
    if prompt.memories != 1:
        record["memories"] = prompt.memories
    if prompt.chunk is not None:
        record["chunk"] = asdict(prompt.chunk)
    # A kind that a reader declares is restored from its name, which does not reveal that it answers.
    if prompt.kind.answers and prompt.kind.name not in _TEMPLATE_KINDS:
        record["answers"] = True
    bad = turn.bad_memory
    if bad is not None:
        replies = [reply.to_record() for reply in bad.replies]
        record["bad_memory"] = {"fault": bad.fault, "action": bad.action, "replies": replies}
    return record | {"reply": turn.reply.to_record()}


def _turn(record: Mapping[str, Any], question: str) -> Turn:
    chunk = Chunk(**record["chunk"]) if "chunk" in record else None
    answers = record.get("answers", False)
    # A reader's own kind has no words here, because its file may be gone.
    own = Kind(record["kind"], reads=chunk is not None and not answers, answers=answers)
    kind = _TEMPLATE_KINDS.get(own.name, own)
    prompt = Prompt(kind, record.get("question", question), record["memory"], chunk, record.get("memories", 1))
    bad = record.get("bad_memory")
    if bad is not None:
        bad = BadMemory(bad["fault"], bad["action"], tuple(Reply(**reply) for reply in bad["replies"]))
    return Turn(prompt, Reply(**record["reply"]), bad)
