"""Any OpenAI-compatible server as a backend: vLLM, SGLang, llama.cpp, hosted models.

``api="completions"`` sends our exact token ids, so special tokens in a document stay plain text and prompts are those seen
in training; ``api="chat"`` sends the words and the server wraps them, for hosted models that offer nothing else. Built on
httpx rather than the ``openai`` package: the retries, deadline and circuit are ours either way (its own stop at half a JSON
and know no circuit), and a turn then costs one plain POST on a kept connection.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx

from memagent_lib.backends.interface import BackendError, BackendUnavailable, Sampling, require_room
from memagent_lib.backends.retries import Circuit, RetryableError, RetryPolicy, retrying
from memagent_lib.prompts import END_OF_THINKING, Completion, Request

APIS = ("completions", "chat")
_WINDOW_FIELDS = ("max_model_len", "context_length", "context_window", "n_ctx", "n_ctx_train")


class OpenAICompatible:
    """A model on a server. ``base_url`` ends where ``/models`` and ``/chat/completions`` begin (mostly in ``/v1``).

    Asks the server for its models and the model's window before the first turn; ``window`` overrides what it says and is
    needed where it says nothing. ``connections`` bounds how many requests are in flight; ``extra`` goes into every body.
    """

    def __init__(
        self,
        model: str,
        sampling: Sampling,
        *,
        base_url: str = "http://localhost:8000/v1",
        api_key: str | None = None,
        api: str = "completions",
        window: int | None = None,
        patience: RetryPolicy | None = None,
        connections: int = 256,
        extra: dict[str, Any] | None = None,
        rng: random.Random | None = None,
    ):
        if api not in APIS:
            raise ValueError(f"no api {api!r}; choose from {', '.join(APIS)}")
        self.model, self.base_url, self._api, self._sampling = model, base_url.rstrip("/"), api, sampling
        self._extra, self._rng = extra or {}, rng or random.Random()
        self._patience = patience or RetryPolicy()
        self._circuit = Circuit(self._patience, self.base_url)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._settings = {"headers": headers, "timeout": self._patience.attempt_s, "follow_redirects": True}
        self._connections = connections
        self._limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        self.window = window or _window(self._model_card(), model, self.base_url)
        self._client: httpx.AsyncClient | None = None

    async def complete(self, request: Request) -> Completion:
        require_room(request, self.window)
        if self._client is None:  # made here because both belong to the event loop that first uses them
            self._client, self._places = (
                httpx.AsyncClient(limits=self._limits, **self._settings),
                asyncio.Semaphore(self._connections),
            )
        async with self._places:  # waiting for a connection is no part of a request's deadline
            return await retrying(lambda: self._once(request), self._patience, self._circuit, self._rng)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _model_card(self) -> dict[str, Any]:
        """What the server says about the model. Also finds a wrong address, key or name, before any turn."""
        try:
            with httpx.Client(**(self._settings | {"timeout": min(10.0, self._patience.attempt_s)})) as client:
                answer = client.get(f"{self.base_url}/models")
            if answer.is_error:
                raise _refused(answer, self.base_url, self.model)
            cards = {card["id"]: card for card in answer.json()["data"]}
        except httpx.HTTPError as failure:
            raise BackendUnavailable(
                f"no server answers at {self.base_url} ({_named(failure)}); start one there, or give its base_url (mostly it ends in /v1)"
            ) from failure
        except (ValueError, KeyError, TypeError) as odd:
            raise BackendUnavailable(
                f"{self.base_url}/models is not what an OpenAI-compatible server says; check base_url"
            ) from odd
        if self.model not in cards:
            raise BackendUnavailable(
                f"the server at {self.base_url} has no model {self.model!r}; it has {', '.join(sorted(cards)) or 'none'}"
            )
        return cards[self.model]

    async def _once(self, request: Request) -> Completion:
        path = "completions" if self._api == "completions" else "chat/completions"
        try:
            async with asyncio.timeout(self._patience.attempt_s):
                answer = await self._client.post(f"{self.base_url}/{path}", json=self._body(request))
        except TimeoutError as late:
            raise RetryableError(f"no reply within {self._patience.attempt_s:g} s") from late
        except httpx.HTTPError as failure:
            raise RetryableError(_named(failure)) from failure
        if answer.is_error:
            raise _refused(answer, self.base_url, self.model, self._api)
        try:
            return _completion(answer.json(), len(request.ids))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as broken:
            raise RetryableError(f"half a reply: {answer.text[:80]!r}") from broken

    def _body(self, request: Request) -> dict[str, Any]:
        s = self._sampling
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": s.temperature,
            "top_p": s.top_p,
        }
        if (seed := s.seed_for(request)) is not None:
            body["seed"] = seed
        if self._api == "completions":
            body["prompt"] = list(request.ids)
        else:
            body["messages"] = [{"role": "user", "content": request.text}]
        return body | self._extra


def _completion(body: dict[str, Any], asked_tokens: int) -> Completion:
    choice, usage = body["choices"][0], body.get("usage") or {}
    message = choice.get("message") or {}
    text = choice["text"] if "text" in choice else message["content"] or ""
    if thinking := message.get("reasoning_content") or message.get("reasoning"):
        text = f"{thinking}{END_OF_THINKING}{text}"
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    finish = "length" if choice.get("finish_reason") == "length" else "stop"
    return Completion(
        str(text), finish, usage.get("prompt_tokens") or asked_tokens, usage.get("completion_tokens") or 0, cached
    )


def _window(card: dict[str, Any], model: str, base_url: str) -> int:
    for place in (card, card.get("meta") or {}):
        for field in _WINDOW_FIELDS:
            if isinstance(size := place.get(field), int) and size > 0:
                return size
    raise ValueError(
        f"the server at {base_url} does not say how long a prompt {model!r} takes; give its window, in tokens"
    )


def _refused(answer: httpx.Response, base_url: str, model: str, api: str = "") -> Exception:
    """The error that a status means: worth another try, wrong for this request, or wrong for every request."""
    status, said = answer.status_code, _said(answer)
    if status in (408, 409, 425, 429) or status >= 500:
        return RetryableError(f"status {status}{said}", after=answer.headers.get("retry-after"))
    if status in (401, 403):
        return BackendUnavailable(
            f"the server at {base_url} refuses the API key (status {status}){said}; give the right api_key"
        )
    if status == 404:
        fix = "; servers without token prompts need the chat api" if api == "completions" else ""
        return BackendUnavailable(
            f"the server at {base_url} does not know this address or the model {model!r} (status 404){said}{fix}"
        )
    return BackendError(f"the server refuses the request (status {status}){said}")


def _said(answer: httpx.Response) -> str:
    try:
        body = answer.json()
        error = body.get("error", body)
        words = error.get("message", "") if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        words = answer.text
    return f": {words.strip()[:300]}" if words and words.strip() else ""


def _named(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
