"""Memory traces in MLflow: a trace per reading, a span per turn, searchable there and read back as a frame.

A span keeps the place and the hash of its chunk, not its text. Long traces are thinned: what is kept is what a person looks for
(:func:`kept_turns`), every gap is a span of its own that says how many turns it stands for, and both counts are logged.
The whole traces are in the run's artifacts (:mod:`memagent_lib.evaluation.trace_files`). Knows results and a store; knows no notebook.

MLflow's own filter language finds them: ``tags.question ILIKE '%owl%'`` · ``feedback.score < 1`` · ``tags.finish_reason = 'length'``
· ``span.name = 'read 3' AND span.attributes.finish_reason LIKE '%length%'`` · ``span.attributes.chunk_hash LIKE '%65b104b896a0d693%'``
· ``tags.fate = 'noted and lost'`` · ``trace.text LIKE '%a word of some memory%'``.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.diagnostics import evidence_in
from memagent_lib.evaluation.evaluator import Result
from memagent_lib.evaluation.trace_files import document_hash
from memagent_lib.trace import Turn
from memagent_lib.tracking.store import TrackingError, with_retries

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities import Span, TraceInfo

    from memagent_lib.tracking.runs import Experiment, Run

MAX_TRACES = 500  # of one call
MAX_TURNS = 48  # of one trace
SPANS_AT_ONCE = 2000  # in one transaction
TAG_CHARS = 1000
TRACE_COLUMNS = [
    "trace_id", "run_id", "example", "task", "reader", "chunks", "question", "answer", "score", "capture", "retention", "fate",
    "finish_reason", "cut_memories", "turns", "turns_left_out", "prompt_tokens", "reply_tokens", "seconds", "document",
]  # fmt: skip
_NUMBERS = ("chunks", "cut_memories", "turns", "turns_left_out", "prompt_tokens", "reply_tokens")
_SHARES = ("capture", "retention")


class LeftOut(NamedTuple):
    """What the bounds left out: whole traces, and turns of traces that were kept."""

    traces: int
    turns: int


def log_traces(
    run: Run, results: Iterable[Result], max_traces: int = MAX_TRACES, max_turns: int = MAX_TURNS, **tags: Any
) -> LeftOut:
    """Log the readings of results as traces of the run; ``tags`` are added to each.

    Of more than ``max_traces``, every reader and length gets its share, wrong and right readings in turn. All is written when this
    returns; a store that takes no spans is a :class:`TrackingError`.
    """
    traced = [r for r in results if r.trace is not None]
    chosen = list(islice(_fairly(traced), max_traces))
    turns_left_out, spans = 0, []
    for result in chosen:
        kept = kept_turns(result, max_turns)
        turns_left_out += len(result.trace.turns) - len(kept)
        info = _info(run, result, len(result.trace.turns) - len(kept), tags)
        _to_store(run.ledger, "start_trace", info)
        spans += _spans(info, result, kept)
        if len(spans) >= SPANS_AT_ONCE:
            _to_store(run.ledger, "log_spans", run.ledger.experiment_id, spans)
            spans = []
    _to_store(run.ledger, "log_spans", run.ledger.experiment_id, spans)
    return LeftOut(len(traced) - len(chosen), turns_left_out)


def kept_turns(result: Result, limit: int) -> list[int]:
    """Which turns a bounded trace keeps, in order: the first and the last, those that read evidence, those after which the fact came
    or went (with the turn before), those cut at their token limit, and of the rest as many as there is room for, evenly spread.
    """
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


def search_traces(ledger: Experiment, where: str = "", run: Run | None = None, limit: int = 10_000) -> pd.DataFrame:
    """One row per trace of the experiment (or of one run), newest first, columns :data:`TRACE_COLUMNS`; no spans are read.

    ``where`` is MLflow's filter language; the module's own words give examples. More than ``limit`` is an error, not a cut.
    """
    import pandas as pd

    clauses = [where] if where else []
    clauses += [f"trace.run_id = '{run.id}'"] if run else []
    rows, token = [], None
    while True:
        page = with_retries(
            ledger.client.search_traces,
            locations=[ledger.experiment_id],
            filter_string=" AND ".join(clauses),
            max_results=500,
            page_token=token,
            include_spans=False,
        )
        rows += [_row(trace.info) for trace in page]
        if len(rows) > limit:
            raise TrackingError(
                f"more than {limit:,} traces match {where!r}; narrow the filter, name a run, or raise limit"
            )
        if not (token := page.token):
            return pd.DataFrame(rows, columns=TRACE_COLUMNS)


def _to_store(ledger: Experiment, what: str, *given: Any) -> None:
    """MLflow's exporter logs a failure and goes on; the store itself raises, takes many traces at once, and is told which it is."""
    from mlflow.tracing.client import TracingClient

    try:
        with_retries(getattr(TracingClient(ledger.uri), what), *given)
    except NotImplementedError as failure:
        raise TrackingError(
            f"{ledger.uri} keeps no spans ({failure}); it takes an MLflow server of 3.4 or later with a database"
        ) from failure


