"""A backend without a model: replies are a function of the prompt's text."""

from __future__ import annotations

from collections.abc import Callable

from memagent_lib.prompts import Request
from memagent_lib.trace import Reply


class Scripted:
    """A backend that answers at once with a function of the prompt's text, for tests and for exploring readers.

    The function returns the reply's text or a whole :class:`Reply`, or raises.
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
