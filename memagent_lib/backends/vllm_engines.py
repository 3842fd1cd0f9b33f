"""vLLM's engine without a second process: in its caller's event loop, or in one thread of this process.

A step serves every waiting request. Between two steps every caller whose reply is complete sends its next request, so
the next step serves them all. Batches therefore depend only on the requests, not on timing. Both classes have the
methods of vLLM's ``AsyncLLM`` that verl and :mod:`memagent_lib.backends.vllm` call.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from memagent_lib.backends.interface import BackendError

CLOSED = "vLLM's engine has stopped: it was closed"
# vLLM's process groups and forward context are globals: engines of one process take turns, and only the last one to
# stop may tear the groups down.
engine_lock = threading.RLock()
_running: set[LoopEngine] = set()


class LoopEngine:
    """An engine whose callers share one event loop.

    A step blocks the loop, because on a CPU there is nothing else to wait for.
    """

    def __init__(self, config: Any):
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor

        with engine_lock:
            self.engine = LLMEngine(config, Executor.get_class(config), log_stats=False)
            _running.add(self)
        self._replies: dict[str, asyncio.Future[Any]] = {}
        self._steps: asyncio.Task[None] | None = None
        self.model_config = config.model_config

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **unused: Any) -> AsyncIterator[Any]:
        """Yield the finished ``RequestOutput``.

        If the engine fails, every request fails. Cancelling the call aborts the request.
        """
        self.engine.add_request(request_id, prompt, sampling_params)
        reply = self._replies[request_id] = asyncio.get_running_loop().create_future()
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._step())
        try:
            yield await reply
        finally:
            if self._replies.pop(request_id, None) is not None:  # neither answered nor failed
                self.engine.abort_request([request_id])

    async def _step(self) -> None:
        try:
            while await self._anyone_waits():
                with engine_lock:
                    outputs = self.engine.step()
                for output in outputs:
                    reply = self._replies.pop(output.request_id, None) if output.finished else None
                    if reply is not None and not reply.done():
                        reply.set_result(output)
        except Exception as failure:  # nobody awaits this task: only the requests can report what ended it
            self.fail(failure)

    async def _anyone_waits(self) -> bool:
        """Let every caller that is ready send a request, then return whether any request waits."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # a request from another thread takes two rounds of the loop
        return bool(self._replies)

    def fail(self, failure: Exception) -> None:
        """Fail every waiting request and remove it from the engine."""
        waiting = self._replies
        self._replies = {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(failure)
        self.engine.abort_request(list(waiting))

    async def collective_rpc(
        self, method: Any, timeout: float | None = None, args: tuple = (), kwargs: dict | None = None
    ) -> list[Any]:
        """Call a method of vLLM's worker. Blocks the event loop until it returns."""
        return self.engine.collective_rpc(method, timeout, args, kwargs)

    async def reset_prefix_cache(self, reset_connector: bool = False) -> None:
        """Empty the prefix cache. Raises ``RuntimeError`` if a running request still uses part of it."""
        # vLLM itself leaves the cache as it is then, and writes a line to its log.
        if not self.engine.reset_prefix_cache(reset_connector=reset_connector):
            raise RuntimeError(
                "the prefixes of earlier weights are still in use, so new replies would be read from them"
            )

    async def reset_mm_cache(self) -> None:
        self.engine.reset_mm_cache()

    async def reset_encoder_cache(self) -> None:
        self.engine.reset_encoder_cache()

    def shutdown(self) -> None:
        with engine_lock:
            _running.discard(self)
            if not _running:
                self.engine.engine_core.shutdown()

    async def wait_for_requests_to_drain(self) -> None:
        if self._steps is not None:
            await self._steps


class ThreadEngine:
    """A :class:`LoopEngine` in a thread with its own event loop.

    Its methods can be called from any thread and event loop. ``threads`` limits the threads of OpenMP.
    """

    def __init__(self, settings: dict[str, Any], threads: int | None = None):
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
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
            self._end()

    async def _last_output(self, prompt: Any, params: Any, name: str) -> Any:
        return [output async for output in self._engine.generate(prompt, params, name)][-1]

    async def _stop(self) -> None:
        self._engine.fail(BackendError(CLOSED))
        self._engine.shutdown()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _in_engine_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop.is_closed():
            work.close()
            raise BackendError(CLOSED)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


async def _engine(settings: dict[str, Any], threads: int | None) -> LoopEngine:
    import torch
    from vllm import EngineArgs
    from vllm.v1.executor import UniProcExecutor

    set_num_threads = torch.set_num_threads
    if threads is not None:
        set_num_threads(threads)  # OpenMP counts threads per calling thread: this limits the engine's alone
    try:
        with engine_lock:
            # Given by its name, vLLM replaces this one by an executor with a process of its own.
            args = EngineArgs(**settings, distributed_executor_backend=UniProcExecutor)
            return LoopEngine(args.create_engine_config())
    finally:
        torch.set_num_threads = set_num_threads  # vLLM's CPU worker replaces it for the whole process
