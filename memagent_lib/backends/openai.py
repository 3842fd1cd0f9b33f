"""A backend for any OpenAI-compatible server: vLLM, SGLang, llama.cpp, Ollama, hosted models.

``api="completions"`` sends exact token ids, so special tokens in a document stay plain text and prompts are identical
to those of training. ``api="chat"`` sends the message as text, and the server applies its chat template; hosted models
often offer nothing else. The ``openai`` package sends the requests and repeats those that fail. This module adds a
deadline, the fields that a server takes, and which replies are of no use.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import openai

from memagent_lib.backends.interface import BackendError, BackendUnavailable, ContentFiltered, Sampling, require_room
from memagent_lib.backends.retries import (
    ODD_FORM,
    WITHOUT_FILTER,
    RetryableError,
    cards_in,
    failure_of,
    message_in,
    name_of,
    status_of,
    window_of,
)
from memagent_lib.errors import one_line
from memagent_lib.prompts import Request
from memagent_lib.text import whole_characters
from memagent_lib.trace import Reply

PATHS = {"completions": "/completions", "chat": "/chat/completions"}
NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "skip_special_tokens": False,
}
"""Fields that change no reply, sent because servers have other defaults. If one is refused, it is left out."""
CONNECT_S = 10.0
OPENING_S = 60.0  # for what a server says of itself
DEADLINE_S = 900.0  # for all attempts at a request; a small server may need most of it for one
GONE_AFTER_S = 900.0
"""A request at its deadline stops the run if the server has answered no other one for so long."""
SAME_REFUSALS = 10  # in a row stop the run
USELESS_REPLIES = 10  # of one request: empty, half, or of another form
USELESS_WAIT_S = 0.5
NO_LIST = (403, 404, 405, 501)  # statuses of servers without a list of models
TRUNCATED = ("length", "max_tokens", "max_output_tokens", "max_length", "model_length")
_FILTERED = re.compile(r"filter|safety|recitation|blocklist|prohibited|sensitive")
_BROKEN_OFF = re.compile(r"error|abort|cancel|fail|insufficient")
_LOG = logging.getLogger("memagent_lib")


class _Resend(Exception):
    """The server refused a field, which is left out from now on."""


class OpenAICompatible:
    """A model on a server.

    ``base_url`` usually ends in ``/v1``. Opening the backend requests the server's list of models, so that a wrong
    address, key or name is found before any turn. ``window`` overrides the server's window, and is required if the
    server reports none. ``extra`` is added to the body of every request; a server that only streams needs
    ``{"stream": True}``.
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
        extra: dict[str, Any] | None = None,
    ):
        if api not in PATHS:
            raise ValueError(f"no api {api!r}; choose from {', '.join(PATHS)}")
        self.extra = extra or {}
        taken = sorted({"model", "prompt", "messages", "n"} & self.extra.keys())
        if taken:
            raise ValueError(f"extra may not set {', '.join(taken)}: those are the backend's own")
        self.sampling = sampling
        self._api = api
        base_url = re.sub(r"/(chat/completions|completions|models)/?$", "", base_url)
        self.base_url = _public_address(base_url, api_key or "")
        host = urlsplit(base_url).hostname
        # No proxy of the environment reaches this machine's own addresses.
        self._is_here = host in ("localhost", "::1") or host.startswith("127.")
        # Some servers quote the key in their error, which ends up in logs and results.
        self._secrets = [secret for secret in (api_key, urlsplit(base_url).password) if secret]
        # The client refuses an empty key, takes None from OPENAI_API_KEY, and sends OPENAI_ORG_ID to any server.
        timeout = openai.Timeout(DEADLINE_S, connect=CONNECT_S, pool=None)
        self._settings: dict[str, Any] = {"base_url": base_url, "api_key": api_key or "none", "timeout": timeout}
        unsent = ["OpenAI-Organization", "OpenAI-Project", *([] if api_key else ["Authorization"])]
        self._options: Any = {"headers": {name: openai.Omit() for name in unsent}}
        self._limit = "max_tokens"
        self._refused: set[str] = set()
        self.left_out: dict[str, Any] = {}
        """The sampling settings that affect replies but were refused by the server, with their intended values."""
        self._refusals = (0, "")  # how many in a row, and what they say
        self._last_failure = "no answer"
        self._told = False  # once is enough for a server that is busy now and then
        self._answered = time.monotonic()
        self._longest_count = 0  # of a prompt's tokens
        self._client: openai.AsyncOpenAI | None = None
        self._name, self.window = self._find(model, window)
        self.served = {"model": self._name, "api": api}
        """The server's own name of its model, and the API: what replies depend on beside the requested name."""

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def complete(self, request: Request) -> Reply:
        require_room(request, self.window)
        began = time.monotonic()
        try:
            async with asyncio.timeout(DEADLINE_S):
                reply = await self._reply(request)
        except (TimeoutError, openai.OpenAIError) as spent:
            raise self._late(time.monotonic() - began) from spent
        except BackendError as refusal:
            self._answered = time.monotonic()
            self._count(refusal)
            raise
        self._answered = time.monotonic()
        self._refusals = (0, "")
        self._last_failure = "no answer"
        return reply

    def _late(self, waited_s: float) -> Exception:
        says = f"no reply in {waited_s:.0f} s; the server's last failure: {self._last_failure}"
        if time.monotonic() - self._answered < GONE_AFTER_S:
            return BackendError(says)
        return BackendUnavailable(
            f"the server at {self.base_url} is gone: {says}; start it again and run the same command"
        )

    def _count(self, refusal: BackendError) -> None:
        """Raise :class:`BackendUnavailable` after too many equal refusals, except of a filter."""
        if isinstance(refusal, ContentFiltered):
            return
        count, before = self._refusals
        self._refusals = (count + 1 if before == str(refusal) else 1, str(refusal))
        if self._refusals[0] >= SAME_REFUSALS:
            raise BackendUnavailable(f"{SAME_REFUSALS} requests in a row met the same refusal: {refusal}") from refusal

    async def _reply(self, request: Request) -> Reply:
        """Send a request until a reply is of use. The client repeats failures; this repeats useless replies."""
        useless = 0
        while True:
            sent = self._body(request)
            try:
                content = await self._open().post(PATHS[self._api], body=sent, cast_to=str, options=self._options)
                return self._read(content, request, sent)
            except _Resend:
                continue
            except RetryableError as failure:
                self._last_failure = str(failure)
                useless += 1
                if useless == USELESS_REPLIES:
                    raise BackendError(f"no reply after {useless} attempts; the last: {failure}") from failure
            await asyncio.sleep(random.uniform(0, USELESS_WAIT_S))

    def _open(self) -> openai.AsyncOpenAI:
        """Return the client, which belongs to the event loop that first uses it."""
        if self._client is None:
            hooks = {"response": [self._judge]}
            # Following a redirect could turn the POST into a GET without a body.
            http = openai.DefaultAioHttpClient(event_hooks=hooks, follow_redirects=False, trust_env=not self._is_here)
            # The deadline ends the retries.
            self._client = openai.AsyncOpenAI(**self._settings, http_client=http, max_retries=10_000)
        return self._client

    async def _judge(self, response: Any) -> None:
        """Raise what no retry changes, past the client's retries. The client calls this before it repeats a request."""
        if response.status_code >= 300:
            content = (await response.aread()).decode(errors="replace")
            self._refuse(response.status_code, content, response.headers, json.loads(response.request.content))

    def _refuse(self, status: int, content: str, headers: Mapping[str, str], sent: Mapping[str, Any]) -> None:
        if status in (400, 422, 500, 501) and self._learn(message_in(content), sent):
            raise _Resend
        failure = self._failure(status, content, headers)
        if not isinstance(failure, RetryableError):
            raise failure
        if not self._told:
            _LOG.warning("the server at %s fails and is asked again: %s", self.base_url, failure)
        self._told = True
        self._last_failure = str(failure)

    def _failure(self, status: int, content: str, headers: Mapping[str, str]) -> Exception:
        for secret in self._secrets:
            content = content.replace(secret, "***")
        return failure_of(status, content, headers, self.base_url)

    def _body(self, request: Request) -> dict[str, Any]:
        fields = NEUTRAL | {
            "temperature": self.sampling.for_request(request).temperature,
            "top_p": self.sampling.top_p,
            "seed": self.sampling.seed_for(request),
        }
        if not (request.thoughts.special and self._api == "completions"):
            del fields["skip_special_tokens"]
        body = {name: value for name, value in fields.items() if value is not None and name not in self._refused}
        body |= {"model": self._name, self._limit: request.max_tokens}
        if self._api == "chat":
            body["messages"] = [{"role": "user", "content": request.text}]
        else:
            body["prompt"] = request.ids
        return body | self.extra

    def _learn(self, says: str, sent: Mapping[str, Any]) -> bool:
        """Leave out the fields that a refusal names, and return whether to send the request again."""
        if "max_tokens" in sent and "max_completion_tokens" in says:
            self._limit = "max_completion_tokens"
            return True
        ours = sent.keys() & {*NEUTRAL, "seed", "temperature"} - self.extra.keys()
        named = {name for name in ours if _names(says, name)}
        # Servers that take only one of temperature and top_p name both.
        for name in named - {"temperature"} or named:
            if sent[name] != NEUTRAL.get(name) and name not in self._refused:
                value = self.left_out[name] = self.sampling.seed if name == "seed" else sent[name]
                _LOG.warning("the server at %s takes no %s; its own is in effect, not %s", self.base_url, name, value)
            self._refused.add(name)
        return bool(named)

    def _read(self, content: str, request: Request, sent: Mapping[str, Any]) -> Reply:
        """Return the reply in a response with status 200. Raises :class:`RetryableError` if it is of no use."""
        try:
            streamed = content.lstrip().startswith(("data:", "event:", ":"))
            body = _joined(content) if streamed else json.loads(content)
            if body.get("error"):
                self._refuse(status_of(body["error"]), json.dumps(body), {}, sent)
                raise RetryableError(self._last_failure)
            choice = body["choices"][0]
            message = choice.get("message") or {}
            text, thinking = _text(choice.get("text", message.get("content")))
            usage = body.get("usage")
            counted = _tokens(usage, "prompt_tokens")
            cached = _tokens(usage, "prompt_tokens_details", "cached_tokens")
        except ODD_FORM as odd:
            raise RetryableError(f"half a reply, or a reply of another form: {content[:80]!r}") from odd
        thinking = message.get("reasoning_content") or message.get("reasoning") or thinking
        reason = str(choice.get("finish_reason")).lower()
        cut = reason in TRUNCATED
        if _FILTERED.search(reason):
            raise ContentFiltered(f"the content filter took the reply (finish_reason {reason!r}); {WITHOUT_FILTER}")
        if choice.get("error") or _BROKEN_OFF.search(reason):
            raise RetryableError(f"the reply broke off (finish_reason {reason!r})")
        if message.get("refusal") and not text:
            raise BackendError(f"the model refuses to reply: {str(message['refusal'])[:300]}")
        if thinking and not text and cut:  # the driver reports every unfinished thought
            text, thinking = f"<think>{thinking}", ""
        if self._api == "chat" and not (thinking or cut):
            text = _with_thought_closed(text, request)
        parts = request.thoughts.split(text, separated=bool(thinking))
        if parts.finished and not parts.text:
            if cut:
                raise BackendError("no text in the reply; if the model thinks first, raise thinking_tokens")
            raise RetryableError(f"no text in the reply (finish_reason {reason!r})")
        self._require_whole_prompt(len(request.ids), counted, cached)
        return Reply(
            whole_characters(text),
            "length" if cut else "stop",
            counted or len(request.ids),
            _tokens(usage, "completion_tokens"),
            cached,
            thinking=whole_characters(thinking or ""),
            sampling_left_out=", ".join(f"{name}={value}" for name, value in self.left_out.items() if name not in sent),
        )

    def _require_whole_prompt(self, sent: int, counted: int, cached: int) -> None:
        """Raise :class:`BackendError` if the server's count of prompt tokens reveals that it truncated the prompt.

        A chat server adds its template and may use another tokenizer, so the check is looser there. A count of less
        than half of an earlier one is taken for that of the tokens which were not cached, because servers keep at least
        half of their window of a prompt that they cut.
        """
        least = sent - 2 if self._api == "completions" else min(0.6 * sent, sent - 32)
        if counted + cached < least and counted > self._longest_count / 2:
            raise BackendError(
                f"the server cut the prompt: {sent:,} tokens were sent and it read {counted:,}; raise the server's "
                "window (vLLM: --max-model-len; llama.cpp: --ctx-size; Ollama: num_ctx) or lower chunk_tokens"
            )
        self._longest_count = max(self._longest_count, counted)

    def _find(self, model: str, window: int | None) -> tuple[str, int]:
        """Return the server's name of a model, and its window."""
        server = f"the server at {self.base_url}"
        try:
            cards = cards_in(self._get("/models"))
        except openai.APIStatusError as refusal:
            if window and refusal.status_code in NO_LIST:
                return model, window
            if refusal.status_code == 404 and "data" in self._page("/v1/models"):
                raise BackendUnavailable(f"{self.base_url} lacks its end; give {self.base_url}/v1") from None
            failure = self._failure(refusal.status_code, refusal.response.text, refusal.response.headers)
            if isinstance(failure, RetryableError):
                failure = BackendUnavailable(f"{server} is not ready ({failure}); try again")
            if refusal.status_code in NO_LIST:
                failure = BackendUnavailable(f"{failure}; if it has no list of models, set window, in tokens")
            raise failure from None
        except openai.APIConnectionError as failure:
            says = f"no server answers at {self.base_url} ({one_line(failure.__cause__ or failure)})"
            proxies = ", ".join(sorted(name for name in getproxies() if name != "no"))
            if proxies:
                says += f"; the environment sets a proxy for {proxies}, which loopback addresses do not use"
            raise BackendUnavailable(f"{says}; start one there, or give its base_url") from failure
        except ODD_FORM as odd:
            says = f"{self.base_url}/models is not an OpenAI-compatible server's list of models; check base_url"
            raise BackendUnavailable(says) from odd
        name = name_of(cards, model)
        if name is None:
            raise BackendUnavailable(f"{server} has no model {model!r}; it has {', '.join(sorted(cards)) or 'none'}")
        window = window or window_of(cards, name, self._page)
        if not window:
            raise ValueError(f"{server} does not report the window of {model!r}; set window, in tokens")
        return name, window

    def _get(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON at a path of the API or at a whole address. With ``body``, send that."""
        http = openai.DefaultHttpxClient(trust_env=not self._is_here)
        with openai.OpenAI(**self._settings | {"timeout": OPENING_S}, http_client=http, max_retries=0) as client:
            if body:
                return json.loads(client.post(path, body=body, cast_to=str, options=self._options))
            return json.loads(client.get(path, cast_to=str, options=self._options))

    def _page(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return the table at a path beside the API, or an empty one if the server has none."""
        try:
            page = self._get(self.base_url.removesuffix("/v1") + path, body)
        except (openai.OpenAIError, ValueError):
            return {}
        return page if isinstance(page, Mapping) else {}


def _public_address(base_url: str, api_key: str) -> str:
    """Return the address without its user name and password, for error messages."""
    # The client would print a wrong address with its password, and a wrong key.
    try:
        parts = urlsplit(base_url if base_url.isprintable() else "")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.query
    except ValueError:  # a port that is no number
        usable = False
    if not usable or " " in base_url:
        raise ValueError("base_url must be an address such as http://localhost:8000/v1, without spaces and ?")
    if not (api_key.isascii() and api_key.isprintable()) or " " in api_key:
        raise ValueError("the API key has a line break, a space or a character that no key has; give the key alone")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")


def _names(says: str, field: str) -> bool:
    """Return whether a text names a field of a request, in any spelling: ``top_k``, ``topK``, ``Top-K``."""
    spelled = field.replace("_", "[ _-]?")
    return re.search(rf"(?<![^\W_]){spelled}(?!\w)", says, re.IGNORECASE) is not None


def _tokens(usage: Any, *names: str) -> int:
    """Return a number of tokens; 0 if the server does not state it."""
    for name in names:
        usage = usage.get(name) if isinstance(usage, dict) else None
    return max(0, usage) if isinstance(usage, int) else 0


def _with_thought_closed(text: str, request: Request) -> str:
    """Close the thought that the chat template here opened, if a complete reply of a chat server has no mark of one.

    Such a server renders a chat template with thinking switched off, or removes thoughts from replies.
    """
    thoughts = request.thoughts
    if not thoughts.opened or thoughts.split(text).finished:
        return text
    apart = thoughts.split(text, separated=True)
    return thoughts.family.closing + text if apart.finished and not apart.thinking else text


def _text(content: Any) -> tuple[str, str]:
    """Return the text and the thoughts of a content, which may be a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    listed = [content] if isinstance(content, dict) else content
    parts = [part if isinstance(part, dict) else {"text": part} for part in listed]
    thoughts = [_text(part["thinking"])[0] for part in parts if part.get("type") == "thinking"]  # Mistral's
    return "".join(part.get("text") or "" for part in parts), "".join(thoughts)


def _joined(stream: str) -> dict[str, Any]:
    """Return a stream's chunks as one response. Some servers stream although nobody requested it."""
    usage = reason = error = None
    texts = dict.fromkeys(("content", "reasoning_content", "reasoning"), "")
    # Not splitlines(), which also breaks a text at U+2028.
    lines = [line[5:].strip() for line in re.split("\r\n|\r|\n", stream) if line.startswith("data:")]
    for chunk in (json.loads(line) for line in lines if line != "[DONE]"):
        if chunk.get("error"):
            return chunk
        usage = chunk.get("usage") or usage
        for part in (part for part in chunk.get("choices") or () if not part.get("index")):
            reason = part.get("finish_reason") or reason
            error = part.get("error") or error
            added = part.get("delta") or part.get("message") or {"content": part.get("text")}
            texts = {name: text + _text(added.get(name))[0] for name, text in texts.items()}
    if reason is None and "[DONE]" not in lines:
        raise ValueError("the stream broke off")
    return {"usage": usage, "choices": [{"message": texts, "finish_reason": reason, "error": error}]}
