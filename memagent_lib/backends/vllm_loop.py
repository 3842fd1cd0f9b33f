"""vLLM's engine in its caller's event loop: no second process, no thread, one output per request.

A step serves every waiting request. Between two steps every caller whose reply is complete sends its next request, so
the next step serves them all. Batches therefore depend only on the requests, not on timing. :class:`LoopEngine` has the
methods of ``AsyncLLM`` that verl and :mod:`memagent_lib.backends.vllm` call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

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

        with engine_lock:
            self.engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
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
                    if output.finished:
                        reply = self._replies.pop(output.request_id, None)
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
