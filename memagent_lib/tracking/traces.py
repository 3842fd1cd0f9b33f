"""Memory traces in MLflow: a trace per reading, a span per turn, searchable there and read back as a frame.

Turns and chunks are counted from 1. A span keeps the place and the hash of its chunk, not its text; its time is the
one measured around the model. Long traces are thinned: what is kept is what a person looks for (:func:`kept_turns`),
every gap is a span that says how many turns it stands for, and both counts are logged. Whole readings are in the run's
artifacts. Knows results and a store; knows no notebook.

MLflow's own filter language finds them: ``tags.question ILIKE '%owl%'`` · ``feedback.score < 1`` · ``tags.finish_reason
= 'length'`` · ``tags.fate = 'noted and lost'`` · ``tags.memories ILIKE '%a word of some memory%'`` · ``span.name =
'read 3' AND span.attributes.finish_reason LIKE '%length%'`` · ``span.attributes.chunk_hash LIKE '%65b104b896a0d693%'``.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from memagent_lib.diagnostics import evidence_in
from memagent_lib.evaluation import Result
from memagent_lib.journal import digest
from memagent_lib.trace import Turn
from memagent_lib.tracking.store import TrackingError, all_pages, count_spans, with_retries

if TYPE_CHECKING:
    from mlflow.entities import Span, TraceInfo

    from memagent_lib.tracking.runs import Experiment, Run

MAX_TRACES = 500  # of one call
MAX_TURNS = 48  # of one trace
SPANS_AT_ONCE = 2000  # in one transaction
TAG_CHARS = 1000
MEMORIES_CHARS = 4000
KEPT = (
    "the first and the last, those that read evidence, those after which a fact came or went (with the turn before), "
    "those cut at their token limit, and of the rest as many as there is room for, evenly spread"
)
_OF_ROW = ("example", "task", "reader", "chunks", "answer", "capture", "retention", "fate", "cut_memories", "turns")
_WHOLE = ("chunks", "cut_memories", "turns", "turns_left_out")
_SHARES = ("capture", "retention")
TRACE_COLUMNS = [
    "trace_id", "run_id", "example", "task", "reader", "chunks", "question", "answer", "score", "capture", "retention",
    "fate", "finish_reason", "cut_memories", "turns", "turns_left_out", "prompt_tokens", "reply_tokens", "seconds",
    "document",
]  # fmt: skip


class TracesLeftOut(NamedTuple):
    """What the bounds left out: whole traces, and turns of traces that were kept."""

    traces: int
    turns: int


def log_traces(
    run: Run, results: Iterable[Result], max_traces: int = MAX_TRACES, max_turns: int = MAX_TURNS, **tags: Any
) -> TracesLeftOut:
    """Log the readings of results as traces of the run; ``tags`` are added to each.

    Of more than ``max_traces``, every reader and length gets its share, wrong and right readings in turn. All is
    written when this returns; a store that takes no spans is a :class:`TrackingError`.
    """
    traced = [r for r in results if r.trace is not None]
    chosen = list(islice(_fairly(traced), max_traces))
    turns_left_out, spans = 0, []
    for result in chosen:
        kept = kept_turns(result, max_turns)
        turns_left_out += len(result.trace.turns) - len(kept)
        info = _info(run, result, len(result.trace.turns) - len(kept), tags)
        _to_store(run.experiment, "start_trace", info)
        spans += _spans(info, result, kept)
        if len(spans) >= SPANS_AT_ONCE:
            _to_store(run.experiment, "log_spans", run.experiment.experiment_id, spans)
            spans = []
    _to_store(run.experiment, "log_spans", run.experiment.experiment_id, spans)
    count_spans(run.experiment.uri)
    return TracesLeftOut(len(traced) - len(chosen), turns_left_out)


def trace_id_of(run: Run, result: Result) -> str:
    """The id of a reading's trace in MLflow; the same reading logged to its run again is the same trace."""
    about = result.example.metadata
    facts = (run.id, result.reader, result.key, about.get("step"), about.get("greedy"))
    return f"tr-{digest(' '.join(map(str, facts)))}"


