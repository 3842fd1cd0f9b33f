"""Lessons: prompts with the replies that a model should learn, as a reader would meet them.

A teacher takes the model's part in a reading by the recipe's reader, so the prompts are those of this reader, and each
reply decides what comes next. A reader's commands are chosen by the teacher of its own file
(:attr:`memagent_lib.trace.Kind.taught`). Lessons depend on no model; a trace yields lessons too.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from memagent_lib.data import Example
from memagent_lib.evaluation import Result
from memagent_lib.prompts import Encoder
from memagent_lib.readers import Reader
from memagent_lib.sft.sft_recipe import KEY, SftConfig
from memagent_lib.text import chunks
from memagent_lib.trace import Kind, Prompt, Reply, Turn

UNKNOWN = "unknown"


class Lesson(NamedTuple):
    """A prompt, and the reply to learn."""

    prompt: Prompt
    reply: str


class Moment(NamedTuple):
    """What a reader's own teacher knows when it chooses the command of a reply.

    ``before`` and ``memory`` are the statements of the old and of the new memory, ``past`` those of every memory so
    far, and ``evidence`` those that the answer needs. Without ``aware``, the teacher must not look at the question: it
    draws with ``rng``, by the shares of ``sft.shares``.
    """

    prompt: Prompt
    before: Sequence[str]
    memory: Sequence[str]
    past: Sequence[Sequence[str]]
    evidence: Sequence[str]
    aware: bool
    rng: random.Random
    shares: Mapping[str, float]

    @property
    def complete(self) -> bool:
        return all(text in self.memory for text in self.evidence)

    def share(self, command: str, default: float) -> float:
        return self.shares.get(command, default)


def lessons_from_examples(
    examples: Iterable[Example], encoder: Encoder, config: SftConfig, reader: Reader
) -> Iterator[Lesson]:
    """Yield the lessons of a teacher who reads each example with ``reader``: one for every turn.

    Raises ``ValueError`` for an example without evidence, because a teacher cannot know what its answer rests on, and
    for a reader without a memory.
    """
    if not reader.has_memory:
        raise ValueError(f"the reader {reader.name!r} has no memory that a teacher could write")
    for example in examples:
        if not example.evidence:
            raise ValueError(f"example {example.id!r} has no evidence for a teacher; set data.traces instead")
        yield from _reading(example, encoder, _Teacher(example, encoder, config), reader)


def lessons_from_traces(results: Iterable[Result], reader: Reader, left_out: Counter[str]) -> Iterator[Lesson]:
    """Yield all turns of the right readings; of several of one example, only that with the fewest reply tokens counts.

    Readings by another reader are left out: their replies have another form. So are those whose memory or answer was
    cut at the token limit (nobody should learn their last words), and turns whose reply was not a memory; ``left_out``
    counts the latter by fault.
    """
    best: dict[str, Result] = {}
    for result in results:
        if not result.correct or result.trace is None or any(turn.reply.cut for turn in result.trace.turns):
            continue
        if result.trace.reader not in (reader.name, reader.source):
            continue
        # The shortest right reading shows how little suffices.
        rival = best.get(result.key)
        if rival is None or result.trace.reply_tokens < rival.trace.reply_tokens:
            best[result.key] = result
    # A recorded trace has the names of a reader's own kinds, not how their replies are written.
    kinds = {kind.name: kind for kind in reader.prompts}
    for result in best.values():
        for turn in result.trace.turns:
            if turn.bad_memory is None:
                kind = kinds.get(turn.prompt.kind.name, turn.prompt.kind)
                yield Lesson(replace(turn.prompt, kind=kind), _written(kind, turn.reply.text, turn.reply.signal))
            else:
                left_out[turn.bad_memory.fault] += 1


def _notes(text: str, config: SftConfig) -> dict[str, str]:
    """Return the statements in a text, each with the note that a teacher makes of it."""
    notes = {}
    for match in re.finditer(config.statements, text):
        if match.group().strip():  # an expression such as [^.]* also matches nothing at all
            key = match.groupdict().get(KEY)
            notes[match.group()] = f"{key}: {match.group()}" if key else match.group()
    return notes


def _written(kind: Kind, memory: str, signal: str) -> str:
    return kind.written(memory, signal) if kind.written else memory


def _reading(example: Example, encoder: Encoder, teacher: _Teacher, reader: Reader) -> Iterator[Lesson]:
    """Yield the lessons of one reading, in the order of its turns."""
    parts = chunks(example.document, encoder.tokenizer, encoder.budget.chunk_tokens)
    session = reader(example.question, parts)
    move = next(session)
    while True:
        prompts = move if isinstance(move, tuple) else (move,)
        lessons = [teacher.lesson(prompt) for prompt in prompts]
        yield from lessons
        # The words for an empty memory are learnt, but the next prompt has to be that of an empty memory.
        texts = ["" if lesson.reply == encoder.template.empty_memory else lesson.reply for lesson in lessons]
        turns = tuple(Turn(prompt, prompt.opened(Reply(text))) for prompt, text in zip(prompts, texts, strict=True))
        try:
            move = session.send(turns if isinstance(move, tuple) else turns[0])
        except StopIteration:
            return


class _Teacher:
    """Replies to the prompts of one reading.

    ``stated`` has the evidence as the document states it (what it states in several places, once), and ``evidence`` as
    a memory notes it; ``subjects`` are the words before the statements there, which say what they are about.
    ``written`` has the statements of each memory by its text.
    """

    def __init__(self, example: Example, encoder: Encoder, config: SftConfig):
        self.example = example
        self.encoder = encoder
        self.config = config
        self.rng = random.Random(f"lessons {config.seed} {example.id}")
        self.written: dict[str, list[str]] = {}
        self.stated = list(dict.fromkeys(example.document[start:end].strip() for start, end in example.evidence))
        self.evidence = [_notes(text, config).get(text, text) for text in self.stated]
        before = (note.removesuffix(text) for text, note in zip(self.stated, self.evidence, strict=True))
        self.subjects = [words for words in before if words]

    def lesson(self, prompt: Prompt) -> Lesson:
        if prompt.kind.answers:
            return self._answer(prompt)
        before = self._statements(prompt.memory)
        memory = self._next_memory(before, prompt.chunk.text)
        text = _text(memory)
        reply = _written(prompt.kind, text, self._signal(prompt, before, memory))
        # One token is for the end of the reply. A memory that leaves no room for a command goes without one.
        if self.encoder.tokenizer.count(reply) >= self.encoder.budget.memory_tokens:
            reply = text
        opened = prompt.kind.opened
        if opened and opened(Reply(reply), prompt.old_memory).text != text:  # a command that leaves the memory as it is
            text = prompt.old_memory
            memory = self._statements(text)
        self.written[text] = memory
        return Lesson(prompt, reply or self.encoder.template.empty_memory)

    def _statements(self, text: str) -> list[str]:
        """Return the statements of a prompt's memory: of one memory, or of several that the prompt displays."""
        if text in self.written or not text:
            return self.written.get(text, [])
        known = dict.fromkeys(statement for memory in self.written.values() for statement in memory)
        return sorted((statement for statement in known if statement in text), key=text.index)

    def _next_memory(self, memory: list[str], chunk: str) -> list[str]:
        if self.config.teacher == "aware":
            return self._fitting(self._concerning(memory, chunk), needed=self.evidence)
        known = list(dict.fromkeys([*memory, *_notes(chunk, self.config).values()]))
        if not known:
            return []
        # At least one: if "nothing" were a target among many, it would be the likeliest one, and the greedy policy
        # would remember nothing (measured with SmolLM2-135M).
        size = self.rng.randint(1, min(len(known), self.config.most_statements))
        chosen = sorted(self.rng.sample(range(len(known)), size))
        return self._fitting([known[i] for i in chosen])

    def _concerning(self, memory: list[str], chunk: str) -> list[str]:
        """Return the memory with what the chunk says of the evidence's subjects: a value replaces an earlier one."""
        concerning = {text: note for text, note in zip(self.stated, self.evidence, strict=True) if text in chunk}
        concerning |= {text: note for text, note in _notes(chunk, self.config).items() if self._subject(note)}
        for text in sorted(concerning, key=chunk.index):
            note, subject = concerning[text], self._subject(concerning[text])
            same = {known for known in memory if subject and self._subject(known) == subject}
            if note not in memory and (note in self.evidence or same.isdisjoint(self.evidence)):
                memory = [*(known for known in memory if known not in same.difference(self.evidence)), note]
        return memory

    def _subject(self, note: str) -> str:
        """Return what a note is about, as it begins, if evidence is about the same, else ""."""
        return next((subject for subject in self.subjects if note.startswith(subject)), "")

    def _signal(self, prompt: Prompt, before: list[str], memory: list[str]) -> str:
        """Return the signal that the reader's own teacher chooses, or "" for a plain memory."""
        if not prompt.kind.taught:
            return ""
        aware = self.config.teacher == "aware"
        return prompt.kind.taught(
            Moment(prompt, before, memory, [*self.written.values()], self.evidence, aware, self.rng, self.config.shares)
        )

    def _answer(self, prompt: Prompt) -> Lesson:
        memory = self._statements(prompt.memory)
        missing = [text for text in self.evidence if text not in memory]
        # A blind memory seldom has all of the evidence, and a model that only learns "unknown" answers nothing else.
        if missing and self.rng.random() < self.config.known:
            # Of several memories, one gets all of the evidence.
            replaced = max((text for text in self.written if text and text in prompt.memory), key=len, default="")
            others = [text for text in self._statements(replaced) if text not in self.evidence]
            for text in reversed(self.evidence):
                others.insert(self.rng.randint(0, len(others)), text)
            memory = self._fitting(others, needed=self.evidence)
            text = _text(memory)
            prompt = replace(prompt, memory=prompt.memory.replace(replaced, text, 1) if replaced else text)
        there = [text for text in self.evidence if text in memory]
        answer = ", ".join(self.example.answers) if len(there) == len(self.evidence) else UNKNOWN
        fields = {"{evidence}": _text(there), "{answer}": answer}
        # At once, because the evidence may itself contain "{answer}".
        reply = re.sub(r"\{evidence\}|\{answer\}", lambda field: fields[field[0]], self.config.answer)
        return Lesson(prompt, reply.strip())

    def _fitting(self, memory: list[str], needed: Sequence[str] = ()) -> list[str]:
        """Return the memory without its earliest statements that are not ``needed``, so that its size is in budget."""
        memory = list(memory)
        most = max(self.config.most_statements, len(needed))
        # One token is for the end of the reply.
        limit = self.encoder.budget.memory_tokens
        while memory and (len(memory) > most or self.encoder.tokenizer.count(_text(memory)) >= limit):
            spare = next((text for text in memory if text not in needed), memory[0])
            memory.remove(spare)
        return memory


def _text(memory: Sequence[str]) -> str:
    return " ".join(memory)
