"""A backend without a model: replies are a function of the prompt's text."""

from __future__ import annotations

from collections.abc import Callable

from memagent_lib.prompts import Request
from memagent_lib.trace import Reply


class Scripted:
    """A backend that answers by a function of the prompt's text. Deterministic, instant; for tests and for looking at
    readers.

    The function returns the reply's text or a whole :class:`Reply`, or raises.
    """

    def __init__(self, answer: Callable[[str], str | Reply], window: int = 1 << 30):
        self._answer, self.window = answer, window
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Reply:
        self.requests.append(request)
        said = self._answer(request.text)
        return said if isinstance(said, Reply) else Reply(said, prompt_tokens=len(request.ids))

    async def close(self) -> None:
        return None
