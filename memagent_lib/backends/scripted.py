"""A backend without a model: its replies are computed from the prompt's text."""

from __future__ import annotations

from collections.abc import Callable

from memagent_lib.prompts import Request
from memagent_lib.trace import Reply


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
