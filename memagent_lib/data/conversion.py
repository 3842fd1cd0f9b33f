"""Convert other projects' files to data sets: select questions, and lay out documents of a requested length.

Questions are in the files' own order, or in an order that depends only on a seed and the questions' ids. Unless some
are skipped, a data set is a contiguous range of that order, so data sets from disjoint ranges share no question, even
if the lengths of their documents differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats import format_named, read_original, read_pool, require_file, require_options, unique
from memagent_lib.data.layout import ExampleKey, Length, Meter
from memagent_lib.data.pools import PoolQuestion, Question, shuffled
from memagent_lib.data.storage import QuestionKey, question_keys
from memagent_lib.scoring import judge_named
from memagent_lib.text import Tokenizer

Filter = Callable[[Sequence[Question]], Sequence[bool | None]]
"""A function that returns, for each question, whether it is known without its document; ``None`` means undetermined."""
_LEAST_BATCH = 32  # the filter sends requests in parallel, so a batch of only the missing few would waste its models


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which questions to select: ``n`` of them (``None``: all), starting at number ``first``, in the order of ``seed``.

    ``first`` counts from 0, and ``seed=None`` means the files' own order. A question is skipped, and a later one is
    selected instead, if it occurs in one of the data sets ``apart_from`` (see :func:`occurring`), or if the filter
    ``known`` returns ``True`` or ``None`` for it.
    """

    first: int = 0
    n: int | None = None
    seed: int | None = None
    apart_from: tuple[str | Path, ...] = ()
    known: Filter | None = None

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError(f"first must be at least 0, got {self.first}")
        if self.n is not None and self.n < 1:
            raise ValueError(f"n must be at least 1, got {self.n}")

    def of(self, questions: Sequence[Question], unanswerable: Callable[[], int] = int) -> Selected:
        """Select from ``questions``, which may lack documents.

        Raises ``ValueError`` if none or fewer than ``n`` remain. ``unanswerable`` is called only then, to count the
        questions that the files mark as unanswerable.
        """
        order = list(questions) if self.seed is None else shuffled(questions, self.seed)
        stretch = order[self.first :]
        others = occurring(order, self.apart_from)
        left = [question for question in stretch if question.id not in others]
        found = Selected(in_other_files=len(stretch) - len(left))
        self._fill(found, left)
        if len(found.questions) < (self.n or 1):
            found.unanswerable = unanswerable()
            if not order:
                why = "the files have none that the options select"
                if found.unanswerable:
                    why = (
                        f"all {found.unanswerable:,} in the files are marked as unanswerable, and scoring needs "
                        "accepted answers"
                    )
                raise ValueError(f"no question is left: {why}; give a file with some")
            missing = "no question is left"
            if self.n:
                missing = f"{self.n:,} questions were requested and {len(found.questions):,} are left"
            skipped = len(order) - len(stretch)
            raise ValueError(
                f"{missing}: {len(order):,} in the files, {skipped:,} of them before first={self.first}, "
                f"{found.summary()}; request fewer"
            )
        return found

    def _fill(self, found: Selected, left: Sequence[Question]) -> None:
        wanted = len(left) if self.n is None else self.n
        at = 0
        while at < len(left) and len(found.questions) < wanted:
            batch = left[at : at + max(wanted - len(found.questions), _LEAST_BATCH)]
            found.add(batch, self.known(batch) if self.known else [False] * len(batch))
            at += len(batch)
        del found.questions[wanted:]  # the last batch may have found too many


def occurring(questions: Sequence[Question], paths: Sequence[str | Path]) -> set[str]:
    """Return the ids of the questions that also occur in one of the data sets ``paths``.

    A question is known by its text, because ids may be line numbers, and other projects' files have other ids. If a
    data set has the same text several times, about different documents, the ids have to be equal too.
    """
    times = Counter(question.question for question in questions)
    found: set[str] = set()
    for path in paths:
        keys = question_keys(path)
        theirs = Counter(key.text for key in keys)
        equal = set(keys)
        for question in questions:
            text = question.question
            is_unique = times[text] == theirs[text] == 1
            if is_unique or QuestionKey(question.id, text) in equal:
                found.add(question.id)
    return found


