"""Memory traces in MLflow: a trace per reading and a span per turn, which can be searched and read back as a frame.

Turns and chunks are counted from 1. A span has the position and the hash of its chunk, not the text, and lasts as long
as the model took. A long trace has only the turns that people look for (:func:`selected_turns`); each gap has one span
that states how many turns are missing. Complete readings are in the run's artifacts.

Use MLflow's filter language to find traces: ``tags.question ILIKE '%owl%'`` · ``feedback.score < 1`` ·
``tags.finish_reason = 'length'`` · ``tags.fate = 'noted and lost'`` · ``tags.memories ILIKE '%a word of some memory%'``
· ``span.name = 'read 3' AND span.attributes.finish_reason LIKE '%length%'`` · ``span.attributes.chunk_hash LIKE
'%65b104b896a0d693%'``.
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
from memagent_lib.evaluation import COLUMNS, Result
from memagent_lib.journal import digest
from memagent_lib.status_line import status_line
from memagent_lib.text import Chunk
from memagent_lib.trace import Turn
from memagent_lib.tracking.store import TrackingError, all_pages, call, count_spans

if TYPE_CHECKING:
    from mlflow.entities import Span, TraceInfo

    from memagent_lib.tracking.runs import Experiment, Run

MAX_TRACES = 500  # per call
MAX_TURNS = 48  # per trace
SPANS_AT_ONCE = 2000  # per transaction
TAG_CHARS = 1000
MEMORIES_CHARS = 4000
SELECTION = (
    "the first and the last, those that read evidence, those after which a fact came or went (with the turn before), "
    "those cut at their token limit, and of the rest as many as there is room for, evenly spread"
)
_FRAME_COLUMNS = (
    "trace_id", "run_id", "example", "task", "reader", "chunks", "question", "answer", "score", "capture", "retention",
    "fate", "finish_reason", "cut_memories", "turns", "turns_left_out", "prompt_tokens", "reply_tokens", "seconds",
    "document",
)  # fmt: skip


def tag_columns() -> list[str]:
    """Return the result columns that every trace has as tags."""
    return [name for name, column in COLUMNS.items() if column.tag]


def trace_columns() -> list[str]:
    """Return the columns of the frame that :func:`search_traces` returns. Newly declared tags come last."""
    return list(dict.fromkeys([*_FRAME_COLUMNS, *tag_columns()]))


class TracesLeftOut(NamedTuple):
    """How many traces were not logged, and how many turns the logged traces lack."""

    traces: int
    turns: int


def log_traces(
    run: Run, results: Iterable[Result], max_traces: int = MAX_TRACES, max_turns: int = MAX_TURNS, **tags: Any
) -> TracesLeftOut:
    """Log readings as traces of the run, with ``tags`` on each; return how much was left out.

    If there are more than ``max_traces`` readings, those of every reader, length and verdict are taken in turn. All
    traces have been written when this returns. Raises :class:`TrackingError` if the store accepts no spans.
    """
    traced = [r for r in results if r.trace is not None]
    chosen = list(islice(_fairly(traced), max_traces))
    turns_left_out = 0
    spans: list[Span] = []
    with status_line("logging to MLflow", len(chosen), "readings") as bar:
        for result in chosen:
            selected = selected_turns(result, max_turns)
            left_out = len(result.trace.turns) - len(selected)
            turns_left_out += left_out
            info = _info(run, result, left_out, tags)
            _to_store(run.experiment, "start_trace", info)
            spans += _spans(info, result, selected)
            if len(spans) >= SPANS_AT_ONCE:
                _to_store(run.experiment, "log_spans", run.experiment.experiment_id, spans)
                spans = []
            bar.advance()
        _to_store(run.experiment, "log_spans", run.experiment.experiment_id, spans)
        count_spans(run.experiment.uri)
    return TracesLeftOut(len(traced) - len(chosen), turns_left_out)


def trace_id_of(run: Run, result: Result) -> str:
    """Return the id of a reading's trace, a hash of run and reading, so a reading logged twice has one trace."""
    metadata = result.example.metadata
    parts = (run.id, result.reader, result.key, metadata.get("step"), metadata.get("greedy"))
    return f"tr-{digest(' '.join(map(str, parts)))}"


