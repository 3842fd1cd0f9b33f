"""What happened: prompts, replies, turns and traces. Facts are stored, everything else is derived.

A trace is the product of every reading, whoever drove it; frames, pages, metrics and training rows are functions of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from memagent_lib.text import Chunk

NO_MEMORY = ""
_TRAINING_FIELDS = ("prompt_ids", "token_ids", "log_probs")


class Kind(StrEnum):
    """What a prompt asks for; each is one entry of a template."""

    READ = "read"  # question + memory + chunk -> the new memory
    ANSWER = "answer"  # question + memory -> the answer
    DIRECT = "direct"  # question + document -> the answer
    BLIND = "blind"  # question alone -> the answer
    GATE = "gate"  # like READ, and the model may keep its memory or stop reading
    RECALL = "recall"  # like READ, and the model may ask for one of its past memories
    MERGE = "merge"  # question + two memories -> one; the second stands where a chunk would

    @property
    def reads(self) -> bool:
        """Whether a prompt of this kind shows a chunk and asks for a memory."""
        return self in (Kind.READ, Kind.GATE, Kind.RECALL)

    @property
    def answers(self) -> bool:
        return self in (Kind.ANSWER, Kind.DIRECT, Kind.BLIND)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, before any wording: what a template turns into text.

    ``memories`` is how many memories ``memory`` shows one below the other, each within the memory budget.
    """

    kind: Kind
    question: str
    memory: str = NO_MEMORY
    chunk: Chunk | None = None
    memories: int = 1


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply to one prompt.

    A backend returns it with the raw text; :meth:`memagent_lib.prompts.Encoder.interpret` then moves a reasoning
    model's thoughts from ``text`` to ``thinking``. ``finish_reason`` is ``"stop"``, or ``"length"`` when the reply was
    cut at its token limit. Token counts are the engine's. ``signal`` is what the reader found in the reply besides a
    memory: ``"keep"``, ``"done"`` or ``"recall: words"``. ``started`` (Unix time) and ``seconds`` are measured around
    the backend's work, its queue included; they are left out when replies are compared.
    """

    text: str
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    reply_tokens: int = 0
    cached_tokens: int = 0
    thinking: str = ""
    signal: str = ""
    started: float = field(default=0.0, compare=False)
    seconds: float = field(default=0.0, compare=False)
    # What training needs and records do not: the exact ids, and their log-probabilities under the sampler.
    prompt_ids: tuple[int, ...] = field(default=(), repr=False, compare=False)
    token_ids: tuple[int, ...] = field(default=(), repr=False, compare=False)
    log_probs: tuple[float, ...] = field(default=(), repr=False, compare=False)

    @property
    def cut(self) -> bool:
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class Turn:
    """One independent conversation: a prompt and its reply."""

    prompt: Prompt
    reply: Reply

    def lean(self) -> Turn:
        """The turn without its chunk's text and without the ids that only training needs."""
        prompt = self.prompt
        if prompt.chunk is not None:
            prompt = replace(prompt, chunk=replace(prompt.chunk, text=""))
        return Turn(prompt, replace(self.reply, **dict.fromkeys(_TRAINING_FIELDS, ())))


@dataclass(frozen=True, slots=True)
class Trace:
    """All turns of one question, in order; the last one answers."""

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
    def memories(self) -> tuple[str, ...]:
        """The memory written at each chunk; those still held are :func:`memagent_lib.diagnostics.live_memories`."""
        return tuple(t.reply.text for t in self.reads)

    @property
    def answers(self) -> dict[str, str]:
        """Every question that was asked and its answer; more than one where several were asked in one pass."""
        return {t.prompt.question: t.reply.text for t in self.turns if t.prompt.kind.answers}

    @property
    def prompt_tokens(self) -> int:
        return sum(t.reply.prompt_tokens for t in self.turns)

    @property
    def reply_tokens(self) -> int:
        return sum(t.reply.reply_tokens for t in self.turns)

    @property
    def cut_memories(self) -> int:
        """How many memories hit their token limit and were cut there."""
        return sum(t.reply.cut for t in self.reads)

    def lean(self) -> Trace:
        """The trace with every turn :meth:`Turn.lean`: what is left of a gigabyte once it has been read."""
        return replace(self, turns=tuple(turn.lean() for turn in self.turns))

    def to_record(self) -> dict[str, Any]:
        """Plain JSON types; :meth:`from_record` gives the trace back."""
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
        """One row per turn, counted from 1: kind, chunk place, memory, token counts, finish reason."""
        import pandas as pd

        return pd.DataFrame([_turn_row(i, t) for i, t in enumerate(self.turns, 1)], columns=TURN_COLUMNS)

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(max_rows=40, index=False, escape=True)


_COSTS = ("prompt_tokens", "reply_tokens", "cached_tokens", "seconds", "finish_reason")
TURN_COLUMNS = ["turn", "kind", "start", "end", "memory_before", "reply", *_COSTS]
REPLY_FIELDS = tuple(each.name for each in fields(Reply) if each.name not in _TRAINING_FIELDS)
"""The fields of a reply that journals and records store."""


def _turn_row(number: int, turn: Turn) -> tuple[Any, ...]:
    prompt, reply = turn.prompt, turn.reply
    start, end = (prompt.chunk.start, prompt.chunk.end) if prompt.chunk else (None, None)
    costs = (getattr(reply, name) for name in _COSTS)
    return (number, str(prompt.kind), start, end, prompt.memory, reply.text, *costs)


def _turn_record(turn: Turn, question: str) -> dict[str, Any]:
    prompt, chunk = turn.prompt, turn.prompt.chunk
    record: dict[str, Any] = {"kind": str(prompt.kind), "memory": prompt.memory}
    if prompt.question != question:
        record["question"] = prompt.question
    if prompt.memories != 1:
        record["memories"] = prompt.memories
    if chunk is not None:
        record["chunk"] = asdict(chunk)
    return record | {"reply": {name: getattr(turn.reply, name) for name in REPLY_FIELDS}}


def _turn(record: Mapping[str, Any], question: str) -> Turn:
    chunk = Chunk(**record["chunk"]) if "chunk" in record else None
    prompt = Prompt(
        Kind(record["kind"]), record.get("question", question), record["memory"], chunk, record.get("memories", 1)
    )
    return Turn(prompt, Reply(**record["reply"]))
