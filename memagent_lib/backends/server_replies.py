"""Turn a server's JSON into a :class:`~memagent_lib.trace.Reply`, or raise an error that explains why there is none.

Only this module knows OpenAI's formats and how servers deviate from them. It opens no connection.
"""

from __future__ import annotations

import json
import re
from typing import Any

from memagent_lib.backends.interface import BackendError, ContentFiltered
from memagent_lib.backends.retries import RetryableError
from memagent_lib.errors import one_line
from memagent_lib.prompts import Request
from memagent_lib.text import whole_characters
from memagent_lib.thinking import Parts, Thoughts
from memagent_lib.trace import Reply

ATTEMPTS_WITHOUT_TEXT = 10  # if 30 % of all replies have no text, five would lose a turn in four hundred
COUNT_SLACK = 2  # tokens; some servers leave out the first or the last one
OTHER_TOKENIZER = 0.6  # a chat server may count with another tokenizer, mostly within a third of ours
FEWEST_CUT = 32  # tokens; the words around a short message differ by less
TRUNCATED = frozenset({"length", "max_tokens", "max_output_tokens", "max_length", "model_length"})
FILTERED = frozenset({"content_filter", "safety", "recitation", "blocklist", "prohibited_content", "sensitive"})
BROKEN_OFF = frozenset({"error", "abort", "aborted", "cancelled", "canceled", "network_error", "failed"})
BROKEN_OFF |= {"insufficient_system_resource"}
"""Finish reasons of OpenAI's API, and of Gemini, Mistral, DeepSeek, GLM, vLLM and proxies, in lower case."""
WITHOUT_FILTER = "read with another model, or have the filter switched off"
WHERE_TEXT_GOES = "check the server's chat template and its parsers of thinking and of tool calls"
MORE_ROOM = "if the model thinks first, raise thinking_tokens, or switch its thinking off"
WINDOW_SETTINGS = {
    "ollama": "OLLAMA_CONTEXT_LENGTH, or num_ctx in the Modelfile",
    "llamacpp": "--ctx-size",
    "vllm": "--max-model-len",
    "sglang": "--context-length, without --allow-auto-truncate",
}
"""How to set each server's window, by the owner that its list of models names."""
_FINAL = re.compile(r"context_length|invalid|not_found|unsupported")
_NO_CREDIT = re.compile(rb"insufficient_quota|exceeded your current quota|billing_(hard_limit|not_active)")
_FLAGGED = re.compile(
    r"\bmoderation\b|\bcontent.policy\b|\b(input|prompt|message|content|request)s?\b.{,40}\bflagged\b", re.IGNORECASE
)
_TEXT_ONLY = re.compile(
    r"\bprompt\b.{,60}\b(of type|expected|must be|should be|neither|is not) (a list of |an? )?(valid )?str(ing)?s?\b"
    r"|untagged enum Prompt\b",
    re.IGNORECASE,
)
_DAY_IS_SPENT = re.compile(rb"quotaId[^,}]{,200}PerDay")
_RETRY_IN = re.compile(
    rb"(?:retryDelay\W{1,12}|Please retry in )(?:([0-9]+)h)?(?:([0-9]+)m(?!s))?(?:([0-9]+(?:\.[0-9]+)?)(m?)s)?"
)
_ERROR_BYTES = 1 << 16  # Google's reasons for a refusal may come after kilobytes of details


