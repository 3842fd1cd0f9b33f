"""A result: everything known about the reading of one example, as an object, as a JSON record, and as a row of a table.

:data:`COLUMNS` is the whole definition of the result table. A column declared there appears in every frame and parquet
file, and optionally in summaries and in MLflow. In files, a result is a record of one line, and each document is stored
once beside the records; a chunk that is a slice of it is recorded as its span. This module does not depend on agents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.data import Example, Span
from memagent_lib.diagnostics import Diagnosis, diagnose
from memagent_lib.errors import MissingFile, nearest_path
from memagent_lib.journal import append_record, digest, records
from memagent_lib.plugins import plugin_hash
from memagent_lib.provenance import VIEW_ROOMS, code_hash
from memagent_lib.scoring import Score, judge_hash
from memagent_lib.trace import TURN_COLUMNS, Trace, Turn

if TYPE_CHECKING:
    import pandas as pd

RESULTS = "results.jsonl"
DOCUMENTS = "documents.jsonl"
STORED_BYTES = 64 << 20
"""The default limit for what is stored. Beside a journal, further documents are recorded by hash and length only;
:func:`write_results` leaves out results that do not fit."""
_EXAMPLE_FIELDS = ("id", "task", "question", "answers", "rule", "evidence")
_JUDGING_ROOMS = ("scoring", "diagnostics")
_OTHER_ROOMS = (*VIEW_ROOMS, "data", "documents", "evaluation", "panel", "rl", "sft", "sweeps", "tracking")
"""Rooms that neither read nor judge."""


def code_of_replies() -> str:
    """Return 8 hex digits that change with any code or prompt template that can change a reply."""
    return code_hash((*_OTHER_ROOMS, *_JUDGING_ROOMS))[:8]


def code_of_results(rule: str, reader_file: str = "") -> str:
    """Return 8 hex digits that change with any code that can change a reply, its diagnosis or its score by ``rule``.

    With ``reader_file``, the ``FILE.py:NAME`` of your own reader, a plus sign and 8 digits of the file follow.
    """
    reader = f"+{plugin_hash(reader_file)[:8]}" if reader_file else ""
    return digest(f"{code_hash(_OTHER_ROOMS)} {judge_hash(rule)}")[:8] + reader


class LeftOutDocument(NamedTuple):
    """Metadata of a document whose text is not stored."""

    hash: str
    characters: int
    evidence_texts: tuple[str, ...] = ()


class Sharing(NamedTuple):
    """That one reading serves several ``questions``, and the ``number`` of this one among them, from 0.

    The reading's costs are divided among the questions, so that the sum over all of them is what was spent.
    """

    questions: int
    number: int

    def part(self, cost: int) -> int:
        """Return this question's part of a cost of the reading. The parts of all questions add up to the cost."""
        return cost * (self.number + 1) // self.questions - cost * self.number // self.questions

    def __str__(self) -> str:
        return f"read once for {self.questions:,} questions, which divide its cost"


_ALONE = Sharing(1, 0)


