"""What every backend is: a request goes in, a raw reply or a :class:`BackendError` comes out. Knows no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from memagent_lib.errors import UserError
from memagent_lib.prompts import Request
from memagent_lib.trace import Reply


class BackendError(UserError, RuntimeError):
    """A request that got no reply. It becomes an error result, never an empty answer."""


class BackendUnavailable(UserError, RuntimeError):
    """No request can succeed: the server is gone, refuses the key or lacks the model.

    Deliberately no :class:`BackendError`: it stops a whole run, which would otherwise fail ten thousand times in a row.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How replies are drawn: greedy at ``temperature=0``; the paper evaluates at 0.7, ``top_p=0.95``, trains at 1."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def seed_for(self, request: Request) -> int | None:
        """Return the request's own seed: the same prompt draws the same reply, whatever else is running."""
        return None if self.seed is None else hash((self.seed, request.ids)) & 0x7FFFFFFF


def require_room(request: Request, window: int) -> None:
    """Raise :class:`BackendError` where prompt and longest reply together exceed the model's window."""
    if len(request.ids) + request.max_tokens > window:
        raise BackendError(
            f"the prompt is {len(request.ids):,} tokens with a reply of up to {request.max_tokens:,}, "
            f"and the model's window is {window:,}; lower chunk_tokens or memory_tokens"
        )


class Backend(Protocol):
    """Where replies come from."""

    window: int
    """The longest prompt + reply that the model takes, in tokens."""

    async def complete(self, request: Request) -> Reply: ...

    async def close(self) -> None: ...