def reply_in(body: dict[str, Any], request: Request) -> Reply:
    """Return the reply in a server's response to ``request``.

    Raises :class:`RetryableError` if the reply broke off, or has no text after the thoughts, because the server may
    have lost it, but :class:`BackendError` if a filter removed the text, the model refused, or the token limit left no
    room. An in-process engine reports its tokens, so an empty reply there is known to be the model's own and is scored
    as in training.
    """
    choice = body["choices"][0]
    usage = body.get("usage")
    message = choice.get("message") or {}
    text = _joined(choice["text"] if "text" in choice else message.get("content"))
    thinking = message.get("reasoning_content") or message.get("reasoning") or _thought_parts(message.get("content"))
    finish_reason = choice.get("finish_reason")
    reason = str(finish_reason).lower()
    _require_finished(reason, message)
    is_cut = reason in TRUNCATED
    if thinking and not text and is_cut:
        text = f"<think>{thinking}"  # cut while it was thinking; the driver reports every unfinished thought
        thinking = None
    if isinstance(text, str) and "text" not in choice and not thinking and not is_cut:
        text = _with_thought_closed(text, request.thoughts)
    if not isinstance(text, str) or _is_empty(request.thoughts.split(text, separated=bool(thinking))):
        what = "a tool call" if message.get("tool_calls") else "no text"
        why = f"{what} in the reply (finish_reason {finish_reason!r})"
        if is_cut:
            raise BackendError(f"{why}; {MORE_ROOM}")
        raise RetryableError(f"{why}; {WHERE_TEXT_GOES}", attempts=ATTEMPTS_WITHOUT_TEXT)
    return Reply(
        whole_characters(text),
        "length" if is_cut else "stop",
        _token_count(usage, "prompt_tokens") or len(request.ids),
        _token_count(usage, "completion_tokens"),
        _cached_tokens(usage),
        thinking=whole_characters(thinking) if isinstance(thinking, str) else "",
    )


def require_whole_prompt(body: dict[str, Any], sent: int, exact: bool, owner: str = "") -> None:
    """Raise :class:`BackendError` if the server's count of prompt tokens reveals that it truncated the prompt.

    With ``exact``, token ids were sent, so the count may be at most :data:`COUNT_SLACK` too low. Otherwise the server
    adds its chat template and may use another tokenizer, so the check is looser: the prompt is considered truncated
    only if the server counts less than the fraction :data:`OTHER_TOKENIZER` of our tokens, and more than
    :data:`FEWEST_CUT` tokens fewer. ``usage.prompt_tokens`` includes cached tokens; a server that leaves them out is
    recognised, and a server without a count is trusted.
    """
    usage = body.get("usage")
    read = _token_count(usage, "prompt_tokens")
    if not read:
        return
    cached = _cached_tokens(usage)
    if cached > read or abs(read + cached - sent) <= COUNT_SLACK:
        read += cached
    least = sent - COUNT_SLACK if exact else min(OTHER_TOKENIZER * sent, sent - FEWEST_CUT)
    if read >= least:
        return
    every = "; ".join(f"{name}: {setting}" for name, setting in WINDOW_SETTINGS.items())
    fix = f"raise the server's window ({WINDOW_SETTINGS.get(owner, every)}) or lower chunk_tokens"
    if not exact:
        fix += "; if it counts with another tokenizer, name that one (tokenizer)"
    raise BackendError(f"the server cut the prompt: {sent:,} tokens were sent and it read {read:,}; {fix}")


def is_out_of_credit(body: bytes) -> bool:
    """Return whether an error says that nothing more is paid for, which waiting does not change.

    Google has OpenAI's words for a limit per minute too, but then says when to try again.
    """
    return _NO_CREDIT.search(body[:_ERROR_BYTES]) is not None and retry_after_in(body) is None


def is_flagged(body: bytes) -> bool:
    """Return whether an error says that a filter flagged the prompt, which says nothing about other prompts.

    OpenRouter's has the reasons and the flagged text in its metadata.
    """
    error = error_table(body)
    if error is None:
        return False
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and (metadata.get("reasons") or metadata.get("flagged_input")):
        return True
    return _FLAGGED.search(message_in(body)) is not None


def takes_only_text(message: str) -> bool:
    """Return whether an error says that a prompt has to be text, so that the server takes no token ids."""
    return _TEXT_ONLY.search(message) is not None


def is_spent_for_today(body: bytes) -> bool:
    """Return whether an error is Google's for a quota per day, for which it may name a wait of seconds."""
    return _DAY_IS_SPENT.search(body[:_ERROR_BYTES]) is not None


