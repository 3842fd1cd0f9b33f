"""What a server's refusal means for its request and for the run. This module opens no connection.

The ``openai`` client repeats a request after statuses 408, 409, 429 and 5xx, and after lost connections.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from memagent_lib.backends.interface import BackendError, BackendUnavailable, ContentFiltered
from memagent_lib.errors import one_line

LONGEST_PAUSE_S = 120  # the client does not repeat a request if the server asks for a longer wait
NEEDS_CHAT = "servers without token prompts need the chat API; set api to chat"
WITHOUT_FILTER = "read with another model, or have the filter switched off"
_FINAL = {
    401: "refuses the API key",
    402: "wants to be paid first",
    403: "refuses the API key",
    404: f"does not know this address or model; {NEEDS_CHAT}",
}
_FLAGGED = re.compile(r"moderation|content.policy|(input|prompt|message|content|request)s?\b.{,40}\bflagged", re.I)
_NO_CREDIT = re.compile(r"insufficient_quota|exceeded your current quota(?!.*retry)|PerDay", re.I | re.S)
_TEXT_ONLY = re.compile(r"\bprompt\b.{,80}\b(of type|valid|a|nor a|list of) str(ing)?s?\b|untagged enum Prompt\b", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to wait for a reply.

    An attempt ends after ``attempt_s`` without a byte, and a request after ``deadline_s``. The server counts as gone,
    which stops the run, if a request then has no reply and no other one was answered for ``gone_after_s``.
    """

    attempt_s: float = 300.0
    deadline_s: float = 900.0
    gone_after_s: float = 900.0


class RetryableError(Exception):
    """A failure after which the same request may succeed."""


def failure_of(status: int, content: str, headers: Mapping[str, str], server: str) -> Exception:
    """Return what a refusal means: a :class:`RetryableError`, or an error for this request or for all of them."""
    says = message_in(content)
    why = f"(status {status}): {says[:300]}"
    server = f"the server at {server}"
    if _TEXT_ONLY.search(says):
        return BackendUnavailable(f"{server} takes no token ids as a prompt {why}; {NEEDS_CHAT}")
    if status < 400:
        return BackendUnavailable(f"{server} redirects requests to {headers.get('location')}; give that base_url")
    if status == 429 and _NO_CREDIT.search(content):
        return BackendUnavailable(f"{server} has no credit left {why}")
    after = headers.get("retry-after", "")
    if after.isdigit() and int(after) > LONGEST_PAUSE_S:
        return BackendUnavailable(f"{server} asks to be left alone for {after} s {why}; try again then", int(after))
    if status == 403 and (_FLAGGED.search(says) or "flagged_input" in content):  # OpenRouter's
        return ContentFiltered(f"the server's content filter refuses the prompt {why}; {WITHOUT_FILTER}")
    if status in _FINAL:
        return BackendUnavailable(f"{server} {_FINAL[status]} {why}")
    if status in (408, 409, 429) or (status >= 500 and status != 501):
        return RetryableError(f"status {status}: {says[:300]}")
    return BackendError(f"the server refuses the request {why}")


def message_in(content: str) -> str:
    """Return what the body of an error says, in one line."""
    try:
        table = json.loads(content)
        table = table[0] if isinstance(table, list) else table  # Google's
        error = table.get("error") or table.get("detail") or table.get("message") or ""
        if isinstance(error, list):  # FastAPI's
            return one_line("; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error))
        return one_line(error.get("message", "") if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return one_line(content)