@dataclass(slots=True)
class Selected:
    """The selected questions in order, how many were left out for each reason, and notes on how files were read."""

    in_other_files: int
    questions: list[Question] = field(default_factory=list)
    known: int = 0
    failed: int = 0
    unanswerable: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, questions: Sequence[Question], known: Sequence[bool | None]) -> None:
        """Add the questions whose verdict in ``known`` is False, and count the others."""
        self.questions += [question for question, verdict in zip(questions, known, strict=True) if verdict is False]
        self.known += sum(verdict is True for verdict in known)
        self.failed += sum(verdict is None for verdict in known)

    def summary(self) -> str:
        """Return a phrase with the number of questions left out for each reason."""
        counts = (
            ("left out as unanswerable", self.unanswerable),
            ("in another data set", self.in_other_files),
            ("known without the document", self.known),
            ("without a reply from the filter's models", self.failed),
        )
        return ", ".join(f"{n:,} {reason}" for reason, n in counts if n) or "none left out"


def convert(
    form: str,
    paths: str | Path | Sequence[str | Path],
    selection: Selection,
    *,
    length: Length | None = None,
    tokenizer: Tokenizer | None = None,
    rule: str | None = None,
    **options: Any,
) -> tuple[Selected, Iterator[Example]]:
    """Convert files in the format ``form``; return the selected questions and an iterator over their examples.

    ``form`` is a key of :data:`memagent_lib.data.FORMATS`, and ``options`` are the format's own. With a ``length``,
    each document is built from the documents of its file; this needs a ``tokenizer`` and a format that has a pool.
    ``rule`` replaces the judge.
    """
    known = format_named(form)
    require_options(form, options)
    if rule:
        judge_named(rule)
    if isinstance(paths, str | Path):
        paths = [paths]
    if not paths:
        raise ValueError("no file to convert; give at least one")
    for path in paths:
        require_file(path, form)
    repeated = [str(path) for path, times in Counter(map(Path, paths)).items() if times > 1]
    if repeated:
        raise ValueError(f"{', '.join(repeated)} is named more than once; name each file once")

    def unanswerable() -> int:
        return sum(known.unanswerable(path, **options) for path in paths)

    if length is None:
        if rule and "rule" in known.options:
            options["rule"] = rule  # such formats refuse questions that their own judge cannot score
        selected, examples = _as_they_are(form, paths, selection, options, unanswerable)
    elif known.pool is None:
        raise ValueError(f"the documents of {known.files} have a length of their own; leave it out")
    else:
        selected, examples = _among_others(form, paths, selection, length, tokenizer, unanswerable)
    notes = (known.note(path, **options) for path in paths)
    selected.notes = list(dict.fromkeys(filter(None, notes)))  # a note about the format is the same for every file
    selected.unanswerable = unanswerable()
    return selected, (replace(example, rule=rule) if rule else example for example in examples)


def _as_they_are(
    form: str,
    paths: Sequence[str | Path],
    selection: Selection,
    options: dict[str, Any],
    unanswerable: Callable[[], int],
) -> tuple[Selected, Iterator[Example]]:
    """Read the files twice, first for the questions alone, so that the documents are never all in memory at once."""

    def read() -> Iterator[Example]:
        for path in paths:
            for example in read_original(path, form, **options):
                # A format's own question_id wins: several examples may have the same question.
                yield replace(example, metadata={"question_id": example.id, **example.metadata})

    def bare(example: Example) -> Example:
        return replace(example, id=example.metadata["question_id"], document="", evidence=())

    selected = selection.of(list(unique(map(bare, read()), *paths)), unanswerable)
    wanted = {question.id for question in selected.questions}
    return selected, (example for example in read() if example.metadata["question_id"] in wanted)


def _among_others(
    form: str,
    paths: Sequence[str | Path],
    selection: Selection,
    length: Length,
    tokenizer: Tokenizer,
    unanswerable: Callable[[], int],
) -> tuple[Selected, Iterator[Example]]:
    pools = [read_pool(path, form) for path in paths]
    questions = list(unique((question for pool in pools for question in pool.questions), *paths))
    owners = {question.id: pool for pool in pools for question in pool.questions}
    selected = selection.of(questions, unanswerable)
    meter = Meter(tokenizer)

    def make(index: int, question: PoolQuestion) -> Example:
        key = ExampleKey(form, selection.seed or 0, index, length)
        made = owners[question.id].plan(question, key, "contains").example(key, meter)
        return replace(made, id=f"{form}-{length.label}-{question.id}")

    return selected, (make(index, question) for index, question in enumerate(selected.questions))
