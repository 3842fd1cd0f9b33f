"""vLLM's engine in one thread of this process: no second process, no sockets, no shared memory.

One step of the engine serves every waiting request, so turns of different readings are batched as they come. Knows
nothing of prompts; :mod:`memagent_lib.backends.vllm` does.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from memagent_lib.backends.interface import BackendError

# vLLM keeps its process groups and its forward context in globals: engines of one process take turns, and only the last
# one to stop may tear the groups down.
_lock = threading.Lock()
_running: set[ThreadEngine] = set()


class ThreadEngine:
    """Owns the engine's thread, which does what it is given in that order: what was asked during a step is in the next
    one. Its methods may be called from any thread and any event loop.
    """

    def __init__(self, settings: dict[str, Any], threads: int | None = None):
        self._asked: dict[str, Future] = {}
        self._stepping, self._failure = False, ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="memagent-vllm")
        self._thread.submit(self._start, settings, threads).result()
        self.window: int = self._engine.model_config.max_model_len
        atexit.register(self.shutdown)

    async def generate(self, ids: list[int], params: Any, name: str) -> Any:
        answered: Future = Future()
        self._send(self._add, name, ids, params, answered)
        try:
            return await asyncio.wrap_future(answered)
        except asyncio.CancelledError:
            with suppress(BackendError):
                self._send(self._withdraw, name)
            raise

    async def reset_prefix_cache(self) -> None:
        await asyncio.wrap_future(self._send(self._engine.reset_prefix_cache))

    def shutdown(self) -> None:
        """Stop the engine; requests that still wait fail. A second call does nothing."""
        atexit.unregister(self.shutdown)
        try:
            self._thread.submit(self._stop)
        except RuntimeError:  # the thread has ended: by an earlier call, or with the interpreter
            self._stop()
        self._thread.shutdown()

    def _send(self, work: Callable[..., Any], *given: Any) -> Future:
        try:
            return self._thread.submit(work, *given)
        except RuntimeError as ended:
            raise self._stopped() from ended

    def _start(self, settings: dict[str, Any], threads: int | None) -> None:
        with _lock:
            self._engine = _engine(settings, threads)
            _running.add(self)

    def _add(self, name: str, ids: list[int], params: Any, answered: Future) -> None:
        if self._failure:
            _tell(answered, self._stopped())
            return
        try:
            self._engine.add_request(name, {"prompt_token_ids": ids}, params)
        except Exception as refused:  # of many kinds; it is this request's alone, and the engine goes on
            _tell(answered, BackendError(f"vLLM refused a request: {refused}"))
        else:
            self._asked[name] = answered
            self._step_soon()

    def _withdraw(self, name: str) -> None:
        if self._asked.pop(name, None) is not None:
            self._engine.abort_request([name])

    def _step_soon(self) -> None:
        if self._asked and not self._stepping:
            self._stepping = True
            with suppress(RuntimeError):  # the thread was closed meanwhile: stopping is next
                self._thread.submit(self._step)

    def _step(self) -> None:
        """One step, and the next one behind what the thread was given meanwhile."""
        try:
            with _lock:
                outputs = self._engine.step()
        except BaseException as failure:
            self._fail(str(failure) or repr(failure))
            return
        for output in outputs:
            answered = self._asked.pop(output.request_id, None) if output.finished else None
            if answered is not None and answered.set_running_or_notify_cancel():
                answered.set_result(output)
        self._stepping = False
        self._step_soon()

    def _stop(self) -> None:
        self._fail("it was closed")
        with _lock:
            last = _running == {self}
            _running.discard(self)
            if last:
                self._engine.engine_core.shutdown()

    def _fail(self, failure: str) -> None:
        """Nobody is left waiting for an engine that has stopped."""
        self._failure = self._failure or failure
        while self._asked:
            _tell(self._asked.popitem()[1], self._stopped())

    def _stopped(self) -> BackendError:
        return BackendError(f"vLLM's engine has stopped: {self._failure or 'it was closed'}")


def _tell(waiting: Future, failure: Exception) -> None:
    if waiting.set_running_or_notify_cancel():
        waiting.set_exception(failure)


def _engine(settings: dict[str, Any], threads: int | None) -> Any:
    import torch

    set_num_threads = torch.set_num_threads
    if threads is not None:
        set_num_threads(threads)  # OpenMP counts threads per calling thread, so this binds the engine's alone
    try:
        with environment(VLLM_ENABLE_V1_MULTIPROCESSING="0"):
            from vllm import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

            return LLMEngine.from_engine_args(EngineArgs(**settings))
    finally:
        torch.set_num_threads = set_num_threads  # vLLM's CPU worker replaces it for the whole process


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Environment variables that an engine reads only while it starts."""
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