def retry_after_in(body: bytes) -> str | None:
    """Return the seconds until the next try that Google names in an error, or ``None``."""
    found = _RETRY_IN.search(body[:_ERROR_BYTES])
    if found is None or not any(found.groups()):
        return None
    hours, minutes, seconds, milli = found.groups()
    wait_s = float(seconds or 0) / (1000 if milli else 1)
    return str(wait_s + 60 * int(minutes or 0) + 3600 * int(hours or 0))


def message_in(body: bytes) -> str:
    """Return the message in the body of an error, in one line, or "" if there is none."""
    error = error_table(body)
    if error is None:
        return _one_line(body.decode(errors="replace"))
    return _one_line(error.get("message") or _detail(error.get("detail")))


def error_table(body: bytes) -> dict[str, Any] | None:
    """Return the error in the JSON of a response, or ``None`` if it is not JSON. A text becomes its ``message``."""
    try:
        table = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(table, list) and table:  # Google's
        table = table[0]
    error = table.get("error", table) if isinstance(table, dict) else table
    return error if isinstance(error, dict) else {"message": str(error)}


def _detail(detail: Any) -> str:
    """Return FastAPI's detail of an error: a text, or a list of the fields that are wrong."""
    if not isinstance(detail, list):
        return detail if isinstance(detail, str) else ""
    wrong = [each for each in detail if isinstance(each, dict)]
    return "; ".join(f"{'.'.join(map(str, each.get('loc') or ()))}: {each.get('msg')}" for each in wrong)


def _one_line(message: Any) -> str:
    return one_line(message) if isinstance(message, str) else ""


def error_in(body: Any) -> tuple[int, bytes] | None:
    """Return the status and JSON of an error that a server sent with a success status, or ``None``."""
    if not isinstance(body, dict) or not body.get("error") or body.get("choices"):
        return None
    error = body["error"]
    code = error.get("code") if isinstance(error, dict) else None
    if not isinstance(code, int) or not 400 <= code < 600:
        code = 400 if _FINAL.search(str(code)) else 500
    return code, json.dumps(body).encode()


def _require_finished(reason: str, message: dict[str, Any]) -> None:
    if reason in FILTERED:
        raise ContentFiltered(
            f"the server's content filter took the reply (finish_reason {reason!r}); {WITHOUT_FILTER}"
        )
    if reason in BROKEN_OFF:
        raise RetryableError(f"the reply broke off (finish_reason {reason!r})")
    if message.get("refusal") and not message.get("content"):
        raise BackendError(f"the model refuses to reply: {str(message['refusal'])[:300]}")


def _with_thought_closed(text: str, thoughts: Thoughts) -> str:
    """Close the thought that the chat template here opened, if a chat server's complete reply has no mark of a thought.

    Such a server renders a chat template of its own, with thinking switched off, or removes thoughts from replies.
    """
    if not thoughts.opened or thoughts.split(text).finished:
        return text
    apart = thoughts.split(text, separated=True)
    return thoughts.family.closing + text if apart.finished and not apart.thinking else text


def _is_empty(parts: Parts) -> bool:
    # The driver reports a thought that did not end.
    return parts.finished and not parts.text


def _joined(content: Any) -> Any:
    """Join a content that is sent as a list of parts; parts without text, such as pictures, add nothing."""
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def _thought_parts(content: Any) -> str | None:
    """Return the thoughts that a content has as parts of their own, as Mistral's servers send them."""
    if not isinstance(content, list):
        return None
    thoughts = [part.get("thinking") for part in content if isinstance(part, dict) and part.get("type") == "thinking"]
    return "".join(filter(None, map(_joined, thoughts))) or None


def _cached_tokens(usage: Any) -> int:
    if not isinstance(usage, dict):
        return 0
    return _token_count(usage.get("prompt_tokens_details"), "cached_tokens")


def _token_count(table: Any, name: str) -> int:
    """Return a number of tokens from a server's table; 0 if it is missing or not a positive integer."""
    if not isinstance(table, dict) or not isinstance(table.get(name), int):
        return 0
    return max(0, table[name])