def _fairly(results: Sequence[Result]) -> Iterator[Result]:
    """One of each reader, length and verdict in turn, wrong ones first."""
    groups = defaultdict(list)
    for r in results:
        right = bool(r.score and r.score.value >= 1)
        groups[right, r.reader, r.example.metadata.get("chunks")].append(r)
    in_order = [groups[key] for key in sorted(groups, key=lambda key: key[0])]
    return (r for r in chain.from_iterable(zip_longest(*in_order)) if r is not None)


def _info(run: Run, result: Result, turns_left_out: int, tags: dict[str, Any]) -> TraceInfo:
    from mlflow.entities import AssessmentSource, Expectation, Feedback, TraceInfo, TraceLocation, TraceState

    row, example, milliseconds = result.row(), result.example, round(1000 * result.seconds)
    judge = AssessmentSource("CODE", f"memagent rule {example.rule}")
    assessments = [Expectation(name="answer", value=list(example.answers), source=judge)]
    if result.score:
        assessments.append(
            Feedback(name="score", value=result.score.value, rationale=result.score.reason, source=judge)
        )
    facts = {
        name: row[name]
        for name in ("example", "task", "reader", "chunks", "capture", "retention", "cut_memories", "turns")
    }
    facts |= {
        "mlflow.traceName": result.reader,
        "question": example.question,
        "answer": row["answer"],
        "finish_reason": "length" if any(turn.reply.cut for turn in result.trace.turns) else "stop",
        "document": document_hash(example.document),
        "turns_left_out": turns_left_out or None,
        "fate": result.diagnosis.fate,
        "step": example.metadata.get("step"),
    }
    usage = _usage(row["prompt_tokens"], row["reply_tokens"])
    return TraceInfo(
        trace_id=f"tr-{secrets.token_hex(16)}",
        trace_location=TraceLocation.from_experiment_id(run.ledger.experiment_id),
        request_time=round(1000 * time.time()) - milliseconds,
        execution_duration=milliseconds,
        state=TraceState.OK,
        request_preview=example.question[:TAG_CHARS],
        response_preview=result.trace.answer[:TAG_CHARS],
        trace_metadata={"mlflow.sourceRun": run.id, "mlflow.trace.tokenUsage": json.dumps(usage)},
        tags={name: _tag(value) for name, value in (facts | tags).items() if value is not None},
        assessments=assessments,
    )


