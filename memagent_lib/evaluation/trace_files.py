"""Traces on disk, whole enough to look into: results with their examples in one JSONL file, each document once in another.

A chunk is kept as its place in the document; its text is stored only where it is not a slice of the document (a baseline
that joins head and tail). The files may be cut short by a killed process: whole lines are read, and the rest is reported.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.data.examples import Example, Span
from memagent_lib.diagnostics import evidence_in
from memagent_lib.evaluation.evaluator import Result
from memagent_lib.scoring import score
from memagent_lib.trace import TURN_COLUMNS, Trace

if TYPE_CHECKING:
    import pandas as pd

TRACES, DOCUMENTS = "traces.jsonl", "documents.jsonl"
FRAME_COLUMNS = ["example", "reader", "chunks", "score", *TURN_COLUMNS, "evidence", "fate"]


def write(results: Iterable[Result], folder: str | Path, limit_bytes: int) -> int:
    """Write results that have a trace, wrong and right ones in turn, until the limit. Returns how many were left out."""
    folder, size, kept_documents, left_out = Path(folder), 0, set(), 0
    folder.mkdir(parents=True, exist_ok=True)
    with (
        open(folder / TRACES, "w", encoding="utf-8") as traces,
        open(folder / DOCUMENTS, "w", encoding="utf-8") as documents,
    ):
        for result in _wrong_and_right(results):
            text = result.example.document
            name = document_hash(text)
            line = json.dumps(_record(result, name)) + "\n"
            document = "" if name in kept_documents else json.dumps({"document": name, "text": text}) + "\n"
            if size + len(line) + len(document) > limit_bytes:
                left_out += 1
                continue
            traces.write(line)
            documents.write(document)
            kept_documents.add(name)
            size += len(line) + len(document)
    return left_out


def read(folder: str | Path) -> list[Result]:
    """What :func:`write` wrote. Scores are derived again from the answers."""
    folder = Path(folder)
    documents = {r["document"]: r["text"] for r in _lines(folder / DOCUMENTS)}
    records = list(_lines(folder / TRACES))
    if homeless := sum(r["document"] not in documents for r in records):
        warnings.warn(
            f"{folder}: {homeless} of {len(records)} readings were left out, because their document is missing",
            stacklevel=2,
        )
    return [_result(r, documents[r["document"]]) for r in records if r["document"] in documents]


def to_frame(results: Iterable[Result]) -> pd.DataFrame:
    """One row per turn, columns :data:`FRAME_COLUMNS`.

    ``evidence``: the chunk holds a needed fact, or part of one. ``fate``: of the needed facts, after the turn.
    """
    import pandas as pd

    frames = [_turns(r) for r in results if r.trace is not None]
    return pd.concat(frames, ignore_index=True)[FRAME_COLUMNS] if frames else pd.DataFrame(columns=FRAME_COLUMNS)


def document_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _turns(result: Result) -> pd.DataFrame:
    example, frame = result.example, result.trace.to_frame()
    value = result.score.value if result.score else None
    frame = frame.assign(example=example.id, reader=result.reader, chunks=example.metadata.get("chunks"), score=value)
    frame["evidence"] = [bool(evidence_in(turn, example.evidence)) for turn in result.trace.turns]
    frame["fate"] = [str(fate) if fate else None for fate in result.diagnosis.fates]
    return frame


def _wrong_and_right(results: Iterable[Result]) -> Iterator[Result]:
    traced = [r for r in results if r.trace is not None]
    wrong = [r for r in traced if not (r.score and r.score.value >= 1)]
    right = [r for r in traced if r.score and r.score.value >= 1]
    return (r for r in chain.from_iterable(zip_longest(wrong, right)) if r is not None)


def _record(result: Result, document: str) -> dict[str, Any]:
    e, trace = result.example, result.trace.to_record()
    for turn in trace["turns"]:
        chunk = turn.get("chunk")
        if chunk and e.document[chunk["start"] : chunk["end"]] == chunk["text"]:
            del chunk["text"]
    facts = {
        "id": e.id,
        "task": e.task,
        "question": e.question,
        "answers": e.answers,
        "rule": e.rule,
        "evidence": e.evidence,
        "metadata": dict(e.metadata),
    }
    return {"example": facts, "document": document, "reader": result.reader, "seconds": result.seconds, "trace": trace}


def _result(record: Mapping[str, Any], document: str) -> Result:
    facts = dict(record["example"])
    evidence = tuple(Span(*span) for span in facts.pop("evidence"))
    example = Example(document=document, evidence=evidence, answers=tuple(facts.pop("answers")), **facts)
    for turn in record["trace"]["turns"]:
        if chunk := turn.get("chunk"):
            chunk.setdefault("text", document[chunk["start"] : chunk["end"]])
    trace = Trace.from_record(record["trace"])
    return Result(
        example, record["reader"], record["seconds"], trace, score(example.rule, trace.answer, example.answers)
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"no trace file {path}")
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                warnings.warn(
                    f"{path}: line {number} is not whole and was left out; the file was cut short", stacklevel=2
                )
