"""Driving a reader with a backend: the one loop behind the evaluator, the command line, the notebooks and the inspector.

Knows readers, encoders and backends; knows no examples and no scores.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from memagent_lib.backends import Backend
from memagent_lib.prompts import Encoder
from memagent_lib.readers import Reader, Reading, overwrite
from memagent_lib.text import chunk_stream
from memagent_lib.trace import Prompt, Reply, Trace

T = TypeVar("T")


async def drive(reading: Reading, encoder: Encoder, backend: Backend) -> Trace:
    """Answer a reader's prompts until it returns its trace. Prompts yielded as a tuple are asked side by side."""

    async def ask(prompt: Prompt) -> Reply:
        request = encoder.encode(prompt)
        return encoder.reply(prompt, request, await backend.complete(request))

    move = next(reading)
    while True:
        answers = await asyncio.gather(*map(ask, move)) if isinstance(move, tuple) else await ask(move)
        try:
            move = reading.send(tuple(answers) if isinstance(move, tuple) else answers)
        except StopIteration as done:
            return done.value


@dataclass(frozen=True)
class Agent:
    """A model that reads documents: encoder + backend + reader.

    ``aread`` for asynchronous code, ``read`` for everything else, notebooks included.
    """

    encoder: Encoder
    backend: Backend
    reader: Reader = overwrite

    def __post_init__(self) -> None:
        self.encoder.require_window(self.backend.window, "the model's window")

    async def aread(self, document: str | Iterable[str], question: str) -> Trace:
        blocks = [document] if isinstance(document, str) else document
        chunks = chunk_stream(blocks, self.encoder.tokenizer, self.encoder.budget.chunk_tokens)
        return await drive(self.reader(question, chunks), self.encoder, self.backend)

    def read(self, document: str | Iterable[str], question: str) -> Trace:
        return run_sync(self.aread(document, question))

    def close(self) -> None:
        run_sync(self.backend.close())


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, also where an event loop is already running (a notebook cell).

    All such work shares one background loop, because engines belong to the loop that first used them.
    """
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="memagent-loop", daemon=True).start()
    return loop