@dataclass(frozen=True)
class Result:
    """One example's score and trace, or the error that stopped it.

    ``sharing`` is set if the document was read before its questions were known, once for all of them; ``seconds`` then
    has this question's part of the reading. ``left_out`` describes a document whose text is not stored. ``code`` is the
    version of the code that read and judged (:func:`~memagent_lib.evaluation.results.code_of_results`); the default
    is the current version.
    """

    example: Example = field(repr=False)
    reader: str
    seconds: float
    trace: Trace | None = field(default=None, repr=False)
    score: Score | None = None
    error: str | None = None
    sharing: Sharing | None = None
    left_out: LeftOutDocument | None = field(default=None, repr=False, compare=False)
    code: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.code:  # no default factory: it depends on the example's rule
            object.__setattr__(self, "code", code_of_results(self.example.rule))

    @cached_property
    def document(self) -> str:
        """The hash of the document."""
        return self.left_out.hash if self.left_out else digest(self.example.document)

    @property
    def characters(self) -> int:
        """The length of the document in characters."""
        return self.left_out.characters if self.left_out else len(self.example.document)

    @property
    def key(self) -> str:
        """The name of this reading in a journal."""
        return reading_key(self.example, self.document)

    @property
    def correct(self) -> bool:
        # A partly right answer (of several items) does not count as correct.
        return self.score is not None and self.score.value >= 1

    def cost(self, of: Callable[[Turn], int]) -> int:
        """Return what a result's turns cost by ``of``, with only a part of the turns that its questions share."""
        *reading, answer = self.trace.turns
        return (self.sharing or _ALONE).part(sum(map(of, reading))) + of(answer)

    @property
    def tokens(self) -> int:
        """The prompt and reply tokens that this question cost."""
        return _tokens("prompt_tokens")(self) + _tokens("reply_tokens")(self)

    @property
    def turns(self) -> int:
        """The replies of the model that this question cost."""
        return self.cost(lambda turn: 1)

    @property
    def counts_reading(self) -> bool:
        """Whether what happened during the reading counts with this question: with the first that shares it."""
        return self.sharing is None or self.sharing.number == 0

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What became of the evidence that the question needs. Only a result with a trace has a diagnosis."""
        # Without its document, a span is known by its text, not by the chunks that happen to have been read.
        document = self.example.document or (self.left_out and self.left_out.evidence_texts)
        return diagnose(self.trace, self.example.evidence, self.example.answers, document)

    @property
    def evidence_texts(self) -> tuple[str, ...]:
        """The text of each evidence span."""
        if self.left_out:
            return self.left_out.evidence_texts
        return tuple(self.example.document[start:end] for start, end in self.example.evidence)

    def row(self) -> dict[str, Any]:
        """Return the result as one row of :data:`COLUMNS`."""
        return {name: column.value(self) for name, column in COLUMNS.items()}

    def to_record(self, stored: bool = False) -> dict[str, Any]:
        """Return the result as plain JSON types, from which :meth:`from_record` restores it.

        With ``stored``, the document is stored beside the record, so chunks that are slices of it have no text of their
        own.
        """
        trace = self.trace and self.trace.to_record()
        if trace and stored:
            for turn in trace["turns"]:
                chunk = turn.get("chunk")
                if chunk and self.example.document[chunk["start"] : chunk["end"]] == chunk["text"]:
                    del chunk["text"]
        example = {name: getattr(self.example, name) for name in _EXAMPLE_FIELDS}
        return {
            "example": example | {"metadata": dict(self.example.metadata)},
            "document": self.document,
            "characters": self.characters,
            "facts": self.evidence_texts,
            "reader": self.reader,
            "seconds": self.seconds,
            "trace": trace,
            "score": self.score and asdict(self.score),
            "error": self.error,
            "code": self.code,
            "sharing": self.sharing,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], document: str | None = None) -> Result:
        """Restore a result from its record and its document's text, which is left out where it is not stored."""
        text = document or ""
        trace = record["trace"]
        for turn in trace["turns"] if trace else []:
            if "chunk" in turn:  # a chunk stored without its text is a slice of the document
                chunk = turn["chunk"]
                chunk.setdefault("text", text[chunk["start"] : chunk["end"]])
        fields = dict(record["example"], document=text)
        fields["evidence"] = tuple(Span(*span) for span in fields["evidence"])
        fields["answers"] = tuple(fields["answers"])
        left_out = LeftOutDocument(record["document"], record["characters"], tuple(record["facts"]))
        return cls(
            example=Example(**fields),
            reader=record["reader"],
            seconds=record["seconds"],
            trace=trace and Trace.from_record(trace),
            score=record["score"] and Score(**record["score"]),
            error=record["error"],
            sharing=record["sharing"] and Sharing(*record["sharing"]),
            left_out=None if text else left_out,
            code=record["code"],
        )

    def lean(self) -> Result:
        """Return the result without its document's text."""
        left_out = LeftOutDocument(self.document, self.characters, self.evidence_texts)
        trace = self.trace and self.trace.lean()
        return replace(self, example=replace(self.example, document=""), trace=trace, left_out=left_out)


