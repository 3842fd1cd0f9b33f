"""When to send a request again, how long to wait, and when to give up on a server altogether.

Tenacity provides the loop and the random waits (full jitter). This module adds the waits that a server requests, and a
circuit breaker that all requests share. It does not depend on a protocol.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    RetryError,
    retry_if_exception_type,
    stop_before_delay,
    wait_random_exponential,
)

from memagent_lib.backends.interface import BackendError, BackendUnavailable, ContentFiltered

PATIENCE_S = 2.0  # a chat client would rather wait this long than get an error
T = TypeVar("T")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?")
_ENDLESS = ("inf", "infinity", "+inf", "+infinity")


class RetryableError(Exception):
    """A failure that is worth another try. ``after`` is the server's Retry-After header.

    If ``attempts`` is set, the server itself works: the wait is short, and the request is abandoned after that many
    failures of this kind, even if others came in between.
    """

    def __init__(self, reason: str, after: str | None = None, attempts: int | None = None):
        super().__init__(reason)
        self.after = after
        self.attempts = attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to retry a request, and when to give up on a server.

    A request is retried until ``deadline_s``; each attempt takes at most ``attempt_s``. Waits double from
    ``first_wait_s`` to ``longest_wait_s``, each drawn uniformly below its bound ("full jitter"), unless the server
    names a time. The server counts as gone if at least ``gone_after_failures`` attempts in a row have failed over at
    least ``gone_after_s``, and as unusable if it refuses ``same_refusals`` requests in a row with the same message. The
    server is then tried again after a pause of ``first_pause_s``, which doubles each time up to ``longest_pause_s``.
    """

    attempt_s: float = 300.0
    deadline_s: float = 900.0
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    gone_after_s: float = 900.0
    gone_after_failures: int = 5
    same_refusals: int = 10
    first_pause_s: float = 0.5
    longest_pause_s: float = 300.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value <= 0:
                raise ValueError(f"{field.name} must be above 0, got {value}")

    def wait_s(self, state: RetryCallState) -> float:
        """Return how many seconds to wait after a failed attempt."""
        failure = _failure(state)
        requested_s = seconds_of(failure.after)
        if requested_s is not None:
            return requested_s + random.uniform(0, self.first_wait_s)
        if failure.attempts is not None:  # the server works, and only its reply was of no use
            return random.uniform(0, self.first_wait_s)
        return wait_random_exponential(self.first_wait_s, self.longest_wait_s)(state)


class Circuit:
    """A circuit breaker shared by all requests to one server. While it is open, no request is sent.

    It stays open for the time that the server names, or for a pause that doubles from ``first_pause_s`` to
    ``longest_pause_s``. Then one request tries the server again: if it succeeds, the circuit closes; if it fails, the
    next pause begins. A run stops at the first :class:`BackendUnavailable`, so only a chat server outlives a pause.
    """

    def __init__(self, policy: RetryPolicy, server: str, clock: Callable[[], float] = time.monotonic):
        self._policy = policy
        self._server = server
        self._clock = clock
        self.strangers = False
        """Whether requests come from unrelated clients, so that identical refusals do not open the circuit."""
        self._failures = 0  # in a row
        self._first_failure = 0.0
        self._refusals = 0  # in a row, with the message of the last one
        self._last_refusal = ""
        self._last_failure = ""
        self._verdict: str | None = None  # until a success
        self._closed_again = 0.0
        self._pause_s = policy.first_pause_s

    @property
    def trouble(self) -> str | None:
        """Why no request is sent, or why the last attempt failed; ``None`` if it succeeded."""
        return self._verdict or (self._last_failure if self._failures else None)

    @property
    def pause_s(self) -> float:
        """For how many more seconds no request will be sent; 0 if one may be sent now."""
        if self._verdict is None:
            return 0.0
        return max(0.0, self._closed_again - self._clock())

    def check(self) -> None:
        """Raise :class:`BackendUnavailable` if the circuit is open, unless it is time to try the server again."""
        if self._verdict is None:
            return
        if self.pause_s:
            raise BackendUnavailable(self._verdict, after_s=self.pause_s)
        self._pause()  # for all others, until this one is back

    def succeeded(self) -> None:
        self._failures = self._refusals = 0
        self._verdict = None
        self._pause_s = self._policy.first_pause_s

    def failed(self, failure: RetryableError) -> None:
        """Count a retryable failure.

        The circuit opens after too many failures, or if the server requests a pause longer than the deadline; this then
        raises :class:`BackendUnavailable`.
        """
        if not self._failures:
            self._first_failure = self._clock()
        self._failures += 1
        self._last_failure = str(failure)
        silent_s = self._clock() - self._first_failure
        requested_s = seconds_of(failure.after)
        if requested_s is not None and requested_s > self._policy.deadline_s:
            until = _date_after(requested_s)
            verdict = f"the server at {self._server} asks to be left alone {until} ({failure}); try again then"
            self.open(verdict, requested_s if math.isfinite(requested_s) else None)
        if self._failures >= self._policy.gone_after_failures and silent_s >= self._policy.gone_after_s:
            self.open(
                f"the server at {self._server} is gone: {self._failures} attempts in a row failed over "
                f"{silent_s:.0f} s, the last with {failure}; start it again and run the same command, finished turns "
                "are in the journal"
            )

    def refused(self, refusal: BackendError) -> None:
        """Count a refusal that no retry will change.

        The circuit opens, as in :meth:`failed`, if the same refusal comes too many times in a row, except from
        unrelated clients. Any other refusal closes it, because a server that refuses one request is available for
        others. A content filter's refusals are not counted: they come faster than replies, so many come in a row.
        """
        self._verdict = None
        self._failures = 0
        if isinstance(refusal, ContentFiltered):
            return
        if str(refusal) != self._last_refusal:
            self._refusals = 0
        self._refusals += 1
        self._last_refusal = str(refusal)
        if self._refusals >= self._policy.same_refusals and not self.strangers:
            self.open(f"{self._refusals} requests in a row met the same refusal: {refusal}; mend that and run again")

    def open(self, verdict: str, pause_s: float | None = None) -> None:
        """Open the circuit for ``pause_s`` seconds, by default the usual pause.

        Raises :class:`BackendUnavailable` with ``verdict`` now and at every check until the pause ends.
        """
        self._verdict = verdict
        self._pause(pause_s)
        raise BackendUnavailable(verdict, after_s=self.pause_s)

    def _pause(self, pause_s: float | None = None) -> None:
        if pause_s is None:
            pause_s = self._pause_s
            self._pause_s = min(2 * pause_s, self._policy.longest_pause_s)
        self._closed_again = self._clock() + pause_s


