"""Join a stream of server-sent events into one response, as if it had not been streamed.

Some servers stream every reply, even if the request forbids it, and some refuse a request that does not ask for a
stream. This module opens no connection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

END = "[DONE]"
_EVENTS = re.compile(rb"\s*(data|event|id|retry)?:")  # a line without a name is a comment, such as a sign of life
_TEXTS = ("content", "text")  # or lists of parts
_STRINGS = ("reasoning_content", "reasoning", "refusal")


def is_stream(content: bytes) -> bool:
    """Return whether a response's content is a stream of events. JSON never begins like a stream."""
    return _EVENTS.match(content) is not None


def joined(content: bytes) -> Any:
    """Return a stream's chunks as one response.

    An error inside the stream is returned in place of the response. Raises :class:`ValueError` if the stream broke off:
    it then has neither a finish reason nor an end mark.
    """
    choice: dict[str, Any] = {"finish_reason": None}
    message: dict[str, Any] = {}
    response: dict[str, Any] = {"usage": None}
    ended = False
    for data in _events(content):
        if data == END:
            ended = True
            break
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError(f"a chunk of a stream is no object: {data[:80]!r}")
        if chunk.get("error"):
            return chunk
        response["usage"] = chunk.get("usage") or response["usage"]
        for part in _choices(chunk):
            _add(choice, part)
            _add(message, part.get("delta") or part.get("message") or {})
            choice["finish_reason"] = part.get("finish_reason") or choice["finish_reason"]
    if not ended and choice["finish_reason"] is None:
        raise ValueError("the stream broke off")
    return response | {"choices": [choice | {"message": message}]}


def _events(content: bytes) -> Iterator[str]:
    """Yield the data of each event, with its lines joined. Comments and the other fields of an event are ignored."""
    # Only these ends of lines: splitlines() would also break a text at U+2028, which JSON allows unescaped.
    lines = re.split("\r\n|\r|\n", content.decode("utf-8", errors="replace").removeprefix("\ufeff"))
    data: list[str] = []
    for line in (*lines, ""):
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and data:
            yield "\n".join(data).strip()
            data = []


def _choices(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of the first reply in a chunk. Some chunks have none, such as the chunk with the usage."""
    choices = chunk.get("choices")
    parts = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    return [part for part in parts if part.get("index") in (0, None)]


def _add(whole: dict[str, Any], part: Any) -> None:
    """Append the texts of a part to those of the whole reply."""
    if not isinstance(part, dict):
        return
    for name in _TEXTS:
        text = part.get(name)
        if text is not None:
            whole.setdefault(name, []).extend(text if isinstance(text, list) else [text])
    for name in _STRINGS:
        text = part.get(name)
        if isinstance(text, str):
            whole[name] = whole.get(name, "") + text
    if part.get("tool_calls"):
        whole["tool_calls"] = part["tool_calls"]
