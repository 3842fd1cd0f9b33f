"""Find a model in a server's list of models, and its window there or at the server's own endpoints.

The formats of common servers are known here; the caller makes the requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Card = Mapping[str, Any]
Page = Callable[..., Any]
"""Returns the JSON at a path of the server, or ``None``. With a second argument, it sends that to the path."""
_SERVED = (
    "max_model_len", "loaded_context_length", "context_length", "context_window", "max_context_length",
    "inputTokenLimit", "n_ctx",
)  # fmt: skip
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)", re.MULTILINE)
_TRAINED = "n_ctx_train"
"""The window used in training. llama.cpp and Ollama usually serve a much smaller one."""


def cards_in(listing: Any) -> dict[str, Card]:
    """Return the models in a server's list by name. Raises an error if the JSON is not a list of models.

    The list may be OpenAI's ``{"data": [...]}``, ``{"models": [...]}``, or a bare list.
    """
    if isinstance(listing, dict):
        listing = listing["data"] if "data" in listing else listing["models"]
    if listing is not None and not isinstance(listing, list):
        raise TypeError(f"a list of models, not {type(listing).__name__}")
    cards = [{"id": card} if isinstance(card, str) else card for card in listing or ()]
    return {str(card.get("id") or card["name"]): card for card in cards}


def name_in(cards: Mapping[str, Card], model: str) -> str | None:
    """Return the listed name of ``model``, or ``None``. Only a prefix (``org/``) or the tag ``:latest`` may differ.

    llama.cpp serves one model and ignores the name in a request, so its only model always matches.
    """
    if model in cards:
        return model
    alike = [name for name in cards if name.endswith(f"/{model}") or name == f"{model}:latest"]
    if len(alike) == 1:
        return alike[0]
    # llama.cpp lists its model by the path of its file.
    if len(cards) == 1:
        name, card = next(iter(cards.items()))
        if card.get("owned_by") == "llamacpp":
            return name
    return None


def window_of(cards: Mapping[str, Card], name: str, page: Page) -> int | None:
    """Return the largest total of prompt and reply tokens; ``None`` if the server does not report it.

    An adapter without a window of its own has that of its parent. ``page`` returns the JSON at a path of the server, or
    ``None`` if there is none; it is called only if the list has no window except the one used in training.
    """
    families = list(_family(cards, name))
    for card in families:
        window = _stated(card)
        if window:
            return window
    for served in (_llama_cpp, _ollama, _lm_studio):
        window = served(page, name)
        if window:
            return window
    trained = [_tokens(_table(card, "meta"), _TRAINED) or _tokens(card, _TRAINED) for card in families]
    return next((window for window in trained if window), None)


def _family(cards: Mapping[str, Card], name: str) -> Iterator[Card]:
    """Yield a model's card, then those of its parents."""
    left = dict(cards)  # a card that is its own ancestor ends the walk
    while isinstance(name, str) and name in left:
        card = left.pop(name)
        yield card
        name = card.get("parent")


def _stated(card: Card) -> int | None:
    for table in (card, _table(card, "meta")):
        for field in _SERVED:
            window = _tokens(table, field)
            if window:
                # OpenRouter states the model's window, and that of the provider it sends requests to
                provider = _tokens(_table(card, "top_provider"), "context_length")
                return min(window, provider or window)
    return None


def _llama_cpp(page: Page, name: str) -> int | None:
    return _tokens(_table(page("/props"), "default_generation_settings"), "n_ctx")


def _ollama(page: Page, name: str) -> int | None:
    """Return ``num_ctx`` of the model's own settings, or the window with which Ollama loads the model.

    The default window depends on the server's settings and on the machine's memory, and is stated only for a loaded
    model. So the model is loaded, as the first request would do.
    """
    running = page("/api/ps")
    if not isinstance(running, Mapping) or "models" not in running:
        return None
    shown = page("/api/show", {"model": name})
    settings = shown.get("parameters") if isinstance(shown, Mapping) else ""
    own = _NUM_CTX.search(str(settings))
    if own:
        window = int(own[1])
        model = _table(shown, "model_info")
        trained = [_tokens(model, key) for key in model if key.endswith(".context_length")]
        return min([window, *filter(None, trained)])  # Ollama serves no more than that
    page("/api/generate", {"model": name})
    loaded = _listed(page("/api/ps"), "models")
    return next(
        (_tokens(card, "context_length") for card in loaded if name in (card.get("name"), card.get("model"))), None
    )


def _lm_studio(page: Page, name: str) -> int | None:
    loaded = _listed(page("/api/v0/models"), "data")
    return next((_tokens(card, "loaded_context_length") for card in loaded if card.get("id") == name), None)


def _listed(table: Any, key: str) -> list[Card]:
    if not isinstance(table, dict) or not isinstance(table.get(key), list):
        return []
    return [card for card in table[key] if isinstance(card, dict)]


def _table(table: Any, key: str) -> Card:
    if not isinstance(table, Mapping) or not isinstance(table.get(key), Mapping):
        return {}
    return table[key]


def _tokens(table: Card, field: str) -> int | None:
    """Return a number of tokens. Some servers write it as a string or with a decimal point."""
    try:
        tokens = int(float(table.get(field) or 0))
    except (TypeError, ValueError, OverflowError):
        return None
    return tokens if tokens > 0 else None