def selected_turns(result: Result, limit: int) -> list[int]:
    """Return the turns, in order, to log in a trace of at most ``limit`` turns, as :data:`SELECTION` describes."""
    turns = result.trace.turns
    if len(turns) <= limit:
        return list(range(len(turns)))
    last = len(turns) - 1
    # The most important first, because the limit may leave the others out.
    wanted = chain(
        (0, 1, last - 1, last),
        (i for i, turn in enumerate(turns) if evidence_in(turn, result.example.evidence)),
        *((i, i - 1) for i in result.diagnosis.changes if i),
        (i for i, turn in enumerate(turns) if turn.reply.cut or turn.bad_memory),
    )
    selected = set(islice(dict.fromkeys(wanted), limit))
    rest = [i for i in range(len(turns)) if i not in selected]
    room = limit - len(selected)
    # The middle turn of each of `room` equal parts.
    spread = {rest[len(rest) * (2 * k + 1) // (2 * room)] for k in range(room)}
    return sorted(selected | spread)


def search_traces(experiment: Experiment, where: str = "", run: Run | None = None, limit: int = 10_000) -> pd.DataFrame:
    """Return a row per trace of the experiment, or of one run, newest first. Columns: :func:`trace_columns`.

    ``where`` is in MLflow's filter language; the module's docstring has examples. Spans are not read. Raises
    :class:`TrackingError` if more than ``limit`` traces match.
    """
    clauses = [where] if where else []
    if run:
        clauses.append(f"trace.run_id = '{run.id}'")
    query = {"locations": [experiment.experiment_id], "filter_string": " AND ".join(clauses), "max_results": 500}
    found = all_pages(experiment.client.search_traces, **query, include_spans=False)
    rows = [_row(trace.info) for trace in islice(found, limit + 1)]  # one more shows that there are too many
    if len(rows) > limit:
        raise TrackingError(
            f"more than {limit:,} traces match {where!r}; narrow the filter, name a run, or raise limit"
        )
    return pd.DataFrame(rows, columns=trace_columns())


def _to_store(experiment: Experiment, method: str, *arguments: Any) -> None:
    """Call a method of MLflow's tracing client. MLflow's exporter is not used, because it only logs a failure."""
    from mlflow.tracing.client import TracingClient

    try:
        call(getattr(TracingClient(experiment.uri), method), *arguments)
    except NotImplementedError as failure:
        raise TrackingError(
            f"{experiment.uri} stores no spans ({failure}); it takes an MLflow server of 3.4 or later with a database"
        ) from failure


def _fairly(results: Sequence[Result]) -> Iterator[Result]:
    """Yield results of each reader, length and verdict in turn, wrong ones first."""
    groups = defaultdict(list)
    for result in results:
        groups[result.correct, result.reader, result.example.metadata.get("chunks")].append(result)
    in_order = [groups[key] for key in sorted(groups, key=lambda key: key[0])]  # False, for wrong, sorts first
    return (result for result in chain.from_iterable(zip_longest(*in_order)) if result is not None)


def _info(run: Run, result: Result, turns_left_out: int, tags: Mapping[str, Any]) -> TraceInfo:
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    row = result.row()
    example = result.example
    starts = [turn.reply.started for turn in result.trace.turns if turn.reply.started]
    is_cut = any(turn.reply.cut for turn in result.trace.turns)
    tags = {
        **{name: row[name] for name in tag_columns()},
        "mlflow.traceName": f"{result.reader} {example.id}",
        "question": example.question,
        "memories": _memories(result),
        "finish_reason": "length" if is_cut else "stop",
        "document": result.document,
        "turns_left_out": turns_left_out or None,
        "step": example.metadata.get("step"),
        **tags,
    }
    usage = _usage(row["prompt_tokens"], row["reply_tokens"])
    return TraceInfo(
        trace_id=trace_id_of(run, result),
        trace_location=TraceLocation.from_experiment_id(run.experiment.experiment_id),
        request_time=round(1000 * min(starts, default=time.time())),  # in milliseconds, as is the duration
        execution_duration=round(1000 * result.seconds),
        state=TraceState.OK,
        request_preview=example.question[:TAG_CHARS],
        response_preview=result.trace.answer[:TAG_CHARS],
        trace_metadata={"mlflow.sourceRun": run.id, "mlflow.trace.tokenUsage": json.dumps(usage)},
        tags={name: _tag(name, value) for name, value in tags.items() if value is not None},
        assessments=_assessments(result),
    )


def _assessments(result: Result) -> list[Any]:
    from mlflow.entities import AssessmentSource, Expectation, Feedback

    judge = AssessmentSource("CODE", f"memagent rule {result.example.rule}")
    assessments = [Expectation(name="answer", value=list(result.example.answers), source=judge)]
    if result.score:
        verdict = Feedback(name="score", value=result.score.value, rationale=result.score.reason, source=judge)
        assessments.append(verdict)
    return assessments


def _memories(result: Result) -> str:
    """Return the distinct lines of all memories, newest first, for the tag in which memories are searched."""
    lines = (line.strip() for memory in reversed(result.trace.memories) for line in memory.splitlines())
    chars = 0
    selected = []
    for line in dict.fromkeys(filter(None, lines)):
        chars += len(line) + 1
        if chars > MEMORIES_CHARS:
            break
        selected.append(line)
    return "\n".join(selected)


def _tag(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    most = MEMORIES_CHARS if name == "memories" else TAG_CHARS
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text):,} characters)"


