"""When to ask a server again, how long to wait, and when to give up on it altogether. Knows no protocol."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from email.utils import parsedate_to_datetime
from typing import TypeVar

from memagent_lib.backends.interface import BackendError, BackendUnavailable

T = TypeVar("T")


class RetryableError(Exception):
    """A failure that may pass: worth another try. ``after`` is the server's Retry-After header, seconds or a date."""

    def __init__(self, reason: str, after: str | None = None):
        super().__init__(reason)
        self.after = after


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long a request is worth waiting for.

    Waits double from ``first_wait_s`` to ``longest_wait_s``, each drawn uniformly below its bound ("full jitter"), unless the
    server names a time. ``deadline_s`` covers all attempts of one request. The server counts as gone when nothing has
    succeeded for ``gone_after_s`` and at least ``gone_after_failures`` attempts in a row have failed.
    """

    attempts: int = 8
    attempt_s: float = 300.0
    deadline_s: float = 900.0
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    gone_after_s: float = 60.0
    gone_after_failures: int = 5

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) <= 0:
                raise ValueError(f"{field.name} must be above 0, got {value}")

    def wait_s(self, attempt: int, after: str | None, rng: random.Random) -> float:
        """How long to wait after failed attempt number ``attempt``, counted from 0."""
        if (asked := seconds_of(after)) is not None:
            return asked + rng.uniform(0, self.first_wait_s)
        return rng.uniform(0, min(self.longest_wait_s, self.first_wait_s * 2**attempt))


class Circuit:
    """Shared by all requests to one server; once open it stays open, and every request raises without being sent."""

    def __init__(self, patience: RetryPolicy, server: str, clock: Callable[[], float] = time.monotonic):
        self._patience, self._server, self._clock = patience, server, clock
        self._failures, self._first_failure = 0, 0.0
        self._verdict: str | None = None

    def check(self) -> None:
        if self._verdict is not None:
            raise BackendUnavailable(self._verdict)

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, reason: str) -> None:
        """Count a passing failure; raises when it was one too many."""
        if not self._failures:
            self._first_failure = self._clock()
        self._failures += 1
        silent_s = self._clock() - self._first_failure
        if self._failures >= self._patience.gone_after_failures and silent_s >= self._patience.gone_after_s:
            self.open(
                f"the server at {self._server} is gone: {self._failures} attempts in a row failed over {silent_s:.0f} s, the last with "
                f"{reason}; start it again and run the same command, finished turns are kept in the journal"
            )

    def open(self, verdict: str) -> None:
        self._verdict = verdict
        self.check()


async def retrying(once: Callable[[], Awaitable[T]], patience: RetryPolicy, circuit: Circuit, rng: random.Random) -> T:
    """The first success of ``once``, tried again while it raises :class:`RetryableError` and time and attempts last."""
    ends = time.monotonic() + patience.deadline_s
    for attempt in range(patience.attempts):
        circuit.check()
        try:
            async with asyncio.timeout(max(0.0, ends - time.monotonic())):
                result = await once()
        except (RetryableError, TimeoutError) as failure:
            circuit.failed(str(failure) or "no reply before the deadline")
            wait = patience.wait_s(attempt, getattr(failure, "after", None), rng)
            if attempt + 1 == patience.attempts or time.monotonic() + wait >= ends:
                reason = str(failure) or "no reply before the deadline"
                raise BackendError(
                    f"no reply after {attempt + 1} attempts within {patience.deadline_s:g} s; the last: {reason}"
                ) from failure
        except BackendUnavailable as failure:
            circuit.open(str(failure))
        else:
            circuit.succeeded()
            return result
        await asyncio.sleep(wait)
    raise AssertionError("unreachable: the last attempt returns or raises")


def seconds_of(retry_after: str | None) -> float | None:
    """A Retry-After header in seconds from now (RFC 9110, section 10.2.3); ``None`` where there is none or it is not one."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
