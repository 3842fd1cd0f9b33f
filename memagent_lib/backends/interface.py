"""The interface of every backend, and the one without a model.

A request goes in, and a raw reply or a :class:`BackendError` comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from memagent_lib.errors import UserError
from memagent_lib.prompts import Request
from memagent_lib.settings import require_at_least
from memagent_lib.trace import Reply


class BackendError(UserError, RuntimeError):
    """A request got no reply. The example then ends in an error, never in an empty answer."""


class ContentFiltered(BackendError):
    """A server's filter refused a prompt or its reply, which says nothing about other prompts."""


class BackendUnavailable(UserError, RuntimeError):
    """No request can succeed: the server is gone, refuses the key or lacks the model.

    This is deliberately not a :class:`BackendError`: it stops the run at once, instead of failing every remaining
    request.
    """


RETRY_TEMPERATURE = 0.7
"""The temperature of a second attempt at a prompt whose first reply was greedy; the paper evaluates at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How replies are sampled: greedily at ``temperature=0``.

    The paper evaluates at 0.7 with ``top_p=0.95`` and trains at 1.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        require_at_least(self, 0, "temperature")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def seed_for(self, request: Request) -> int | None:
        """Return a seed computed from ``self.seed`` and the prompt, so that other requests do not affect the reply.

        Without ``self.seed``, only a second attempt has a seed; the result is ``None`` for any other request.
        """
        # Python salts the hashes of strings; those of numbers are the same in every process.
        if request.attempt:
            return hash((self.seed or 0, request.ids, request.attempt)) & 0x7FFFFFFF
        if self.seed is None:
            return None
        return hash((self.seed, request.ids)) & 0x7FFFFFFF

    def for_request(self, request: Request) -> Sampling:
        """Return the sampling of a request: this one, or above temperature 0 for a second attempt.

        A second attempt has another seed, even without a seed here, so that it is repeatable.
        """
        if not request.attempt or self.temperature:
            return self
        return replace(self, temperature=RETRY_TEMPERATURE)


def require_room(request: Request, window: int) -> None:
    """Raise :class:`BackendError` if the prompt plus the longest allowed reply exceeds the model's window."""
    # Engines would truncate such a prompt or stop the reply early, some of them silently.
    if len(request.ids) + request.max_tokens > window:
        need = f"the prompt is {len(request.ids):,} tokens with a reply of up to {request.max_tokens:,}"
        raise BackendError(f"{need}, and the model's window is {window:,}; lower chunk_tokens or memory_tokens")


class Backend(Protocol):
    """A source of replies: a model in this process, a server, or a function."""

    window: int
    """The largest total of prompt and reply tokens that the model accepts."""

    async def complete(self, request: Request) -> Reply: ...

    async def close(self) -> None: ...


class Scripted:
    """A backend that replies immediately with the result of a function, for testing readers or trying them out.

    The function receives the prompt's text, and returns the reply's text or a whole :class:`Reply`, or raises an error.
    """

    def __init__(self, answer: Callable[[str], str | Reply], window: int = 1 << 30):
        self._answer = answer
        self.window = window
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Reply:
        self.requests.append(request)
        reply = self._answer(request.text)
        return reply if isinstance(reply, Reply) else Reply(reply, prompt_tokens=len(request.ids))

    async def close(self) -> None:
        return None