def reading_key(example: Example, document: str = "") -> str:
    """Return the name of an example's reading in a journal, computed from its id, question and document.

    ``document`` is the hash of the document, if it is known.
    """
    return digest("\0".join((example.id, example.question, document or digest(example.document))))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the result table: its value for a result, and its meaning.

    Every column is in frames and parquet files. ``mean`` adds its average to summaries and, per reader and length, to
    MLflow's metrics. ``tag`` puts it on the MLflow trace of each reading, so that traces can be searched by it. With
    ``read``, only a reading that has not failed has a value.
    """

    of: Callable[[Result], Any]
    meaning: str
    mean: bool = False
    tag: bool = False
    read: bool = False

    def value(self, result: Result) -> Any:
        return None if self.read and result.trace is None else self.of(result)


def depth(result: Result) -> float | None:
    """Return where the last needed fact begins, as a share of the document's length; ``None`` without evidence."""
    evidence = result.example.evidence
    if not evidence or not result.characters:
        return None
    # The last one decides: only then could the question be answered.
    return max(span.start for span in evidence) / result.characters


def document_tokens(result: Result) -> int | None:
    """Return the length of the whole document in tokens, as its reader cut it; ``None`` if it read no chunk.

    A reader may leave a document before its end, or read parts of it. The length is then estimated from these.
    """
    chunks = result.trace.chunks_read
    characters = sum(chunk.end - chunk.start for chunk in chunks)
    if not characters:
        return None
    return round(sum(chunk.tokens for chunk in chunks) * max(1.0, result.characters / characters))


def _tokens(kind: str) -> Callable[[Result], int]:
    """Return a function that counts the tokens of a kind that a result cost, over all replies."""
    return lambda result: result.cost(lambda turn: sum(getattr(reply, kind) for reply in turn.attempts))


COLUMNS: dict[str, Column] = {
    "example": Column(lambda r: r.example.id, "the example's id in its data file", tag=True),
    "task": Column(lambda r: r.example.task, "the kind of question", tag=True),
    "reader": Column(lambda r: r.reader, "the strategy that read the document", tag=True),
    "chunks": Column(lambda r: r.example.metadata.get("chunks"), "the length that the document was made for", tag=True),
    "file": Column(lambda r: r.example.metadata.get("file_name") or r.example.metadata.get("file"), "the data file"),
    "document_chars": Column(lambda r: r.characters, "the document's length in characters"),
    "document_tokens": Column(document_tokens, "the document's length as the reader cut it", read=True),
    "depth": Column(depth, "where the last needed fact begins, as a share of the document"),
    "score": Column(lambda r: r.score and r.score.value, "the judge's verdict"),
    "answer": Column(lambda r: r.score and r.score.answer, "the answer that the judge found in the reply", tag=True),
    "answers": Column(lambda r: " | ".join(r.example.answers), "the accepted answers"),
    "reason": Column(lambda r: r.score and r.score.reason, "why the judge decided so"),
    "error": Column(lambda r: r.error, "what stopped the reading"),
    "capture": Column(lambda r: r.diagnosis.capture, "the needed evidence that was in memory right after its chunk",
                      mean=True, tag=True, read=True),
    "retention": Column(lambda r: r.diagnosis.retention, "the captured evidence that was in memory at the end",
                        mean=True, tag=True, read=True),
    "fate": Column(lambda r: r.diagnosis.fate and str(r.diagnosis.fate), "what had become of the needed evidence",
                   tag=True, read=True),
    "outcomes": Column(lambda r: " | ".join(filter(None, (h.outcome for h in r.diagnosis.histories))) or None,
                       "what had become of each needed fact", read=True),
    "turns": Column(lambda r: r.turns, "the model's replies", mean=True, tag=True, read=True),
    "cut_memories": Column(lambda r: r.trace.cut_memories if r.counts_reading else 0, "memories that hit their limit",
                           mean=True, tag=True, read=True),
    "cut_answers": Column(lambda r: int(r.trace.turns[-1].reply.cut), "answers that hit their limit", read=True),
    "sampling_left_out": Column(lambda r: r.trace.sampling_left_out or None, "settings that the server refused",
                                read=True),
    "bad_memories": Column(lambda r: r.trace.bad_memories if r.counts_reading else 0, "turns with a reply that was no "
                           "memory", mean=True, tag=True, read=True),
    "bad_memory_kinds": Column(lambda r: r.trace.bad_memory_kinds if r.counts_reading else "", "what these replies "
                               "were, and what was done about them", tag=True, read=True),
    "prompt_tokens": Column(_tokens("prompt_tokens"), "of all prompts", mean=True, read=True),
    "reply_tokens": Column(_tokens("reply_tokens"), "of all replies", read=True),
    "cached_tokens": Column(_tokens("cached_tokens"), "of prompts, in the engine's cache", read=True),
    "seconds": Column(lambda r: round(r.seconds, 3), "the time that the reading took"),
    "questions": Column(lambda r: (r.sharing or _ALONE).questions, "the questions that divide the reading's cost; its "
                        "bad and cut memories count with the first one"),
    "rule": Column(lambda r: r.example.rule, "the judge"),
    "code": Column(lambda r: r.code, "the version of the code that read and judged"),
    "document": Column(lambda r: r.document, "the hash of the document's text"),
    "question": Column(lambda r: digest(r.example.question), "the hash of the question"),
}  # fmt: skip


