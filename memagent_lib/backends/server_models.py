"""Find a model in a server's list of models, and its window there or at the server's own endpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Card = Mapping[str, Any]
Page = Callable[..., Mapping[str, Any]]
"""Returns the JSON at a path of the server, or nothing. With a second argument, it sends that to the path."""
_WINDOWS = ("max_model_len", "context_length", "context_window", "n_ctx")


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