def _usage(prompt_tokens: int, reply_tokens: int) -> dict[str, int]:
    return {"input_tokens": prompt_tokens, "output_tokens": reply_tokens, "total_tokens": prompt_tokens + reply_tokens}


def _spans(info: TraceInfo, result: Result, selected: Sequence[int]) -> list[Span]:
    """Return the root span, a span per selected turn, and one per gap between selected turns."""
    turns = result.trace.turns
    times = _times(info, turns)
    left_out = len(turns) - len(selected)
    attributes = {
        "turns": len(turns),
        "turns_left_out": left_out,
        "selection": SELECTION if left_out else "every turn",
    }
    if not all(turn.reply.started for turn in turns):
        attributes["times"] = "not measured"
    document = {"hash": result.document, "characters": result.characters}
    inputs = {"question": result.example.question, "document": document}
    whole = (min(start for start, _ in times), max(end for _, end in times))
    root = _SpanText(result.reader, "AGENT", whole, inputs, {"answer": result.trace.answer}, attributes)
    spans = [_span(info, [], root)]
    for before, turn in zip((-1, *selected), selected, strict=False):
        if turn > before + 1:
            spans.append(_span(info, spans, _gap(before + 1, turn, times)))
        spans.append(_span(info, spans, _turn(turn, turns[turn], result, times[turn])))
    return spans


class _SpanText(NamedTuple):
    """What a span displays; ``times`` are its start and end in nanoseconds."""

    name: str
    kind: str
    times: tuple[int, int]
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    attributes: Mapping[str, Any]


def _gap(first: int, end: int, times: Sequence[tuple[int, int]]) -> _SpanText:
    """Return the text of the span that stands for the turns ``first`` up to ``end``."""
    count = end - first
    attributes = {"turns_left_out": count, "first_turn": first + 1, "last_turn": end}
    whole = (times[first][0], times[end - 1][1])
    return _SpanText(f"({count:,} turns left out)", "UNKNOWN", whole, {}, {}, attributes)