def kept_turns(result: Result, limit: int) -> list[int]:
    """Which turns a bounded trace keeps, in order: :data:`KEPT`."""
    turns = result.trace.turns
    if len(turns) <= limit:
        return list(range(len(turns)))
    last = len(turns) - 1
    wanted = chain(
        (0, 1, last - 1, last),
        (i for i, turn in enumerate(turns) if evidence_in(turn, result.example.evidence)),
        *((i, i - 1) for i in result.diagnosis.changes if i),
        (i for i, turn in enumerate(turns) if turn.reply.cut),
    )
    kept = set(islice(dict.fromkeys(wanted), limit))
    rest, room = [i for i in range(len(turns)) if i not in kept], limit - len(kept)
    return sorted(kept | {rest[len(rest) * (2 * k + 1) // (2 * room)] for k in range(room)})


def search_traces(experiment: Experiment, where: str = "", run: Run | None = None, limit: int = 10_000) -> pd.DataFrame:
    """One row per trace of the experiment (or of one run), newest first, columns :data:`TRACE_COLUMNS`; no spans are
    read.

    ``where`` is MLflow's filter language; the module's docstring gives examples. More than ``limit`` is an error, not a
    cut.
    """
    clauses = filter(None, (where, f"trace.run_id = '{run.id}'" if run else ""))
    asked = {"locations": [experiment.experiment_id], "filter_string": " AND ".join(clauses), "max_results": 500}
    found = all_pages(experiment.client.search_traces, **asked, include_spans=False)
    rows = [_row(trace.info) for trace in islice(found, limit + 1)]
    if len(rows) > limit:
        raise TrackingError(
            f"more than {limit:,} traces match {where!r}; narrow the filter, name a run, or raise limit"
        )
    return pd.DataFrame(rows, columns=TRACE_COLUMNS)


def _to_store(experiment: Experiment, what: str, *given: Any) -> None:
    """MLflow's exporter logs a failure and returns; the store itself raises, and takes many traces at once."""
    from mlflow.tracing.client import TracingClient

    try:
        with_retries(getattr(TracingClient(experiment.uri), what), *given)
    except NotImplementedError as failure:
        raise TrackingError(
            f"{experiment.uri} keeps no spans ({failure}); it takes an MLflow server of 3.4 or later with a database"
        ) from failure


def _fairly(results: Sequence[Result]) -> Iterator[Result]:
    """One of each reader, length and verdict in turn, wrong ones first."""
    groups = defaultdict(list)
    for r in results:
        groups[r.correct, r.reader, r.example.metadata.get("chunks")].append(r)
    in_order = [groups[key] for key in sorted(groups, key=lambda key: key[0])]
    return (r for r in chain.from_iterable(zip_longest(*in_order)) if r is not None)


def _info(run: Run, result: Result, turns_left_out: int, tags: Mapping[str, Any]) -> TraceInfo:
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    row, example, milliseconds = result.row(), result.example, round(1000 * result.seconds)
    started = min((t.reply.started for t in result.trace.turns if t.reply.started), default=time.time())
    facts = {name: row[name] for name in _OF_ROW} | {
        "mlflow.traceName": f"{result.reader} {example.id}",
        "question": example.question,
        "memories": _memories(result),
        "finish_reason": "length" if any(turn.reply.cut for turn in result.trace.turns) else "stop",
        "document": result.document,
        "turns_left_out": turns_left_out or None,
        "step": example.metadata.get("step"),
    }
    usage = _usage(row["prompt_tokens"], row["reply_tokens"])
    return TraceInfo(
        trace_id=trace_id_of(run, result),
        trace_location=TraceLocation.from_experiment_id(run.experiment.experiment_id),
        request_time=round(1000 * started),
        execution_duration=milliseconds,
        state=TraceState.OK,
        request_preview=example.question[:TAG_CHARS],
        response_preview=result.trace.answer[:TAG_CHARS],
        trace_metadata={"mlflow.sourceRun": run.id, "mlflow.trace.tokenUsage": json.dumps(usage)},
        tags={name: _tag(name, value) for name, value in (facts | tags).items() if value is not None},
        assessments=_assessments(result),
    )


def _assessments(result: Result) -> list[Any]:
    from mlflow.entities import AssessmentSource, Expectation, Feedback

    judge = AssessmentSource("CODE", f"memagent rule {result.example.rule}")
    expected = Expectation(name="answer", value=list(result.example.answers), source=judge)
    if not result.score:
        return [expected]
    return [
        expected, Feedback(name="score", value=result.score.value, rationale=result.score.reason, source=judge)
    ]  # fmt: skip


def _memories(result: Result) -> str:
    """What the memories said, each line once, newest first: the tag that a search for their words looks through."""
    lines = (line.strip() for memory in reversed(result.trace.memories) for line in memory.splitlines())
    text, kept = 0, []
    for line in dict.fromkeys(filter(None, lines)):
        if (text := text + len(line) + 1) > MEMORIES_CHARS:
            break
        kept.append(line)
    return "\n".join(kept)


def _tag(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    most = MEMORIES_CHARS if name == "memories" else TAG_CHARS
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def _usage(prompt_tokens: int, reply_tokens: int) -> dict[str, int]:
    return {"input_tokens": prompt_tokens, "output_tokens": reply_tokens, "total_tokens": prompt_tokens + reply_tokens}


def _spans(info: TraceInfo, result: Result, kept: Sequence[int]) -> list[Span]:
    """The root, a span per kept turn, and one per gap."""
    turns = result.trace.turns
    times, left_out = _times(info, turns), len(turns) - len(kept)
    facts = {"turns": len(turns), "turns_left_out": left_out, "kept": KEPT if left_out else "every turn"}
    if not all(turn.reply.started for turn in turns):
        facts["times"] = "not measured"
    read = {
        "question": result.example.question,
        "document": {"hash": result.document, "characters": result.characters},
    }
    whole = min(start for start, _ in times), max(end for _, end in times)
    spans = [_span(info, [], result.reader, "AGENT", whole, read, {"answer": result.trace.answer}, facts)]
    for before, at in zip((-1, *kept), kept, strict=False):
        if at > before + 1:
            gap = {"turns_left_out": at - before - 1, "first_turn": before + 2, "last_turn": at}
            missing = times[before + 1 : at]
            name, span_of = f"({at - before - 1:,} turns left out)", (missing[0][0], missing[-1][1])
            spans.append(_span(info, spans, name, "UNKNOWN", span_of, {}, {}, gap))
        spans.append(_span(info, spans, *_turn_facts(at, turns[at], result, times[at])))
    return spans


def _turn_facts(at: int, turn: Turn, result: Result, times: tuple[int, int]) -> tuple[Any, ...]:
    prompt, reply, chunk = turn.prompt, turn.reply, turn.prompt.chunk
    place = {"number": chunk.index + 1, "start": chunk.start, "end": chunk.end, "tokens": chunk.tokens} if chunk else {}
    place |= {"hash": digest(chunk.text)} if chunk and chunk.text else {}
    asked = ({"chunk": place} if chunk else {}) | {"memory": prompt.memory}
    asked |= {"question": prompt.question} if prompt.question != result.trace.question else {}
    said = {("memory" if prompt.kind.reads else "answer" if prompt.kind.answers else "reply"): reply.text}
    said |= {name: value for name in ("thinking", "signal") if (value := getattr(reply, name))}
    facts = {"turn": at + 1, "kind": str(prompt.kind), "cached_tokens": reply.cached_tokens, "seconds": reply.seconds}
    facts |= {f"chunk_{name}": value for name, value in place.items()}
    facts |= {"evidence": bool(evidence_in(turn, result.example.evidence)), "fate": result.diagnosis.fates[at]}
    facts |= {"mlflow.chat.tokenUsage": _usage(reply.prompt_tokens, reply.reply_tokens)}
    facts |= {"finish_reason": reply.finish_reason}
    name = f"{prompt.kind} {chunk.index + 1}" if chunk else str(prompt.kind)
    return name, "LLM", times, asked, said, facts


def _span(
    info: TraceInfo,
    before: Sequence[Span],
    name: str,
    kind: str,
    times: tuple[int, int],
    asked: Any,
    said: Any,
    facts: Mapping[str, Any],
) -> Span:
    """A span of a trace after those ``before`` it: the first is the root, the others are its children."""
    from mlflow.entities import Span

    attributes = {"mlflow.traceRequestId": info.trace_id, "mlflow.spanType": kind}
    attributes |= {"mlflow.spanInputs": asked, "mlflow.spanOutputs": said, **facts}
    record = {
        "trace_id": info.trace_id,
        "span_id": digest(f"{info.trace_id} {len(before)}")[:16],
        "parent_span_id": before[0].span_id if before else None,
        "name": name,
        "start_time_unix_nano": times[0],
        "end_time_unix_nano": times[1],
        "status": {"code": "STATUS_CODE_OK", "message": ""},
        "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in attributes.items()},
    }
    return Span.from_dict(record)


def _times(info: TraceInfo, turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """When each turn began and ended, in nanoseconds, as measured. A turn without a time takes none: it stands in its
    place among the others, a microsecond after the one before.
    """
    times, before = [], info.request_time * 1_000_000
    for turn in turns:
        start = round(turn.reply.started * 1e9) or before + 1000
        times.append((start, start + round(turn.reply.seconds * 1e9)))
        before = max(before, times[-1][0])
    return times


def _row(info: TraceInfo) -> dict[str, Any]:
    tags = info.tags
    score = next((a.feedback.value for a in info.assessments if a.feedback and a.name == "score"), None)
    usage = json.loads(info.trace_metadata.get("mlflow.trace.tokenUsage", "{}"))
    row = {name: tags.get(name) for name in TRACE_COLUMNS}
    row |= {name: int(tags[name]) if name in tags else None for name in _WHOLE}
    row |= {name: float(tags[name]) if name in tags else None for name in _SHARES}
    row |= {"trace_id": info.trace_id, "run_id": info.trace_metadata.get("mlflow.sourceRun"), "score": score}
    row |= {"prompt_tokens": usage.get("input_tokens"), "reply_tokens": usage.get("output_tokens")}
    return row | {"seconds": info.execution_duration / 1000, "turns_left_out": row["turns_left_out"] or 0}
