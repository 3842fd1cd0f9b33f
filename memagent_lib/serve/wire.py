"""OpenAI's JSON formats for a reply, the events of a stream, and an error. Nothing here depends on the web server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from memagent_lib.serve.conversation import ChatError, ChatRequest, ReadingTask
from memagent_lib.trace import Trace, Turn

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # of a pair or alone
_REFUSED = {
    "tools": "tools", "functions": "functions", "logprobs": "log-probabilities", "audio": "audio",
    "prediction": "predicted outputs",
}  # fmt: skip
# Fields that never change a reply, here or at OpenAI, so they are not worth reporting as ignored.
_WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")


def parsed(body: bytes) -> Any:
    """Parse the body of a request as JSON. Raises ``ValueError`` if it is not JSON or has half a surrogate pair."""
    text = body.decode("utf-8-sig")  # accepts a byte order mark
    table = json.loads(text)
    if _SURROGATE.search(text):
        json.dumps(table, ensure_ascii=False).encode()
    return table


def require_supported(chat: ChatRequest) -> None:
    """Raise :class:`ChatError` for an option that would change the reply but is not supported."""
    extra = chat.model_extra or {}
    for name, what in _REFUSED.items():
        if extra.get(name):
            raise ChatError(f"this server has no {what}", name)
    if extra.get("n") not in (None, 1):
        raise ChatError(f"one reply per request, and n is {extra['n']}", "n")
    form = extra.get("response_format") or "text"
    if isinstance(form, dict):
        form = form.get("type", "text")
    if form != "text":
        raise ChatError(f"replies are text, and response_format is {form!r}", "response_format")


def ignored(chat: ChatRequest, sampling: Mapping[str, Any]) -> list[str]:
    """Return the fields of a request that have no effect here, such as sampling settings that differ from ours.

    ``sampling`` has the server's own settings.
    """
    extra = {name: value for name, value in (chat.model_extra or {}).items() if name not in _WITHOUT_EFFECT}
    in_effect = {"n": 1, "frequency_penalty": 0, "presence_penalty": 0, "logprobs": False, **sampling}
    return sorted(name for name, value in extra.items() if value is not None and in_effect.get(name) != value)


def cut_at(text: str, stop: str | Sequence[str] | None) -> str:
    """Return the text up to the first stop word. White space at the beginning does not count as one."""
    if stop:
        text = text.lstrip()
    words = [stop] if isinstance(stop, str) else stop or ()
    found = [text.find(word) for word in words if word and word in text]
    return text[: min(found, default=len(text))]


def usage(trace: Trace) -> dict[str, Any]:
    """Return the engine's token counts, summed over all turns."""
    cached = sum(reply.cached_tokens for turn in trace.turns for reply in turn.attempts)
    return _totals([trace]) | {"prompt_tokens_details": {"cached_tokens": cached}}


def reading_metadata(trace_id: str, task: ReadingTask, trace: Trace, ignored_fields: Sequence[str]) -> dict[str, Any]:
    """Return the ``memagent`` field of a complete reply: what was read, by which rule, and in how many turns."""
    refused = {}
    if trace.sampling_left_out:
        refused = {"sampling_left_out": trace.sampling_left_out}
    return {
        "trace_id": trace_id,
        "rule": task.rule,
        "question": task.question,
        "instructions": task.instructions,
        "document_chars": len(task.document or ""),
        "turns": len(trace.turns),
        "cut_memories": trace.cut_memories,
        "bad_memories": trace.bad_memories,
        "bad_memory_kinds": trace.bad_memory_kinds,
        "ignored": list(ignored_fields),
    } | refused


def progress_metadata(trace_id: str, task: ReadingTask, turns: int, turn: Turn) -> dict[str, Any]:
    """Return the ``memagent`` field of the event after a turn: the number of turns and of characters read so far."""
    metadata = {"trace_id": trace_id, "turns": turns, "document_chars": len(task.document or "")}
    if turn.prompt.chunk:
        metadata["read_chars"] = turn.prompt.chunk.end
    return metadata


def completion(trace_id: str, model: str, text: str, trace: Trace, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete reply. ``metadata`` becomes its ``memagent`` field."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason(trace, text), "logprobs": None}
    return _head(trace_id, model, "chat.completion") | {
        "choices": [choice],
        "usage": usage(trace),
        "memagent": metadata,
    }


def text_choice(index: int, text: str, trace: Trace, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to one prompt of a text completion. ``metadata`` becomes its ``memagent`` field."""
    reason = finish_reason(trace, text)
    return {"index": index, "text": text, "finish_reason": reason, "logprobs": None, "memagent": metadata}


def text_completion(
    trace_id: str, model: str, choices: Sequence[Mapping[str, Any]], traces: Sequence[Trace]
) -> dict[str, Any]:
    """Return the replies to all prompts of a text completion, with token counts summed over all turns."""
    head = _head(trace_id, model, "text_completion") | {"id": f"cmpl-{trace_id}"}
    return head | {"choices": list(choices), "usage": _totals(traces)}


def chunk_event(trace_id: str, model: str, delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> str:
    """Return one event of a stream. ``more`` has fields in addition to OpenAI's."""
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish, "logprobs": None}
    return event(_head(trace_id, model, "chat.completion.chunk") | {"choices": [choice]} | more)


def usage_event(trace_id: str, model: str, trace: Trace) -> str:
    """Return the event that OpenAI sends last if ``stream_options.include_usage`` is set."""
    return event(_head(trace_id, model, "chat.completion.chunk") | {"choices": [], "usage": usage(trace)})


def event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def finish_reason(trace: Trace, text: str) -> str:
    """Return ``length`` if the token limit ended ``text``, and ``stop`` if the model or a stop word did."""
    is_whole = text.endswith(trace.answer.lstrip())
    return "length" if trace.turns[-1].reply.cut and is_whole else "stop"


def error(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _totals(traces: Sequence[Trace]) -> dict[str, Any]:
    prompts = sum(trace.prompt_tokens for trace in traces)
    replies = sum(trace.reply_tokens for trace in traces)
    return {"prompt_tokens": prompts, "completion_tokens": replies, "total_tokens": prompts + replies}


def _head(trace_id: str, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{trace_id}", "object": kind, "created": int(time.time()), "model": model}
