"""A backend for any OpenAI-compatible server: vLLM, SGLang, llama.cpp, hosted models.

``api="completions"`` sends exact token ids, so special tokens in a document stay plain text and prompts are identical
to those of training. ``api="chat"`` sends the message as text, and the server applies its chat template; hosted models
often offer nothing else. The backend uses aiohttp, because a turn of small chunks then takes a tenth of the processor
time that it takes with the ``openai`` package or httpx.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from memagent_lib.backends.interface import (
    BackendError,
    BackendUnavailable,
    ContentFiltered,
    Sampling,
    require_room,
)
from memagent_lib.backends.retries import Circuit, RetryableError, RetryPolicy, retrying
from memagent_lib.backends.server_dialect import Dialect
from memagent_lib.backends.server_models import Card, cards_in, name_in, window_of
from memagent_lib.backends.server_replies import (
    ATTEMPTS_WITHOUT_TEXT,
    WITHOUT_FILTER,
    error_in,
    is_flagged,
    is_out_of_credit,
    is_spent_for_today,
    message_in,
    reply_in,
    require_whole_prompt,
    retry_after_in,
    takes_only_text,
)
from memagent_lib.backends.server_streams import is_stream, joined
from memagent_lib.prompts import Request
from memagent_lib.trace import Reply

if TYPE_CHECKING:
    import aiohttp

PATHS = {"completions": "completions", "chat": "chat/completions"}
CONNECTIONS = 256  # requests in flight
FIRST_ANSWER_S = 10.0
NEEDS_CHAT = "servers without token prompts need the chat API (--api chat)"
_RETRYABLE = (408, 409, 425, 429)
_NEVER = (501, 505)  # not implemented, and will not be


class OpenAICompatible:
    """A model on a server.

    ``base_url`` is the address without ``/models`` or ``/chat/completions``; it usually ends in ``/v1``. Opening the
    backend requests the server's list of models, so that a wrong address, key or name is found before any turn, and
    reads the model's window from the list or from the server's own endpoints. ``window`` overrides that value, and is
    required if the server reports none. ``extra`` is added to the body of every request.
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
        retry_policy: RetryPolicy | None = None,
        extra: dict[str, Any] | None = None,
    ):
        if api not in PATHS:
            raise ValueError(f"no api {api!r}; choose from {', '.join(PATHS)}")
        taken = sorted({"model", "prompt", "messages", "stream", "n"} & (extra or {}).keys())
        if taken:
            raise ValueError(f"extra may not set {', '.join(taken)}: those are the backend's own")
        self.model = model
        self.sampling = sampling
        self._api = api
        self.base_url, self._headers = _address(base_url, api_key)
        # Some servers quote the key in their error, which ends up in logs and results.
        self._secrets = [secret for secret in (api_key, urlsplit(base_url).password) if secret]
        self.extra = extra or {}
        self._policy = retry_policy or RetryPolicy()
        self._circuit = Circuit(self._policy, self.base_url)
        cards = self._listed_models()
        self._name = self._listed_name(cards)
        self._owner = str(cards[self._name].get("owned_by", ""))
        self._dialect = Dialect(sampling, self.base_url, self._owner)
        self.window = window or window_of(cards, self._name, self._page)
        if not self.window:
            raise ValueError(
                f"the server at {self.base_url} does not report the window of {model!r}; give it in tokens (--window N)"
            )
        self._client: aiohttp.ClientSession | None = None

    async def complete(self, request: Request) -> Reply:
        require_room(request, self.window)
        if self._client is None:
            self._open()
        async with self._slots:  # waiting for a connection is no part of a request's deadline
            return await retrying(lambda: self._once(request), self._policy, self._circuit)

    @property
    def served(self) -> dict[str, str]:
        """The server's own name of its model, and the API: what replies depend on beside the requested name."""
        return {"model": self._name, "api": self._api}

    @property
    def left_out(self) -> dict[str, Any]:
        """The sampling settings that affect replies but were refused by the server, with their intended values."""
        return dict(self._dialect.left_out)

    def trouble(self) -> str | None:
        return self._circuit.trouble

    def expect_strangers(self) -> None:
        self._circuit.strangers = True

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _open(self) -> None:
        """Create the HTTP client and the limit on requests, which belong to the event loop that first uses them."""
        import aiohttp

        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={**self._headers, "Content-Type": "application/json"},
            # Not trust_env, which would also take a user and password for this server from ~/.netrc.
            proxy=_proxy_for(self.base_url),
        )
        self._slots = asyncio.Semaphore(CONNECTIONS)

    def _listed_models(self) -> dict[str, Card]:
        """Return the server's models by name. Raises :class:`BackendUnavailable` without a server or a list."""
        try:
            return cards_in(self._get(f"{self.base_url}/models"))
        except urllib.error.HTTPError as refusal:
            with refusal:
                raise self._cannot_list(refusal.code, refusal.headers, refusal.read()) from None
        except OSError as failure:
            reason = getattr(failure, "reason", failure)
            raise BackendUnavailable(
                f"no server answers at {self.base_url} ({_describe(reason)}); start one there, or give its base_url "
                "(it usually ends in /v1)"
            ) from failure
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, HTTPException) as odd:
            raise BackendUnavailable(
                f"{self.base_url}/models is not an OpenAI-compatible server's list of models; check base_url"
            ) from odd

    def _cannot_list(self, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
        """Return the error that a status means for the list of models, before there is any request."""
        failure = self._refused(status, headers, body)
        if status == 404:
            better = self._better_address()
            if better:
                return BackendUnavailable(f"{self.base_url} is not the address of the server's API; give {better}")
        if isinstance(failure, RetryableError):
            return BackendUnavailable(f"the server at {self.base_url} is not ready ({failure}); try again in a while")
        return failure

    def _better_address(self) -> str | None:
        """Return the address of the API, if the given one lacks its ``/v1`` or names one of its pages."""
        bare = self.base_url
        for page in ("/chat/completions", "/completions", "/models"):
            bare = bare.removesuffix(page)
        for address in (bare, f"{bare}/v1"):
            if address == self.base_url:
                continue
            try:
                cards_in(self._get(f"{address}/models"))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, HTTPException):
                continue
            return address
        return None

    def _listed_name(self, cards: Mapping[str, Card]) -> str:
        name = name_in(cards, self.model)
        if name is None:
            raise BackendUnavailable(
                f"the server at {self.base_url} has no model {self.model!r}; "
                f"it has {', '.join(sorted(cards)) or 'none'}"
            )
        return name

    def _page(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON at a path beside the API, or ``None`` if the server has none. With ``body``, send that."""
        try:
            return self._get(self.base_url.removesuffix("/v1") + path, body)
        except (OSError, ValueError, RecursionError, HTTPException):
            return None

    def _get(self, address: str, body: Mapping[str, Any] | None = None) -> Any:
        timeout_s = min(FIRST_ANSWER_S, self._policy.attempt_s)
        page = urllib.request.Request(address, headers=self._headers)
        if body is not None:
            page.data = json.dumps(body).encode()
            page.add_header("Content-Type", "application/json")
            timeout_s = self._policy.attempt_s  # a model may be loaded first
        with urllib.request.urlopen(page, timeout=timeout_s) as answer:
            data = answer.read()
            if answer.headers.get("Content-Encoding") == "gzip":  # although it was not requested
                data = gzip.decompress(data)
        return json.loads(data)

    async def _once(self, request: Request) -> Reply:
        sent = self._body(request)
        status, headers, content = await self._sent(sent)
        while status in (400, 422) and self._dialect.learn(sent.keys() - self.extra.keys(), content):
            sent = self._body(request)
            status, headers, content = await self._sent(sent)
        if status >= 300:
            raise self._refused(status, headers, content)
        try:
            body = joined(content) if is_stream(content) else json.loads(content)
        except (ValueError, RecursionError) as broken:
            if content.lstrip().startswith(b"<"):  # a proxy's page, which is the same for every request
                why = f"a web page instead of a reply: {_begins(content)}"
                raise RetryableError(why, attempts=ATTEMPTS_WITHOUT_TEXT) from broken
            raise RetryableError(f"half a reply: {_begins(content)}") from broken
        failure = error_in(body)
        if failure is not None:
            raise self._refused(failure[0], headers, failure[1])
        try:
            reply = reply_in(body, request)
        except (KeyError, TypeError, IndexError, AttributeError) as odd:
            why = f"a reply of another form: {_begins(content)}"
            raise RetryableError(why, attempts=ATTEMPTS_WITHOUT_TEXT) from odd
        require_whole_prompt(body, len(request.ids), self._api == "completions", self._owner)
        missing = [f"{name}={value}" for name, value in self._dialect.left_out.items() if name not in sent]
        return replace(reply, sampling_left_out=", ".join(missing)) if missing else reply

    async def _sent(self, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request's body once, and return the response's status, headers and content."""
        import aiohttp

        try:
            async with asyncio.timeout(self._policy.attempt_s):
                data = json.dumps(body).encode()
                address = f"{self.base_url}/{PATHS[self._api]}"
                # Following a redirect could turn the POST into a GET without a body.
                async with self._client.post(address, data=data, allow_redirects=False) as answer:
                    return answer.status, answer.headers, await answer.read()
        except TimeoutError as late:
            raise RetryableError(f"no reply within {self._policy.attempt_s:g} s") from late
        except (aiohttp.ClientError, OSError) as failure:
            raise RetryableError(_describe(failure)) from failure

    def _body(self, request: Request) -> dict[str, Any]:
        body = {"model": self._name} | self._dialect.fields(request, self._api == "completions")
        if self._api == "completions":
            body["prompt"] = request.ids
        else:
            body["messages"] = [{"role": "user", "content": request.text}]
        return body | self.extra

    def _refused(self, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
        """Return the error for a status: worth a retry, final for this request, or final for every request."""
        message = message_in(body)
        why = f": {message[:300]}" if message else ""
        for secret in self._secrets:
            why = why.replace(secret, "***")
        if status < 400:
            where = headers.get("Location", "an address that it does not name")
            return BackendUnavailable(
                f"the server at {self.base_url} redirects requests to {where} (status {status}); give that base_url"
            )
        if status == 429 and is_spent_for_today(body):
            return BackendUnavailable(
                f"the server at {self.base_url} has no quota left for today (status 429){why}; try again tomorrow, or "
                "give a key or model with a larger quota"
            )
        if status == 429 and is_out_of_credit(body):
            return BackendUnavailable(f"the server at {self.base_url} has no credit left (status 429){why}")
        if self._api == "completions" and takes_only_text(message):  # the LiteLLM proxy's has status 500
            return BackendUnavailable(
                f"the server at {self.base_url} takes no token ids as a prompt (status {status}){why}; {NEEDS_CHAT}"
            )
        if status in _RETRYABLE or (status >= 500 and status not in _NEVER):
            return RetryableError(f"status {status}{why}", after=headers.get("Retry-After") or retry_after_in(body))
        if status == 403 and is_flagged(body):
            return ContentFiltered(
                f"the server's content filter refuses the prompt (status 403){why}; {WITHOUT_FILTER}"
            )
        if status in (401, 403):
            return BackendUnavailable(
                f"the server at {self.base_url} refuses the API key (status {status}){why}; give the right api_key"
            )
        if status == 402:
            return BackendUnavailable(f"the server at {self.base_url} wants to be paid first (status 402){why}")
        if status == 404:
            fix = f"; {NEEDS_CHAT}" if self._api == "completions" else ""
            return BackendUnavailable(
                f"the server at {self.base_url} does not know this address or the model {self.model!r} "
                f"(status 404){why}{fix}"
            )
        return BackendError(f"the server refuses the request (status {status}){why}")


def _address(base_url: str, api_key: str | None) -> tuple[str, dict[str, str]]:
    """Return the address without its user name and password, and the headers that authenticate.

    Error messages repeat neither the address nor the key, because the address may contain a password.
    """
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable or parts.query or parts.fragment or not base_url.isprintable() or " " in base_url:
        raise ValueError("base_url must be an address such as http://localhost:8000/v1, without spaces, ? and #")
    # Without the password, because error messages name this address.
    public = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
    if api_key:
        if not (api_key.isascii() and api_key.isprintable()) or " " in api_key:
            raise ValueError("the API key has a line break, a space or a character that no key has; give the key alone")
        return public, {"Authorization": f"Bearer {api_key}"}
    if parts.username or parts.password:
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        return public, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return public, {}


def _proxy_for(address: str) -> str | None:
    """Return the proxy that the environment names for an address, as urllib does for the list of models."""
    parts = urlsplit(address)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.netloc):
        return None
    # To urllib, the proxy of an https address speaks plain HTTP, whatever scheme it is given with.
    if parts.scheme == "https" or "://" not in proxy:
        return f"http://{proxy.rpartition('://')[2]}"
    return proxy


def _begins(body: bytes) -> str:
    return repr(body[:80].decode(errors="replace"))


def _describe(failure: object) -> str:
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