def _tag(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= TAG_CHARS else f"{text[:TAG_CHARS]}… ({len(text):,} characters)"


def _usage(prompt_tokens: int, reply_tokens: int) -> dict[str, int]:
    return {"input_tokens": prompt_tokens, "output_tokens": reply_tokens, "total_tokens": prompt_tokens + reply_tokens}


def _spans(info: TraceInfo, result: Result, kept: Sequence[int]) -> list[Span]:
    """The root, a span per kept turn, and one per gap. Of a turn's time only the trace's total is known: each gets a share of it by
    its reply's tokens, and says so."""
    turns, root = result.trace.turns, secrets.token_hex(8)
    ends = _shared_times(info, turns)
    example, left_out = result.example, len(turns) - len(kept)
    document = {"hash": info.tags["document"], "characters": len(example.document)}
    facts = {
        "times": "the whole reading is measured; turns share it by tokens written",
        "turns": len(turns),
        "turns_left_out": left_out,
        "kept": "every turn" if not left_out else " ".join(kept_turns.__doc__.split(": ", 1)[1].split()),
    }
    read = {"question": example.question, "document": document}
    made = [
        _span(info, root, None, result.reader, "AGENT", ends[0], ends[-1], read, {"answer": result.trace.answer}, facts)
    ]
    for before, at in zip((-1, *kept), kept, strict=False):
        if at > before + 1:
            gap = {"turns_left_out": at - before - 1, "first_turn": before + 1, "last_turn": at - 1}
            made.append(
                _span(
                    info,
                    None,
                    root,
                    f"({at - before - 1:,} turns left out)",
                    "UNKNOWN",
                    ends[before + 1],
                    ends[at],
                    {},
                    {},
                    gap,
                )
            )
        made.append(_turn_span(info, root, at, turns[at], result, ends))
    return made


def _turn_span(info: TraceInfo, root: str, at: int, turn: Turn, result: Result, ends: Sequence[int]) -> Span:
    prompt, reply, chunk = turn.prompt, turn.reply, turn.prompt.chunk
    place = {"index": chunk.index, "start": chunk.start, "end": chunk.end, "tokens": chunk.tokens} if chunk else {}
    place |= {"hash": document_hash(chunk.text)} if chunk else {}
    asked = ({"chunk": place} if chunk else {}) | {"memory": prompt.memory}
    asked |= {"question": prompt.question} if prompt.question != result.trace.question else {}
    said = {("memory" if prompt.kind.reads else "answer" if prompt.kind.answers else "reply"): reply.text}
    said |= {name: value for name in ("thinking", "signal") if (value := getattr(reply, name))}
    facts = {"turn": at, "kind": str(prompt.kind), "cached_tokens": reply.cached_tokens}
    facts |= {f"chunk_{name}": value for name, value in place.items()}
    facts |= {"evidence": bool(evidence_in(turn, result.example.evidence)), "fate": result.diagnosis.fates[at]}
    facts |= {
        "mlflow.chat.tokenUsage": _usage(reply.prompt_tokens, reply.reply_tokens),
        "finish_reason": reply.finish_reason,
    }
    name = f"{prompt.kind} {chunk.index}" if chunk else str(prompt.kind)
    return _span(info, None, root, name, "LLM", ends[at], ends[at + 1], asked, said, facts)


def _span(
    info: TraceInfo,
    own: str | None,
    parent: str | None,
    name: str,
    kind: str,
    start: int,
    end: int,
    asked: Any,
    said: Any,
    facts: Any,
) -> Span:
    from mlflow.entities import Span

    given = {
        "mlflow.traceRequestId": info.trace_id,
        "mlflow.spanType": kind,
        "mlflow.spanInputs": asked,
        "mlflow.spanOutputs": said,
    }
    return Span.from_dict(
        {
            "trace_id": info.trace_id,
            "span_id": own or secrets.token_hex(8),
            "parent_span_id": parent,
            "name": name,
            "start_time_unix_nano": start,
            "end_time_unix_nano": end,
            "status": {"code": "STATUS_CODE_OK", "message": ""},
            "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in (given | facts).items()},
        }
    )


def _shared_times(info: TraceInfo, turns: Sequence[Turn]) -> list[int]:
    """Where each turn begins and the last one ends, in nanoseconds; always rising, so that MLflow shows turns in order."""
    total, written = (
        max(info.execution_duration * 1_000_000, 1000 * len(turns)),
        [1 + turn.reply.reply_tokens for turn in turns],
    )
    times, done = [info.request_time * 1_000_000], 0
    for tokens in written:
        done += tokens
        times.append(times[0] + total * done // sum(written))
    return times


def _row(info: TraceInfo) -> dict[str, Any]:
    tags = info.tags
    score = next((a.feedback.value for a in info.assessments if a.feedback and a.name == "score"), None)
    usage = json.loads(info.trace_metadata.get("mlflow.trace.tokenUsage", "{}"))
    row = {name: tags.get(name) for name in TRACE_COLUMNS}
    row |= {name: int(tags[name]) if name in tags else None for name in _NUMBERS}
    row |= {name: float(tags[name]) if name in tags else None for name in _SHARES}
    row |= {"trace_id": info.trace_id, "run_id": info.trace_metadata.get("mlflow.sourceRun"), "score": score}
    row |= {"prompt_tokens": usage.get("input_tokens"), "reply_tokens": usage.get("output_tokens")}
    return row | {"seconds": info.execution_duration / 1000, "turns_left_out": row["turns_left_out"] or 0}
