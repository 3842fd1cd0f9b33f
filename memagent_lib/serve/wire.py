"""OpenAI's forms of a reply, of its pieces in a stream, and of an error. Knows traces, and no web server."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from memagent_lib.serve.conversation import ChatError, ChatRequest, ReadingTask
from memagent_lib.trace import Trace, Turn

_REFUSED = {
    "tools": "tools", "functions": "functions", "logprobs": "log-probabilities", "audio": "audio",
    "prediction": "predicted outputs",
}  # fmt: skip
_WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")


def require_supported(chat: ChatRequest) -> None:
    """Raise :class:`ChatError` for what would change the reply and is not offered here."""
    extra = chat.model_extra or {}
    for name, what in _REFUSED.items():
        if extra.get(name):
            raise ChatError(f"this server has no {what}", name)
    if extra.get("n", 1) != 1:
        raise ChatError(f"one reply per request, and n is {extra['n']}", "n")
    if (form := (extra.get("response_format") or {}).get("type", "text")) != "text":
        raise ChatError(f"replies are text, and response_format is {form!r}", "response_format")


def ignored(chat: ChatRequest, sampling: Mapping[str, Any]) -> list[str]:
    """The fields of a request that ask for something else than they get: sampling is the server's own."""
    extra = {name: value for name, value in (chat.model_extra or {}).items() if name not in _WITHOUT_EFFECT}
    same = {"n": 1, "frequency_penalty": 0, "presence_penalty": 0, "logprobs": False, **sampling}
    return sorted(name for name, value in extra.items() if value is not None and same.get(name) != value)


def cut_at(text: str, stop: str | Sequence[str] | None) -> str:
    """A text up to the first of the stop words."""
    words = [stop] if isinstance(stop, str) else stop or ()
    return text[: min((at for word in words if word and (at := text.find(word)) >= 0), default=len(text))]


def usage(trace: Trace) -> dict[str, Any]:
    """All tokens of all turns, as the engine counted them."""
    cached = sum(turn.reply.cached_tokens for turn in trace.turns)
    return {
        "prompt_tokens": trace.prompt_tokens,
        "completion_tokens": trace.reply_tokens,
        "total_tokens": trace.prompt_tokens + trace.reply_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def reading_facts(trace_id: str, task: ReadingTask, trace: Trace, left_out: Sequence[str]) -> dict[str, Any]:
    """What a reply says of its reading, in the field ``memagent``."""
    return {
        "trace_id": trace_id,
        "rule": task.rule,
        "question": task.question,
        "document_chars": len(task.document or ""),
        "turns": len(trace.turns),
        "cut_memories": trace.cut_memories,
        "ignored": list(left_out),
    }


def progress_facts(trace_id: str, task: ReadingTask, turns: int, turn: Turn) -> dict[str, Any]:
    """What is said after each turn of a reading, in the field ``memagent``."""
    read = {"read_chars": turn.prompt.chunk.end} if turn.prompt.chunk else {}
    return {"trace_id": trace_id, "turns": turns, "document_chars": len(task.document or ""), **read}


def completion(trace_id: str, model: str, text: str, trace: Trace, facts: Mapping[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason(trace), "logprobs": None}
    return _head(trace_id, model, "chat.completion") | {"choices": [choice], "usage": usage(trace), "memagent": facts}


def piece(trace_id: str, model: str, delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> str:
    """One event of a stream."""
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish, "logprobs": None}
    return event(_head(trace_id, model, "chat.completion.chunk") | {"choices": [choice]} | more)


def usage_piece(trace_id: str, model: str, trace: Trace) -> str:
    """The event that OpenAI sends last where ``stream_options.include_usage`` asks for it."""
    return event(_head(trace_id, model, "chat.completion.chunk") | {"choices": [], "usage": usage(trace)})


def event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def finish_reason(trace: Trace) -> str:
    return "length" if trace.turns[-1].reply.cut else "stop"


def error(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _head(trace_id: str, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{trace_id}", "object": kind, "created": int(time.time()), "model": model}