def to_frame(results: Iterable[Result]) -> pd.DataFrame:
    """Return one row per result, with the columns :data:`COLUMNS`."""
    import pandas as pd

    return pd.DataFrame([result.row() for result in results], columns=list(COLUMNS))


def turns_to_frame(readings: Mapping[str, Iterable[Result]]) -> pd.DataFrame:
    """Return one row per turn of the results of each policy: ``policy, reader, example``, then :data:`TURN_COLUMNS`.

    A reading for several questions has its rows once, with the first of them that has a trace; each has its answer.
    """
    import pandas as pd

    frames = []
    shared: set[tuple[str, str, str]] = set()
    for policy, results in readings.items():
        for result in (result for result in results if result.trace is not None):
            turns = result.trace.to_frame().assign(policy=policy, reader=result.reader, example=result.example.id)
            if result.sharing:
                reading = (policy, result.reader, result.document)
                turns = turns.tail(1) if reading in shared else turns
                shared.add(reading)
            frames.append(turns)
    columns = ["policy", "reader", "example", *TURN_COLUMNS]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


class DocumentStore:
    """Documents beside results, each stored once under its hash, up to ``limit_bytes`` characters in all."""

    def __init__(self, path: str | Path, limit_bytes: int = STORED_BYTES):
        self.path = Path(path)
        stored = _read_documents(self.path)
        self._known = set(stored)
        self._room = limit_bytes - sum(map(len, stored.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def add(self, name: str, text: str) -> bool:
        """Store a document if there is room; return whether it is in the store."""
        if text and name not in self._known and len(text) <= self._room:
            append_record(self.path, name, {"text": text})
            self._known.add(name)
            self._room -= len(text)
        return name in self._known


def _read_documents(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    texts = (record["text"] for record in records(path))
    return {digest(text): text for text in texts}


def read_results(path: str | Path) -> list[Result]:
    """Return the results in a file, or in all files of a folder, with the documents stored beside them."""
    return list(chain.from_iterable(results_by_file(path).values()))


def results_by_file(path: str | Path) -> dict[Path, list[Result]]:
    """Return what :func:`read_results` returns, by file. Files of one folder may have different readings of a question.

    Raises :class:`MissingFile` if there is none.
    """
    path = Path(path)
    files = sorted(file for file in path.glob("*.jsonl") if file.name != DOCUMENTS) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise MissingFile(f"no results at {path}{nearest_path(path)}")
    documents = _read_documents(files[0].parent / DOCUMENTS)
    return {
        file: [Result.from_record(record, documents.get(record["document"])) for record in records(file)]
        for file in files
    }


def write_results(results: Iterable[Result], folder: str | Path, limit_bytes: int = STORED_BYTES) -> int:
    """Write results and their documents until the limit is reached; return how many results were left out.

    The limit is for records and documents together. Wrong and right results alternate, wrong ones first, so that both
    kinds are present even if the limit is reached.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    documents = DocumentStore(folder / DOCUMENTS, limit_bytes)
    results = list(results)
    wrong = [result for result in results if not result.correct]
    right = [result for result in results if result.correct]
    left_out = 0
    room = limit_bytes
    for number, result in enumerate(filter(None, chain.from_iterable(zip_longest(wrong, right)))):
        record = result.to_record(stored=True)
        # The record of a long reading can be as large as its document, so both count against the limit.
        size = len(json.dumps(record))
        # Several readers of one document store it once.
        if result.document not in documents:
            size += len(result.example.document)
        if size > room:
            left_out += 1
            continue
        documents.add(result.document, result.example.document)
        append_record(folder / RESULTS, str(number), record)
        room -= size
    return left_out
