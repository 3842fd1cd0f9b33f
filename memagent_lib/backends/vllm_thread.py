"""vLLM's engine in one thread of this process: no second process, no sockets, no shared memory.

Each step of the engine serves every waiting request, so turns of different readings share batches.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from memagent_lib.backends.interface import BackendError
from memagent_lib.backends.vllm_loop import LoopEngine, engine_lock

CLOSED = "vLLM's engine has stopped: it was closed"


class ThreadEngine:
    """A :class:`LoopEngine` in a thread with its own event loop.

    Its methods can be called from any thread and event loop.
    """

    def __init__(self, settings: dict[str, Any], threads: int | None = None):
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="memagent-vllm", daemon=True)
        self._thread.start()
        try:
            self._engine = asyncio.run_coroutine_threadsafe(_engine(settings, threads), self._loop).result()
        except BaseException:
            self._end()
            raise
        self.model_config = self._engine.model_config
        # Python stops daemon threads abruptly at exit, even in the middle of a step.
        atexit.register(self.shutdown)

    async def generate(self, prompt: Any, params: Any, name: str) -> AsyncIterator[Any]:
        """Yield vLLM's final ``RequestOutput``. Cancelling the call aborts the request."""
        yield await self._in_engine_loop(self._last_output(prompt, params, name))

    async def reset_prefix_cache(self) -> None:
        await self._in_engine_loop(self._engine.reset_prefix_cache())

    def shutdown(self) -> None:
        """Stop the engine and fail the requests that still wait. Calling it again does nothing."""
        atexit.unregister(self.shutdown)
        with self._lock:  # from here on no call reaches the thread
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _in_engine_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run ``work`` in the engine's loop and return its result."""
        with self._lock:
            if self._closed:
                work.close()
                raise BackendError(CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.wrap_future(future)

    async def _last_output(self, prompt: Any, params: Any, name: str) -> Any:
        outputs = [output async for output in self._engine.generate(prompt, params, name)]
        return outputs[-1]

    async def _stop(self) -> None:
        self._engine.fail(BackendError(CLOSED))
        self._engine.shutdown()


async def _engine(settings: dict[str, Any], threads: int | None) -> LoopEngine:
    import torch

    set_num_threads = torch.set_num_threads
    if threads is not None:
        set_num_threads(threads)  # OpenMP counts threads per calling thread: this limits the engine's alone
    try:
        with engine_lock, environment(VLLM_ENABLE_V1_MULTIPROCESSING="0"):
            from vllm import EngineArgs

            return LoopEngine(EngineArgs(**settings).create_engine_config())
    finally:
        torch.set_num_threads = set_num_threads  # vLLM's CPU worker replaces it for the whole process


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables while an engine starts and reads them, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