def _turn(number: int, turn: Turn, result: Result, times: tuple[int, int]) -> _SpanText:
    prompt = turn.prompt
    reply = turn.reply
    name = str(prompt.kind)
    chunk: dict[str, Any] = {}
    if prompt.chunk:
        name = f"{prompt.kind} {prompt.chunk.index + 1}"
        chunk = _chunk(prompt.chunk)
    inputs: dict[str, Any] = {"chunk": chunk} if chunk else {}
    inputs["memory"] = prompt.memory
    if prompt.question != result.trace.question:
        inputs["question"] = prompt.question
    attributes = {
        "turn": number + 1,
        "kind": str(prompt.kind),
        "cached_tokens": reply.cached_tokens,
        "seconds": reply.seconds,
        **{f"chunk_{field}": value for field, value in chunk.items()},
        "evidence": bool(evidence_in(turn, result.example.evidence)),
        "fate": result.diagnosis.fates[number],
        "mlflow.chat.tokenUsage": _usage(reply.prompt_tokens, reply.reply_tokens),
        "finish_reason": reply.finish_reason,
    }
    if turn.bad_memory:
        attributes["bad_memory"] = turn.bad_memory.fault
        attributes["bad_memory_action"] = turn.bad_memory.action
    return _SpanText(name, "LLM", times, inputs, _outputs(turn), attributes)


def _chunk(chunk: Chunk) -> dict[str, Any]:
    position = {"number": chunk.index + 1, "start": chunk.start, "end": chunk.end, "tokens": chunk.tokens}
    if chunk.text:
        position["hash"] = digest(chunk.text)
    return position


def _outputs(turn: Turn) -> dict[str, Any]:
    if turn.prompt.kind.reads:
        name = "memory"
    elif turn.prompt.kind.answers:
        name = "answer"
    else:
        name = "reply"
    more = {"thinking": turn.reply.thinking, "signal": turn.reply.signal}
    outputs: dict[str, Any] = {name: turn.reply.text} | {field: text for field, text in more.items() if text}
    if turn.bad_memory and turn.bad_memory.replies:
        outputs["turned_away"] = [reply.text for reply in turn.bad_memory.replies]
    return outputs


def _span(info: TraceInfo, before: Sequence[Span], text: _SpanText) -> Span:
    """Return the next span of a trace after those in ``before``. The first is the root and the parent of the others."""
    from mlflow.entities import Span

    attributes = {
        "mlflow.traceRequestId": info.trace_id,
        "mlflow.spanType": text.kind,
        "mlflow.spanInputs": text.inputs,
        "mlflow.spanOutputs": text.outputs,
        **text.attributes,
    }
    record = {
        "trace_id": info.trace_id,
        "span_id": digest(f"{info.trace_id} {len(before)}")[:16],  # OpenTelemetry's ids of spans have 8 bytes
        "parent_span_id": before[0].span_id if before else None,
        "name": text.name,
        "start_time_unix_nano": text.times[0],
        "end_time_unix_nano": text.times[1],
        "status": {"code": "STATUS_CODE_OK", "message": ""},
        "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in attributes.items()},
    }
    return Span.from_dict(record)


def _times(info: TraceInfo, turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """Return the measured start and end of each turn, in nanoseconds.

    A turn without a measured time gets no duration, and a start one microsecond after the previous turn, which
    preserves the order.
    """
    times = []
    before = info.request_time * 1_000_000
    for turn in turns:
        start = round(turn.reply.started * 1e9) or before + 1000
        end = start + round(turn.reply.seconds * 1e9)
        times.append((start, end))
        before = max(before, end)
    return times


def _row(info: TraceInfo) -> dict[str, Any]:
    score = next((a.feedback.value for a in info.assessments if a.feedback and a.name == "score"), None)
    usage = json.loads(info.trace_metadata.get("mlflow.trace.tokenUsage", "{}"))
    row: dict[str, Any] = {name: info.tags.get(name) for name in trace_columns()}
    for name in tag_columns():
        if name in info.tags:
            row[name] = COLUMNS[name].type(info.tags[name])
    return row | {
        "trace_id": info.trace_id,
        "run_id": info.trace_metadata.get("mlflow.sourceRun"),
        "score": score,
        "prompt_tokens": usage.get("input_tokens"),
        "reply_tokens": usage.get("output_tokens"),
        "seconds": info.execution_duration / 1000,
        "turns_left_out": int(info.tags.get("turns_left_out", 0)),
    }