async def retrying(once: Callable[[], Awaitable[T]], policy: RetryPolicy, circuit: Circuit) -> T:
    """Call ``once`` until it succeeds, and return its result.

    It is called again if it raises :class:`RetryableError` and time is left. Raises :class:`BackendError` when time or
    attempts have run out, and :class:`BackendUnavailable` if the circuit is open or opens. Other errors are passed on.
    """
    ends = time.monotonic() + policy.deadline_s
    reason = RetryableError("no reply before the deadline")

    async def attempt() -> T:
        nonlocal reason
        while circuit.strangers and 0 < circuit.pause_s <= PATIENCE_S:
            await asyncio.sleep(circuit.pause_s)
        circuit.check()
        try:
            async with asyncio.timeout(max(0.0, ends - time.monotonic())):
                result = await once()
        except (RetryableError, TimeoutError) as failure:
            if isinstance(failure, RetryableError):  # the deadline's own timeout must not hide why attempts failed
                reason = failure
            circuit.failed(reason)
            raise reason from failure
        except BackendUnavailable as failure:
            circuit.open(str(failure))
        except BackendError as refusal:
            circuit.refused(refusal)
            raise
        circuit.succeeded()
        return result

    late = stop_before_delay(policy.deadline_s)

    limited = 0  # failures of the kind that is worth only some attempts

    def stop(state: RetryCallState) -> bool:
        nonlocal limited
        attempts = _failure(state).attempts
        limited += attempts is not None
        return late(state) or (attempts is not None and limited >= attempts)

    try:
        tries = AsyncRetrying(wait=policy.wait_s, stop=stop, retry=retry_if_exception_type(RetryableError))
        return await tries(attempt)
    except RetryError as spent:
        last = spent.last_attempt
        raise BackendError(
            f"no reply after {last.attempt_number} attempts within {policy.deadline_s:g} s; "
            f"the last: {last.exception()}"
        ) from last.exception()


def _failure(state: RetryCallState) -> RetryableError:
    failure = state.outcome.exception()
    assert isinstance(failure, RetryableError), "only these are retried"
    return failure


def _date_after(seconds: float) -> str:
    try:
        return time.strftime("until %Y-%m-%d %H:%M:%S", time.localtime(time.time() + seconds))
    except (OverflowError, ValueError, OSError):  # past what a calendar holds
        return "and names no end"


def seconds_of(retry_after: str | None) -> float | None:
    """Return a Retry-After header as seconds from now (RFC 9110, section 10.2.3); ``None`` if it has none.

    A number too large for a clock (``inf``, ``1e400``) is returned as infinity: the server names no end.
    """
    if retry_after is None:
        return None
    number = retry_after.strip().lower()
    if number in _ENDLESS or _NUMBER.fullmatch(number):
        return max(0.0, float(number))
    try:
        date = parsedate_to_datetime(retry_after)
    except (ValueError, TypeError):
        return None
    if date.tzinfo is None:  # HTTP's dates are in GMT, whether they name it or not
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - time.time())
