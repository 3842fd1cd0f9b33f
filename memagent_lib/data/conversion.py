"""Other projects' files become data sets: which of their questions, and over how much text.

The questions of some files have an order: the files' own, or one that a seed and the questions' ids make. A data set is
a stretch of it, so two stretches that do not overlap share no question, at whatever length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memagent_lib.data.drafting import ExampleKey, Length, Meter
from memagent_lib.data.examples import Example
from memagent_lib.data.formats import format_named, read_original, read_pool, require_file, unique
from memagent_lib.data.pools import Pool, Question, shuffled
from memagent_lib.data.storage import question_ids
from memagent_lib.scoring import judge_named
from memagent_lib.text import Tokenizer

Filter = Callable[[Sequence[Question]], Sequence[bool | None]]
"""Of some questions, whether each is known without its document; ``None`` where that could not be found out."""
_LEAST_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which questions: ``n`` (``None``: all) from place ``first`` on, in the order of ``seed`` (``None``: the files').

    Questions that one of the data sets ``apart_from`` asks are left out, and so are those that are ``known``; later
    ones take their place.
    """

    first: int = 0
    n: int | None = None
    seed: int | None = None
    apart_from: tuple[str | Path, ...] = ()
    known: Filter | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("first", self.first, 0), ("n", self.n, 1)):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")

    def of(self, questions: Sequence[Question]) -> Chosen:
        """The chosen ones of some questions, whose documents do not matter."""
        order = list(questions) if self.seed is None else shuffled(questions, self.seed)
        others = {name for path in self.apart_from for name in question_ids(path)}
        left = [question for question in order[self.first :] if question.id not in others]
        made = Chosen(left_out=len(order[self.first :]) - len(left))
        wanted, at = len(left) if self.n is None else self.n, 0
        while at < len(left) and len(made.kept) < wanted:
            batch = left[at : at + max(wanted - len(made.kept), _LEAST_BATCH)]
            made.add(batch, self.known(batch) if self.known else [False] * len(batch))
            at += len(batch)
        del made.kept[wanted:]
        if len(made.kept) < (self.n or 1):
            asked = f"{self.n:,} questions were asked for and {len(made.kept):,} are left" if self.n else ""
            raise ValueError(
                f"{asked or 'no question is left'}: "
                f"{len(order):,} in the files, {min(self.first, len(order)):,} before the first asked for, "
                f"{made.told()}; ask for fewer"
            )
        return made


@dataclass(slots=True)
class Chosen:
    """The questions that were chosen, in order, and how many were passed over on the way."""

    left_out: int
    kept: list[Question] = field(default_factory=list)
    known: int = 0
    failed: int = 0
    unanswerable: int = 0

    def add(self, questions: Sequence[Question], known: Sequence[bool | None]) -> None:
        self.kept += [question for question, verdict in zip(questions, known, strict=True) if verdict is False]
        self.known += sum(verdict is True for verdict in known)
        self.failed += sum(verdict is None for verdict in known)

    def told(self) -> str:
        counts = (
            ("left out as unanswerable", self.unanswerable),
            ("asked in another file", self.left_out),
            ("known without the document", self.known),
            ("could not be asked", self.failed),
        )
        return ", ".join(f"{n:,} {what}" for what, n in counts if n) or "none left out"


def convert(
    form: str,
    paths: Sequence[str | Path],
    choice: Choice,
    *,
    length: Length | None = None,
    tokenizer: Tokenizer | None = None,
    rule: str | None = None,
    **options: Any,
) -> tuple[Chosen, Iterator[Example]]:
    """What was chosen of some files in one of :data:`memagent_lib.data.FORMATS`, and the examples of it.

    With a ``length``, formats with a pool put documents of the file around each question. ``rule`` changes the judge.
    ``options`` are the format's own.
    """
    known = format_named(form)
    if rule:
        judge_named(rule)
    for path in paths:
        require_file(path, form)
    if twice := [str(path) for path in dict.fromkeys(map(Path, paths)) if list(map(Path, paths)).count(path) > 1]:
        raise ValueError(f"{', '.join(twice)} is given more than once; give each file once")
    if length is None:
        given = {**options, **({"rule": rule} if rule and "rule" in known.options else {})}
        chosen, examples = _as_they_are(form, paths, choice, given)
    elif known.pool is None:
        raise ValueError(f"the documents of {known.files} are as long as they are; leave out the length")
    else:
        chosen, examples = _among_others(form, [read_pool(path, form) for path in paths], choice, length, tokenizer)
    chosen.unanswerable = sum(known.unanswerable(path) for path in paths)
    return chosen, (replace(example, rule=rule) if rule else example for example in examples)


def _as_they_are(
    form: str, paths: Sequence[str | Path], choice: Choice, options: dict[str, Any]
) -> tuple[Chosen, Iterator[Example]]:
    """Two passes over the files, the first for the questions alone: their documents are never in memory all at once."""

    def read() -> Iterator[Example]:
        for path in paths:
            for example in read_original(path, form, **options):
                yield replace(example, metadata={"question_id": example.id, **example.metadata})

    def bare(example: Example) -> Example:
        return replace(example, id=example.metadata["question_id"], document="", evidence=())

    chosen = choice.of(list(unique(map(bare, read()), ", ".join(map(str, paths)))))
    wanted = {example.id for example in chosen.kept}
    return chosen, (example for example in read() if example.metadata["question_id"] in wanted)


def _among_others(
    form: str, pools: Sequence[Pool], choice: Choice, length: Length, tokenizer: Tokenizer
) -> tuple[Chosen, Iterator[Example]]:
    asked = {question.id: (pool, question) for pool in pools for question in pool.questions}
    chosen, meter = choice.of([question for _, question in asked.values()]), Meter(tokenizer)

    def make(place: int, name: str) -> Example:
        pool, question = asked[name]
        key = ExampleKey(form, choice.seed or 0, place, length)
        made = pool.plan(question, key, "contains").example(key, meter)
        return replace(made, id=f"{form}-{length.label}-{name}")

    return chosen, (make(place, question.id) for place, question in enumerate(chosen.kept))
