"""What a server's answers mean: what is retried, its list of models, and their windows.

This module opens no connection. The ``openai`` client repeats a request after statuses 408, 409, 429 and 5xx, and after
lost connections.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from memagent_lib.backends.interface import BackendError, BackendUnavailable, ContentFiltered
from memagent_lib.errors import one_line

Card = Mapping[str, Any]
Page = Callable[..., Mapping[str, Any]]
"""Returns the JSON at a path of the server, or nothing. With a second argument, it sends that to the path."""
LONGEST_PAUSE_S = 120  # the client does not repeat a request if the server asks for a longer wait
NEEDS_CHAT = "servers without token prompts need the chat API; set api to chat"
WITHOUT_FILTER = "read with another model, or have the filter switched off"
ODD_FORM = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
"""What reading JSON of an unexpected form raises."""
_WINDOWS = ("max_model_len", "context_length", "context_window", "n_ctx")
_FINAL = {
    401: "refuses the API key",
    402: "wants to be paid first",
    403: "refuses the API key",
    404: f"does not know this address or model; {NEEDS_CHAT}",
}
_FLAGGED = re.compile(r"moderation|content.policy|(input|prompt|message|content|request)s?\b.{,40}\bflagged", re.I)
_NO_CREDIT = re.compile(r"insufficient_quota|exceeded your current quota(?!.*retry)|PerDay", re.I | re.S)
_TEXT_ONLY = re.compile(r"\bprompt\b.{,80}\b(of type|valid|a|nor a|list of) str(ing)?s?\b|untagged enum Prompt\b", re.I)


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
        return BackendUnavailable(f"{server} asks to be left alone for {after} s {why}; try again then")
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
        error = table.get("error") or table["detail"]
        if isinstance(error, list):  # FastAPI's
            return one_line("; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error))
        return one_line(error["message"] if isinstance(error, dict) else error)
    except ODD_FORM:
        return one_line(content)


def status_of(error: Any) -> int:
    """Return the status that an error in a response with status 200 stands for."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 600:
        return code
    return 400 if "context" in str(error) else 500


def cards_in(listing: Any) -> dict[str, Card]:
    """Return the models of a list by name. Raises an error if the JSON has another form."""
    return {card["id"]: card for card in (listing if isinstance(listing, list) else listing["data"] or [])}


def name_of(cards: dict[str, Card], model: str) -> str | None:
    """Return the listed name of ``model``, or ``None``. A prefix (``org/``) or the tag ``:latest`` may be missing.

    llama.cpp serves one model under any name. A variant (``org/model:fast``) gets the card of its model.
    """
    base = model.partition(":")[0]
    if base in cards:
        cards.setdefault(model, cards[base])
    if model in cards:
        return model
    alike = [name for name in cards if name.endswith(f"/{model}") or name == f"{model}:latest"]
    if [card.get("owned_by") for card in cards.values()] == ["llamacpp"]:
        alike = list(cards)
    return alike[0] if len(alike) == 1 else None


def window_of(cards: Mapping[str, Card], name: str, page: Page) -> int:
    """Return the largest total of prompt and reply tokens, or 0 if the server does not report it.

    An adapter has the window of its parent. OpenRouter states the model's window and that of the provider that serves
    it; the smaller one counts.
    """
    card = cards[name]
    for table in (card, card.get("meta") or {}, cards.get(card.get("parent"), {})):
        stated = [int(float(table[field])) for field in _WINDOWS if table.get(field)]
        if stated:
            return min(stated[0], (table.get("top_provider") or {}).get("context_length") or stated[0])
    return (page("/props").get("default_generation_settings") or {}).get("n_ctx") or _ollama(page, name)


def _ollama(page: Page, name: str) -> int:
    """Return ``num_ctx`` of the model's settings, or the window with which Ollama loads it.

    The default depends on the server and on the machine's memory, and is stated only for a loaded model.
    """
    if "models" not in page("/api/ps"):
        return 0
    shown = page("/api/show", {"model": name})
    own = re.search(r"^num_ctx\s+(\d+)", shown.get("parameters") or "", re.MULTILINE)
    if own:
        sizes = shown.get("model_info") or {}
        return min([int(own[1]), *(sizes[key] for key in sizes if key.endswith(".context_length"))])
    page("/api/generate", {"model": name})
    loaded = page("/api/ps").get("models") or []
    return next((card["context_length"] for card in loaded if name in (card.get("name"), card.get("model"))), 0)
