"""A result: all that is known of one example's reading, in memory, as one JSON line, and as a table's row.

:data:`COLUMNS` is the whole definition of the result table: a new column is a new line there. In a record a chunk is
its place; its text is stored only where it is no slice of a document that is stored too. Knows no agent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.data import Example, Span
from memagent_lib.diagnostics import Diagnosis, diagnose, evidence_in
from memagent_lib.errors import MissingFile
from memagent_lib.journal import append_record, digest, records
from memagent_lib.paths import PACKAGE
from memagent_lib.scoring import Score
from memagent_lib.trace import TURN_COLUMNS, Trace

if TYPE_CHECKING:
    import pandas as pd

RESULTS, DOCUMENTS = "results.jsonl", "documents.jsonl"
STORED_BYTES = 64 << 20
"""How much text of documents is stored beside results; of what goes beyond, a record keeps the hash."""
TURN_TABLE = ["example", "reader", "chunks", "score", *TURN_COLUMNS, "evidence", "fate"]


class LeftOutDocument(NamedTuple):
    """What is known of a document without its text; ``facts`` are the texts of the example's evidence."""

    hash: str
    characters: int
    facts: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def code_of_results() -> str:
    """8 hex digits that change when code does that reads, judges or diagnoses, and with no page or chart."""
    rooms = ("text", "trace", "prompts", "templates", "readers", "backends", "agent", "scoring", "diagnostics")
    files = sorted(f for f in PACKAGE.rglob("*") if f.suffix in (".py", ".toml"))
    told = [f for f in files if f.relative_to(PACKAGE).parts[0].removesuffix(".py") in rooms]
    return digest("\0".join(f.read_text(encoding="utf-8") for f in told))[:8]


@dataclass(frozen=True)
class Result:
    """One example's score and trace, or the error that stopped it.

    ``left_out`` stands for a document whose text was left out: its hash and its length in characters. ``code`` says
    which version of the library read and judged.
    """

    example: Example = field(repr=False)
    reader: str
    seconds: float
    trace: Trace | None = field(default=None, repr=False)
    score: Score | None = None
    error: str | None = None
    left_out: LeftOutDocument | None = field(default=None, repr=False, compare=False)
    code: str = field(default_factory=code_of_results, repr=False, compare=False)

    @cached_property
    def document(self) -> str:
        """Its hash."""
        return self.left_out.hash if self.left_out else digest(self.example.document)

    @property
    def characters(self) -> int:
        return self.left_out.characters if self.left_out else len(self.example.document)

    @property
    def key(self) -> str:
        """What a journal calls this reading."""
        return reading_key(self.example, self.document)

    @property
    def correct(self) -> bool:
        return self.score is not None and self.score.value >= 1

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What became of the facts that the question needs; only where there is a trace."""
        document = self.example.document or (self.left_out and self.left_out.facts)
        return diagnose(self.trace, self.example.evidence, self.example.answers, document)

    @property
    def facts(self) -> tuple[str, ...]:
        """The texts of the evidence."""
        if self.left_out:
            return self.left_out.facts
        return tuple(self.example.document[start:end] for start, end in self.example.evidence)

    def row(self) -> dict[str, Any]:
        """The result as one row of :data:`COLUMNS`."""
        return {name: value(self) for name, value in COLUMNS.items()}

    def to_record(self, stored: bool = False) -> dict[str, Any]:
        """Plain JSON types; with ``stored``, chunks of a document that is stored beside go without their text."""
        e, trace = self.example, self.trace and self.trace.to_record()
        for turn in trace["turns"] if trace and stored else ():
            chunk = turn.get("chunk")
            if chunk and e.document[chunk["start"] : chunk["end"]] == chunk["text"]:
                del chunk["text"]
        names = ("id", "task", "question", "answers", "rule", "evidence")
        return {
            "example": {name: getattr(e, name) for name in names} | {"metadata": dict(e.metadata)},
            "document": self.document,
            "characters": self.characters,
            "facts": self.facts,
            "reader": self.reader,
            "seconds": self.seconds,
            "trace": trace,
            "score": self.score and asdict(self.score),
            "error": self.error,
            "code": self.code,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], document: str | None = None) -> Result:
        """The result again; a ``document`` that is not given is put together from chunks, else left out."""
        facts, trace = dict(record["example"]), record["trace"]
        turns = trace["turns"] if trace else ()
        text = _joined(record, turns) if document is None else document
        for turn in turns:
            if chunk := turn.get("chunk"):
                chunk.setdefault("text", text[chunk["start"] : chunk["end"]])
        evidence = tuple(Span(*span) for span in facts.pop("evidence"))
        example = Example(document=text, evidence=evidence, answers=tuple(facts.pop("answers")), **facts)
        about = None if text else LeftOutDocument(record["document"], record["characters"], tuple(record["facts"]))
        rest = {name: record[name] for name in ("reader", "seconds", "error", "code")}
        judged = record["score"] and Score(**record["score"])
        return cls(example, trace=trace and Trace.from_record(trace), score=judged, left_out=about, **rest)

    def lean(self) -> Result:
        """The result without its document's text."""
        about = LeftOutDocument(self.document, self.characters, self.facts)
        trace = self.trace and self.trace.lean()
        return replace(self, example=replace(self.example, document=""), trace=trace, left_out=about)


