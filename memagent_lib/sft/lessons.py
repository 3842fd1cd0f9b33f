"""Lessons: prompts with the replies that a model should learn, as the reader ``overwrite`` would meet them.

A teacher reads an example chunk by chunk as MemAgent does: each lesson's reply is the next lesson's memory. Lessons
depend on no model; a trace of any reader yields lessons too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memagent_lib.data import Example
from memagent_lib.evaluation import Result
from memagent_lib.prompts import Encoder
from memagent_lib.sft.sft_recipe import SftConfig
from memagent_lib.text import chunks
from memagent_lib.trace import NO_MEMORY, Kind, Prompt

UNKNOWN = "unknown"


class Lesson(NamedTuple):
    """A prompt, and the reply to learn."""

    prompt: Prompt
    reply: str


def lessons_from_examples(examples: Iterable[Example], encoder: Encoder, config: SftConfig) -> Iterator[Lesson]:
    """Yield the lessons of a teacher: one for every chunk, and one answer, of each example.

    Raises ``ValueError`` for an example without evidence, because a teacher cannot know what its answer rests on.
    """
    teacher = _Teacher(encoder, config)
    for example in examples:
        if not example.evidence:
            raise ValueError(
                f"example {example.id!r} has no evidence, which the teacher needs; take examples of a generated task "
                "(memagent data), or learn from readings instead: set data.traces"
            )
        yield from teacher.lessons(example)


def lessons_from_traces(results: Iterable[Result]) -> Iterator[Lesson]:
    """Yield all turns of the right readings; of several of one example, only that with the fewest reply tokens counts.

    Readings whose memory or answer was cut at the token limit are left out: their last words are no example to follow.
    """
    best: dict[str, Result] = {}
    for result in results:
        if not result.correct or result.trace is None or any(turn.reply.cut for turn in result.trace.turns):
            continue
        rival = best.get(result.key)
        if rival is None or result.trace.reply_tokens < rival.trace.reply_tokens:
            best[result.key] = result
    for result in best.values():
        for turn in result.trace.turns:
            yield Lesson(turn.prompt, turn.reply.text)


@dataclass(frozen=True)
class _Teacher:
    encoder: Encoder
    config: SftConfig

    def lessons(self, example: Example) -> Iterator[Lesson]:
        rng = random.Random(f"lessons {self.config.seed} {example.id}")
        evidence = [example.document[start:end].strip() for start, end in example.evidence]
        memory: list[str] = []
        for chunk in chunks(example.document, self.encoder.tokenizer, self.encoder.budget.chunk_tokens):
            prompt = Prompt(Kind.READ, example.question, self._text(memory), chunk)
            memory = self._next_memory(memory, chunk.text, evidence, rng)
            yield Lesson(prompt, self._text(memory) or self.encoder.template.empty_memory)
        yield self._answer(example, memory, evidence, rng)

    def _next_memory(self, memory: list[str], chunk: str, evidence: Sequence[str], rng: random.Random) -> list[str]:
        if self.config.teacher == "aware":
            seen = [*memory, *(text for text in evidence if text in chunk and text not in memory)]
            return self._fitting(seen)
        found = [match.group() for match in re.finditer(self.config.statements, chunk)]
        known = list(dict.fromkeys([*memory, *found]))
        if not known:
            return []
        # At least one: if "nothing" were a target among many, it would be the likeliest one, and the greedy policy
        # would remember nothing (measured with SmolLM2-135M).
        size = rng.randint(1, min(len(known), self.config.most_statements))
        chosen = sorted(rng.sample(range(len(known)), size))
        return self._fitting([known[i] for i in chosen])

    def _answer(self, example: Example, memory: list[str], evidence: Sequence[str], rng: random.Random) -> Lesson:
        missing = [text for text in evidence if text not in memory]
        if missing and rng.random() < self.config.known:
            others = [text for text in memory if text not in evidence]
            for text in reversed(evidence):
                others.insert(rng.randint(0, len(others)), text)
            memory = self._fitting(others, needed=evidence)
        complete = all(text in memory for text in evidence)
        answer = ", ".join(example.answers) if complete else UNKNOWN
        return Lesson(Prompt(Kind.ANSWER, example.question, self._text(memory)), f"\\boxed{{{answer}}}")

    def _fitting(self, memory: list[str], needed: Sequence[str] = ()) -> list[str]:
        """Return the memory without its earliest statements that are not ``needed``, so that its size is in budget."""
        # One token is for the end of the reply.
        limit = self.encoder.budget.memory_tokens - 1
        memory = list(memory)
        while memory and (
            self.encoder.tokenizer.count(self._text(memory)) > limit or len(memory) > self._most(len(needed))
        ):
            spare = next((text for text in memory if text not in needed), memory[0])
            memory.remove(spare)
        return memory

    def _most(self, needed: int) -> int:
        return max(self.config.most_statements, needed)

    @staticmethod
    def _text(memory: Sequence[str]) -> str:
        return " ".join(memory) or NO_MEMORY
