"""Memory traces in MLflow: a trace per reading and a span per turn, which MLflow searches.

Turns and chunks are counted from 1. A span has the position and the hash of its chunk, not the text, and lasts as long
as the model took. A long trace has only the turns that people look for (:func:`selected_turns`), and says how many it
lacks. Complete readings are in the run's artifacts.

``experiment.client.search_traces([experiment.experiment_id], filter_string=...)`` finds traces by MLflow's filter
language: ``tags.question ILIKE '%owl%'`` · ``feedback.score < 1`` ·
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

from memagent_lib.diagnostics import evidence_in
from memagent_lib.evaluation import COLUMNS, Result
from memagent_lib.journal import digest
from memagent_lib.status_line import status_line
from memagent_lib.trace import Turn
from memagent_lib.tracking.store import call

if TYPE_CHECKING:
    from mlflow.entities import Span, TraceInfo

    from memagent_lib.tracking.runs import Run

MAX_TRACES = 500  # per call
MAX_TURNS = 48  # per trace
SPANS_AT_ONCE = 2000  # per transaction
TAG_CHARS = 1000
MEMORIES_CHARS = 4000


class TracesLeftOut(NamedTuple):
    """How many traces were not logged, and how many turns the logged traces lack."""

    traces: int
    turns: int


def log_traces(run: Run, results: Iterable[Result], max_turns: int = MAX_TURNS, **tags: Any) -> TracesLeftOut:
    """Log readings as traces of the run, with ``tags`` on each; return how much was left out.

    If there are more than :data:`MAX_TRACES` readings, those of every reader, length and verdict are taken in turn. All
    traces have been written when this returns.
    """
    from mlflow.tracing.client import TracingClient

    # MLflow's exporter is not used, because it only logs a failure.
    client = TracingClient(run.experiment.uri)
    traced = [result for result in results if result.trace is not None]
    chosen = list(islice(_fairly(traced), MAX_TRACES))
    turns_left_out = 0
    spans: list[Span] = []
    with status_line("logging to MLflow", len(chosen), "readings") as bar:
        for result in chosen:
            selected = selected_turns(result, max_turns)
            left_out = len(result.trace.turns) - len(selected)
            turns_left_out += left_out
            info = _info(run, result, left_out, tags)
            call(client.start_trace, info)
            spans += _spans(info, result, selected)
            if len(spans) >= SPANS_AT_ONCE or result is chosen[-1]:
                call(client.log_spans, run.experiment.experiment_id, spans)
                spans = []
            bar.advance()
    return TracesLeftOut(len(traced) - len(chosen), turns_left_out)


def trace_id_of(run: Run, result: Result) -> str:
    """Return the id of a reading's trace, a hash of run and reading, so a reading logged twice has one trace."""
    parts = (run.id, result.reader, result.key)
    return f"tr-{digest(' '.join(map(str, parts)))}"


