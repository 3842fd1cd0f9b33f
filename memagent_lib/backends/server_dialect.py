"""Learn from a server's refusals which of OpenAI's fields for sampling and reply length it accepts.

If a request omits a sampling setting, vLLM, SGLang and llama.cpp take it from the model's ``generation_config.json`` or
use their own default. Replies match those of an in-process engine only if every setting is sent. This module opens no
connection.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import urlsplit

from memagent_lib.backends.interface import Sampling
from memagent_lib.backends.server_replies import error_table
from memagent_lib.prompts import Request

NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling settings that change nothing, by vLLM's names. If a server refuses one, it can be left out."""
LLAMA_CPP = {"repeat_penalty": 1.0, "typical_p": 1.0}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
HOSTED = ("openai.com", "openai.azure.com")  # servers that never take a field beyond OpenAI's own
RAW = "skip_special_tokens"
"""A field of vLLM and SGLang. Without it, they remove the marks of a thought that are special tokens."""
LIMITS = ("max_tokens", "max_completion_tokens")
_REFUSED = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not permitted|extra_forbidden"
    r"|(invalid|not allowed).{0,20}(parameter|argument|field|property)|only the default",
    re.IGNORECASE,
)
_ONLY_ONE = re.compile(r"cannot both|only one of|mutually exclusive", re.IGNORECASE)
_STREAMS_ONLY = re.compile(
    r"\bstream\W+(must|has to|should)\b.{0,20}\btrue|only support.{0,20}stream|non-?stream(ing)?\b"
    r"|enable.{0,20}\bstream",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(r"context.?(length|size|window)", re.IGNORECASE)  # names max_tokens too, and refuses no field
_LOG = logging.getLogger("memagent_lib")


class Dialect:
    """Builds a request's fields for sampling and reply length, leaving out those that the server has refused.

    ``left_out`` maps each refused field that affects replies to the value it should have had.
    """

    def __init__(self, sampling: Sampling, base_url: str, owner: str = ""):
        self._sampling = sampling
        self._server = base_url
        self._limit = LIMITS[0]
        self._refused: set[str] = set()
        self.left_out: dict[str, Any] = {}
        host = urlsplit(base_url).hostname or ""
        hosted = any(host == name or host.endswith(f".{name}") for name in HOSTED)
        self._sampled: dict[str, Any] = {} if hosted else dict(NEUTRAL)
        # llama.cpp has its own names for some settings, and its own defaults for them.
        if owner == "llamacpp":
            self._sampled |= LLAMA_CPP
        self._sampled |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        self._stream: dict[str, Any] = {}

    def fields(self, request: Request, completions: bool = False) -> dict[str, Any]:
        """Return a request's fields, for the completions API or for the chat API."""
        fields = {self._limit: request.max_tokens} | self._sampled
        if "temperature" in fields:
            fields["temperature"] = self._sampling.for_request(request).temperature
        seed = self._sampling.seed_for(request)
        if seed is not None and "seed" not in self._refused:
            fields["seed"] = seed
        if request.thoughts.special and completions and RAW not in self._refused:
            fields[RAW] = False
        return fields | self._stream

    def learn(self, sent: Collection[str], refusal: bytes) -> bool:
        """Change the fields according to ``refusal``, and return whether to send the request again.

        ``sent`` are the request's fields; ``refusal`` is the body of a response with status 400 or 422. A neutral field
        is dropped if the refusal names it. Temperature, ``top_p`` and seed are dropped only if the refusal also reports
        them as unsupported; a refused ``max_tokens`` is then sent as ``max_completion_tokens``. Of temperature and
        ``top_p``, temperature remains if only one of them is allowed. If the server only streams, a stream is
        requested.
        """
        words = _words(refusal)
        if not self._stream and _STREAMS_ONLY.search(words):
            self._stream = dict(STREAM)
            return True
        named = [name for name in sent if re.search(rf"(?<!\w){name}(?!\w)", words)]
        neutral = [name for name in named if self._is_neutral(name)]
        if neutral:
            self._leave_out(neutral)
            return True
        only_one = _ONLY_ONE.search(words)
        if _TOO_LONG.search(words) or not (only_one or _REFUSED.search(words)):
            return False
        if LIMITS[0] in named:
            self._limit = LIMITS[1]
            return True
        # Some hosted reasoning models allow only their own values of these.
        drawn = [name for name in named if name in ("temperature", "top_p", "seed")]
        if only_one and {"temperature", "top_p"} <= set(drawn):  # Claude 4.5
            drawn = ["top_p"]
        self._leave_out(drawn)
        return bool(drawn)

    def _is_neutral(self, name: str) -> bool:
        if name == "top_p":
            return self._sampling.top_p == 1
        return name in NEUTRAL or name in LLAMA_CPP or name in (RAW, "stream_options")

    def _leave_out(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._refused:
                continue  # another request in flight learnt it already
            self._refused.add(name)
            self._stream.pop(name, None)
            value = self._sampled.pop(name, self._sampling.seed)
            if not self._is_neutral(name):
                self.left_out[name] = value
                _LOG.warning("the server at %s takes no %s; its own is in effect, not %s", self._server, name, value)


def _words(refusal: bytes) -> str:
    """Return a refusal's message, code and parameter, and the path and message of each of FastAPI's errors.

    The rest of the body is left out, because some servers repeat the request in it, with all of its fields.
    """
    error = error_table(refusal)
    if error is None:
        return refusal[:2000].decode(errors="replace")
    words = [error.get(key) for key in ("message", "code", "param", "type")]
    details = error.get("detail")
    for detail in details if isinstance(details, list) else [details]:
        if isinstance(detail, dict):
            words += [detail.get("type"), detail.get("msg"), " ".join(map(str, detail.get("loc") or ()))]
        else:
            words.append(detail)
    return " ".join(str(word)[:2000] for word in words if word)