def depth(result: Result) -> float | None:
    """Where the last needed fact begins, as a share of the document; ``None`` where the example records no evidence."""
    evidence = result.example.evidence
    return max(span.start for span in evidence) / result.characters if evidence and result.characters else None


def _of_trace(value: Callable[[Result], Any]) -> Callable[[Result], Any]:
    return lambda result: None if result.trace is None else value(result)


COLUMNS: dict[str, Callable[[Result], Any]] = {
    "example": lambda r: r.example.id,
    "task": lambda r: r.example.task,
    "reader": lambda r: r.reader,
    "chunks": lambda r: r.example.metadata.get("chunks"),
    "file": lambda r: r.example.metadata.get("file") and Path(r.example.metadata["file"]).name,
    "document_chars": lambda r: r.characters,
    "document_tokens": _of_trace(lambda r: sum(t.prompt.chunk.tokens for t in r.trace.reads if t.prompt.chunk) or None),
    "depth": depth,
    "score": lambda r: r.score and r.score.value,
    "answer": lambda r: r.score and r.score.answer,
    "answers": lambda r: " | ".join(r.example.answers),
    "reason": lambda r: r.score and r.score.reason,
    "error": lambda r: r.error,
    "capture": _of_trace(lambda r: r.diagnosis.capture),
    "retention": _of_trace(lambda r: r.diagnosis.retention),
    "fate": _of_trace(lambda r: r.diagnosis.fate and str(r.diagnosis.fate)),
    "turns": _of_trace(lambda r: len(r.trace.turns)),
    "cut_memories": _of_trace(lambda r: r.trace.cut_memories),
    "prompt_tokens": _of_trace(lambda r: r.trace.prompt_tokens),
    "reply_tokens": _of_trace(lambda r: r.trace.reply_tokens),
    "cached_tokens": _of_trace(lambda r: sum(turn.reply.cached_tokens for turn in r.trace.turns)),
    "seconds": lambda r: round(r.seconds, 3),
    "rule": lambda r: r.example.rule,
    "code": lambda r: r.code,
    "document": lambda r: r.document,
}


def to_frame(results: Iterable[Result]) -> pd.DataFrame:
    """One row per result, columns :data:`COLUMNS`."""
    import pandas as pd

    return pd.DataFrame([result.row() for result in results], columns=list(COLUMNS))