def selected_turns(result: Result, limit: int) -> list[int]:
    """Return the turns, in order, to log in a trace of at most ``limit`` turns.

    The first and the last come first, then those that read evidence, those after which a fact came or went, those cut
    at their token limit or without a memory; where there is room for more, they are evenly spread.
    """
    turns = result.trace.turns
    last = len(turns) - 1
    if last < limit:
        return list(range(len(turns)))
    wanted = chain(
        (0, 1, last - 1, last),
        (i for i, turn in enumerate(turns) if evidence_in(turn, result.example.evidence)),
        *((i, max(0, i - 1)) for i in result.diagnosis.changes),
        (i for i, turn in enumerate(turns) if turn.reply.cut or turn.bad_memory),
    )
    selected = set(islice(dict.fromkeys(wanted), limit))
    room = limit - len(selected)
    return sorted(selected | set(range(0, last, last // room + 1))) if room else sorted(selected)


def _fairly(results: Sequence[Result]) -> Iterator[Result]:
    """Yield results of each reader, length and verdict in turn, wrong ones first."""
    groups = defaultdict(list)
    for result in results:
        groups[result.correct, result.reader, result.example.metadata.get("chunks")].append(result)
    in_order = [groups[key] for key in sorted(groups, key=lambda key: key[0])]  # False, for wrong, sorts first
    return filter(None, chain.from_iterable(zip_longest(*in_order)))


def _info(run: Run, result: Result, turns_left_out: int, tags: Mapping[str, Any]) -> TraceInfo:
    from mlflow.entities import AssessmentSource, Feedback, TraceInfo, TraceLocation, TraceState

    row = result.row()
    example = result.example
    starts = [turn.reply.started for turn in result.trace.turns if turn.reply.started]
    tags = {
        **{name: row[name] for name, column in COLUMNS.items() if column.tag},
        "mlflow.traceName": f"{result.reader} {example.id}",
        "question": example.question,
        "memories": _memories(result),
        "finish_reason": "length" if any(turn.reply.cut for turn in result.trace.turns) else "stop",
        "document": result.document,
        "turns_left_out": turns_left_out or None,
        "step": example.metadata.get("step"),
        **tags,
    }
    judge = AssessmentSource("CODE", f"memagent rule {example.rule}")
    score = result.score
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
        assessments=[Feedback(name="score", value=score.value, rationale=score.reason, source=judge)] if score else [],
    )


def _memories(result: Result) -> str:
    """Return the distinct lines of all memories, newest first, for the tag in which memories are searched."""
    lines = (line.strip() for memory in reversed(result.trace.memories) for line in memory.splitlines())
    return "\n".join(dict.fromkeys(filter(None, lines)))[:MEMORIES_CHARS]


def _tag(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= TAG_CHARS or name == "memories" else f"{text[:TAG_CHARS]}… ({len(text):,} characters)"


def _usage(prompt_tokens: int, reply_tokens: int) -> dict[str, int]:
    return {"input_tokens": prompt_tokens, "output_tokens": reply_tokens, "total_tokens": prompt_tokens + reply_tokens}


def _spans(info: TraceInfo, result: Result, selected: Sequence[int]) -> list[Span]:
    """Return the root span and a span per selected turn, its child."""
    turns = result.trace.turns
    # A turn without a measured time has no duration, and starts one microsecond after the one before it.
    starts = [round(t.reply.started * 1e9) or info.request_time * 1_000_000 + 1000 * i for i, t in enumerate(turns)]
    ends = [start + round(turn.reply.seconds * 1e9) for start, turn in zip(starts, turns, strict=True)]
    inputs = {"question": result.example.question, "document": result.document, "characters": result.characters}
    attributes = {"turns": len(turns), "turns_left_out": len(turns) - len(selected)}
    outputs = {"answer": result.trace.answer}
    root = _span(info, None, result.reader, "AGENT", (min(starts), max(ends)), inputs, outputs, attributes)
    return [root, *(_turn(info, root, i, turns[i], result, (starts[i], ends[i])) for i in selected)]


def _turn(info: TraceInfo, root: Span, number: int, turn: Turn, result: Result, times: tuple[int, int]) -> Span:
    prompt = turn.prompt
    reply = turn.reply
    name = str(prompt.kind)
    inputs: dict[str, Any] = {"memory": prompt.memory}
    attributes = {
        "turn": number + 1,
        "kind": name,
        "evidence": bool(evidence_in(turn, result.example.evidence)),
        "fate": result.diagnosis.fates[number],
        "finish_reason": reply.finish_reason,
        "cached_tokens": reply.cached_tokens,
        "mlflow.chat.tokenUsage": _usage(reply.prompt_tokens, reply.reply_tokens),
    }
    chunk = prompt.chunk
    if chunk:
        name = f"{name} {chunk.index + 1}"
        inputs["chunk"] = {
            "start": chunk.start,
            "end": chunk.end,
            "tokens": chunk.tokens,
            "hash": chunk.text and digest(chunk.text),
        }
        attributes["chunk_hash"] = inputs["chunk"]["hash"]
    if prompt.question != result.trace.question:
        inputs["question"] = prompt.question
    outputs = {"memory" if prompt.kind.reads else "answer" if prompt.kind.answers else "reply": reply.text}
    if reply.thinking:
        outputs["thinking"] = reply.thinking
    if turn.bad_memory:
        attributes["bad_memory"] = turn.bad_memory.fault
        outputs["turned_away"] = [refused.text for refused in turn.bad_memory.replies]
    return _span(info, root, name, "LLM", times, inputs, outputs, attributes)


def _span(
    info: TraceInfo,
    parent: Span | None,
    name: str,
    kind: str,
    times: tuple[int, int],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    attributes: Mapping[str, Any],
) -> Span:
    """Return a span of a trace; ``times`` are its start and end in nanoseconds."""
    from mlflow.entities import Span

    known = {"traceRequestId": info.trace_id, "spanType": kind, "spanInputs": inputs, "spanOutputs": outputs}
    attributes = {**{f"mlflow.{key}": value for key, value in known.items()}, **attributes}
    record = {
        "trace_id": info.trace_id,
        "span_id": digest(f"{info.trace_id} {attributes.get('turn')}")[:16],  # OpenTelemetry's ids have 8 bytes
        "parent_span_id": parent and parent.span_id,
        "name": name,
        "start_time_unix_nano": times[0],
        "end_time_unix_nano": times[1],
        "status": {"code": "STATUS_CODE_OK", "message": ""},
        "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in attributes.items()},
    }
    return Span.from_dict(record)
