"""What the interactive inspector shows, as plain JSON types: a list of readings, the story of one, the detail of one turn.

A long reading is sent in two parts: a story with a few numbers per turn, whole, and the texts of a turn when somebody looks.
Knows results and provenance; knows no widget and no HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memagent_lib.diagnostics import Fate, Phrase, Provenance
from memagent_lib.evaluation.evaluator import Result
from memagent_lib.trace import Kind, Trace
from memagent_lib.workbench.inspector.story import StoryTurn, changes, story

LETTERS = {Fate.AHEAD: "a", Fate.HELD: "h", Fate.MISSED: "m", Fate.LOST: "l", None: "n"}
PHRASES = 200


class Readings:
    """Results of one or more policies by name, failures first, with the stories that have been asked for kept."""

    def __init__(self, results: Mapping[str, Iterable[Result]]):
        self.results: dict[str, Result] = {}
        self.policies: dict[str, str] = {}  # by key, as results are; a policy's name may be a path
        self._stories: dict[str, list[StoryTurn]] = {}
        for policy, found in results.items():
            for result in sorted((r for r in found if r.trace is not None), key=_value):
                self.add(policy, result)

    def add(self, policy: str, result: Result) -> str:
        """Take one more reading in; returns its key."""
        key = f"{policy}/{result.reader}/{result.example.id}"
        self.results[key], self.policies[key] = result, policy
        self._stories.pop(key, None)
        return key

    def catalog(self) -> list[dict[str, Any]]:
        """One entry per reading: what a list of them needs, and the faults that it can be filtered by."""
        return [self._entry(key) for key in self.results]

    def _entry(self, key: str) -> dict[str, Any]:
        result, fates = self.results[key], self.results[key].diagnosis.fates
        e, wrong = result.example, _value(result) < 1
        found = {
            "wrong": wrong,
            "lost after capture": wrong and Fate.LOST in fates,
            "never captured": wrong and Fate.HELD not in fates,
            "cut by limit": any(turn.reply.cut for turn in result.trace.turns),
        }
        return {
            "key": key,
            "policy": self.policies[key],
            "example": e.id,
            "reader": result.reader,
            "question": e.question,
            "answers": list(e.answers),
            "answer": result.trace.answer[:200],
            "right": not wrong,
            "turns": len(result.trace.turns),
            "faults": [name for name, is_so in found.items() if is_so],
        }

    def story(self, key: str) -> dict[str, Any]:
        """Every turn in a few numbers: the fate of the fact as a letter, tokens of the reply, where evidence stands, what was cut."""
        story = self._story(key)
        return {
            "fates": "".join(LETTERS[step.fate] for step in story),
            "tokens": [step.turn.reply.reply_tokens or len(step.turn.reply.text) for step in story],
            "evidence": [step.index for step in story if step.evidence],
            "cut": [step.index for step in story if step.turn.reply.cut],
        }

    def detail(self, key: str, index: int) -> dict[str, Any]:
        """One turn with its texts: the chunk with its evidence, what the reply changed, what the chunk brought in, tokens."""
        step = self._story(key)[index]
        prompt, reply = step.turn.prompt, step.turn.reply
        chunk, read = prompt.chunk, prompt.kind.reads
        fresh = Provenance.of(Trace(prompt.question, (step.turn,))).phrases if read and chunk else []
        return {
            "turn": index,
            "kind": str(prompt.kind),
            "fate": str(step.fate or "no memory"),
            "chunk": chunk
            and {
                "index": chunk.index,
                "start": chunk.start,
                "end": chunk.end,
                "tokens": chunk.tokens,
                "text": chunk.text,
            },
            "evidence": [list(span) for span in step.evidence],
            "brought": [[p.start - chunk.start, p.end - chunk.start] for p in fresh],
            "changes": [
                list(piece) for piece in (changes(prompt.memory, reply.text) if read else [(reply.text, "same")])
            ],
            "before": prompt.memory,
            "after": reply.text,
            "thinking": reply.thinking,
            "signal": reply.signal,
            "finish": reply.finish_reason,
            "tokens": [reply.prompt_tokens, reply.cached_tokens, reply.reply_tokens],
            "editable": prompt.kind is Kind.READ,
        }

    def phrases(self, key: str) -> dict[str, Any]:
        """Where the words of the memories came from, over the whole reading: the first :data:`PHRASES` phrases, and how many there are."""
        found = Provenance.of(self.results[key].trace).phrases
        return {"phrases": [_phrase(p) for p in found[:PHRASES]], "all": len(found)}

    def bytes_of(self, key: str) -> int:
        """About how long the texts of a reading are, all turns together."""
        return sum(
            len(t.prompt.chunk.text if t.prompt.chunk else "") + 3 * len(t.reply.text)
            for t in self.results[key].trace.turns
        )

    def _story(self, key: str) -> list[StoryTurn]:
        if key not in self._stories:
            if key not in self.results:
                raise KeyError(
                    f"no reading {key!r}; there are {len(self.results)}, such as {next(iter(self.results), 'none')!r}"
                )
            self._stories[key] = story(self.results[key])
        return self._stories[key]


def _phrase(phrase: Phrase) -> dict[str, Any]:
    return {
        "text": phrase.text,
        "start": phrase.start,
        "end": phrase.end,
        "brought": phrase.brought,
        "dropped": phrase.dropped,
        "quote": phrase.quote,
    }


def _value(result: Result) -> float:
    return result.score.value if result.score else 0.0