def turns_to_frame(readings: Iterable[Result] | Mapping[str, Iterable[Result]]) -> pd.DataFrame:
    """One row per turn of all results, columns :data:`TURN_TABLE`; of results by policy with a column ``policy``.

    ``evidence``: the chunk holds a needed fact, or part of one. ``fate``: of the needed facts, after the turn.
    """
    import pandas as pd

    if isinstance(readings, Mapping):
        frames = [turns_to_frame(found).assign(policy=policy) for policy, found in readings.items()]
        return pd.concat(frames, ignore_index=True)
    frames = [_turns(result) for result in readings if result.trace is not None]
    return pd.concat(frames, ignore_index=True)[TURN_TABLE] if frames else pd.DataFrame(columns=TURN_TABLE)


def reading_key(example: Example, document: str = "") -> str:
    """What a journal calls the reading of an example: id, question and document; the rest changes no reply."""
    return digest("\0".join((example.id, example.question, document or digest(example.document))))


class DocumentStore:
    """Documents beside results, each stored once by its hash, until ``limit_bytes`` are full."""

    def __init__(self, path: str | Path, limit_bytes: int = STORED_BYTES):
        self.path, self._room = Path(path), limit_bytes
        stored = read_documents(self.path)
        self._known = set(stored)
        self._room -= sum(map(len, stored.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def add(self, name: str, text: str) -> bool:
        """Store a document; whether it is stored now."""
        if text and name not in self._known and len(text) <= self._room:
            append_record(self.path, name, {"text": text})
            self._known.add(name)
            self._room -= len(text)
        return name in self._known


def read_documents(path: str | Path) -> dict[str, str]:
    """The stored documents by hash; none where there is no file."""
    texts = (record["text"] for record in records(path)) if Path(path).is_file() else ()
    return {digest(text): text for text in texts}


def read_results(path: str | Path) -> list[Result]:
    """The results in a file of records or in all such files of a folder, with the documents stored beside them."""
    path = Path(path)
    files = sorted(f for f in path.glob("*.jsonl") if f.name != DOCUMENTS) if path.is_dir() else [path]
    if missing := [f for f in files or [path / RESULTS] if not f.is_file()]:
        raise MissingFile(f"no results at {missing[0]}")
    documents = read_documents((path if path.is_dir() else path.parent) / DOCUMENTS)
    found = chain.from_iterable(map(records, files))
    return [Result.from_record(record, documents.get(record["document"])) for record in found]


def write_results(results: Iterable[Result], folder: str | Path, limit_bytes: int = STORED_BYTES) -> int:
    """Write results with documents until the limit, wrong and right ones in turn; how many were left out."""
    folder, left_out, room = Path(folder), 0, limit_bytes
    folder.mkdir(parents=True, exist_ok=True)
    documents = DocumentStore(folder / DOCUMENTS, limit_bytes)
    for number, result in enumerate(_wrong_and_right(results)):
        record, text = result.to_record(stored=True), result.example.document
        size = len(json.dumps(record)) + (0 if result.document in documents else len(text))
        if size > room:
            left_out += 1
            continue
        documents.add(result.document, text)
        append_record(folder / RESULTS, str(number), record)
        room -= size
    return left_out


def _wrong_and_right(results: Iterable[Result]) -> Iterator[Result]:
    wrong, right = [], []
    for result in results:
        (right if result.correct else wrong).append(result)
    return (r for r in chain.from_iterable(zip_longest(wrong, right)) if r is not None)


def _turns(result: Result) -> pd.DataFrame:
    example, trace = result.example, result.trace
    return trace.to_frame().assign(
        example=example.id,
        reader=result.reader,
        chunks=example.metadata.get("chunks"),
        score=result.score.value if result.score else None,
        evidence=[bool(evidence_in(turn, example.evidence)) for turn in trace.turns],
        fate=[fate and str(fate) for fate in result.diagnosis.fates],
    )


def _joined(record: Mapping[str, Any], turns: Iterable[Mapping[str, Any]]) -> str:
    """The document put together from the chunks of a record; empty where they do not make it up."""
    chunks = {c["start"]: c["text"] for c in (turn.get("chunk") for turn in turns) if c and c.get("text")}
    text = "".join(chunks[start] for start in sorted(chunks))
    return text if len(text) == record["characters"] and digest(text) == record["document"] else ""
