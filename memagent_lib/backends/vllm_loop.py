"""vLLM's engine in the event loop that asks it: no second process, no thread, no output but the last of a request.

A step serves every waiting request; between two steps whoever waits for a reply takes it and asks again, so the next
step holds all of them. What is batched with what follows from the requests alone. Has the methods of ``AsyncLLM`` that
verl and :mod:`memagent_lib.backends.vllm` call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

# vLLM keeps its process groups and its forward context in globals: engines of one process take turns, and only the last
# one to stop may tear the groups down.
engine_lock = threading.RLock()
_running: set[LoopEngine] = set()


class LoopEngine:
    """All calls come from one event loop. A step blocks it: on a CPU there is nothing else to wait for."""

    def __init__(self, config: Any):
        from vllm.v1.engine.llm_engine import LLMEngine

        with engine_lock:
            self._engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
            _running.add(self)
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._steps: asyncio.Task[None] | None = None
        self.model_config = config.model_config

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **unused: Any) -> AsyncIterator[Any]:
        """Yields the finished ``RequestOutput``. An engine that fails fails every request; a cancelled one ends."""
        self._engine.add_request(request_id, prompt, sampling_params)
        reply = self._asked[request_id] = asyncio.get_running_loop().create_future()
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._step())
        try:
            yield await reply
        finally:
            if self._asked.pop(request_id, None) is not None:  # neither answered nor failed
                self._engine.abort_request([request_id])

    async def _step(self) -> None:
        try:
            while await self._anyone_waits():
                with engine_lock:
                    outputs = self._engine.step()
                for output in outputs:
                    if output.finished and (reply := self._asked.pop(output.request_id, None)) and not reply.done():
                        reply.set_result(output)
        except Exception as failure:
            self.fail(failure)

    async def _anyone_waits(self) -> bool:
        """Everyone who can ask does so before a step; what another thread asks takes two rounds of the loop."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return bool(self._asked)

    def fail(self, failure: Exception) -> None:
        """Nobody is left waiting for an engine that has stopped, and nothing of theirs stays in it."""
        asked, self._asked = self._asked, {}
        for reply in asked.values():
            if not reply.done():
                reply.set_exception(failure)
        self._engine.abort_request(list(asked))

    async def collective_rpc(
        self, method: Any, timeout: float | None = None, args: tuple = (), kwargs: dict | None = None
    ) -> list[Any]:
        """Call a method of vLLM's worker; the loop stands still meanwhile."""
        return self._engine.collective_rpc(method, timeout, args, kwargs)

    async def reset_prefix_cache(self, reset_connector: bool = False) -> None:
        """vLLM keeps the cache where a request still holds a part of it, and says so in a log that nobody reads."""
        if not self._engine.reset_prefix_cache(reset_connector=reset_connector):
            raise RuntimeError(
                "the prefixes of earlier weights are still in use, so new replies would be read from them"
            )

    async def reset_mm_cache(self) -> None:
        self._engine.reset_mm_cache()

    async def reset_encoder_cache(self) -> None:
        self._engine.reset_encoder_cache()

    def shutdown(self) -> None:
        with engine_lock:
            _running.discard(self)
            if not _running:
                self._engine.engine_core.shutdown()

    async def wait_for_requests_to_drain(self) -> None:
        if self._steps is not None:
            await self._steps
