"""vLLM's engine in one thread of this process: no second process, no sockets, no shared memory.

One step of the engine serves every waiting request, so turns of different readings are batched as they come. Knows
nothing of prompts; :mod:`memagent_lib.backends.vllm` does.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple

from memagent_lib.backends.interface import BackendError


class _Ask(NamedTuple):
    name: str
    ids: list[int]
    params: Any
    answered: Future


class _Withdraw(NamedTuple):
    name: str


class _Call(NamedTuple):
    method: str
    done: Future


_STOP = None
# vLLM keeps its process groups and its forward context in globals: engines of one process take turns, and only the last
# one to stop may tear the groups down.
_turn = threading.Lock()
_running: set[ThreadEngine] = set()


class ThreadEngine:
    """Owns the engine's thread. Its methods may be called from any thread and any event loop."""

    def __init__(self, settings: dict[str, Any], threads: int | None = None):
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked: dict[str, Future] = {}
        self._failure: BaseException | None = None
        self._door = threading.Lock()
        started: Future = Future()
        self._thread = threading.Thread(
            target=self._run, args=(settings, threads, started), name="memagent-vllm", daemon=True
        )
        self._thread.start()
        self.window: int = started.result()
        atexit.register(self.shutdown)

    async def generate(self, ids: list[int], params: Any, name: str) -> Any:
        answered: Future = Future()
        self._send(_Ask(name, ids, params, answered))
        try:
            return await asyncio.wrap_future(answered)
        except asyncio.CancelledError:
            self._inbox.put(_Withdraw(name))
            raise

    async def reset_prefix_cache(self) -> None:
        done: Future = Future()
        self._send(_Call("reset_prefix_cache", done))
        await asyncio.wrap_future(done)

    def _send(self, order: _Ask | _Call) -> None:
        with self._door:
            if self._failure is not None:
                raise BackendError(f"vLLM's engine has stopped: {self._failure}")
            self._inbox.put(order)

    def shutdown(self) -> None:
        """Stop the engine; requests that still wait fail. A second call does nothing."""
        atexit.unregister(self.shutdown)
        if self._thread.is_alive():
            self._inbox.put(_STOP)
            self._thread.join()

    def _run(self, settings: dict[str, Any], threads: int | None, started: Future) -> None:
        try:
            with _turn:
                engine = _engine(settings, threads)
                _running.add(self)
        except BaseException as failure:
            started.set_exception(failure)
            return
        started.set_result(engine.model_config.max_model_len)
        try:
            while self._take(engine):
                with _turn:
                    outputs = engine.step()
                self._hand_out(outputs)
            self._fail(RuntimeError("it was closed"))
        except BaseException as failure:
            self._fail(failure)
        finally:
            with _turn:
                _running.discard(self)
                if not _running:
                    engine.engine_core.shutdown()

    def _take(self, engine: Any) -> bool:
        """Pass on what has arrived, waiting when there is nothing else to do; whether to go on."""
        while True:
            try:
                order = self._inbox.get(block=not self._asked)
            except queue.Empty:
                return True
            if order is _STOP:
                return False
            self._obey(engine, order)

    def _obey(self, engine: Any, order: Any) -> None:
        if isinstance(order, _Call):
            try:
                order.done.set_result(getattr(engine, order.method)())
            except Exception as failure:
                _tell(order.done, failure)
        elif isinstance(order, _Withdraw):
            if self._asked.pop(order.name, None) is not None:
                engine.abort_request([order.name])
        else:
            try:
                engine.add_request(order.name, {"prompt_token_ids": order.ids}, order.params)
            except Exception as refused:  # of many kinds; it is this request's alone, and the engine goes on
                _tell(order.answered, BackendError(f"vLLM refused a request: {refused}"))
            else:
                self._asked[order.name] = order.answered

    def _hand_out(self, outputs: list[Any]) -> None:
        for output in outputs:
            answered = self._asked.pop(output.request_id, None) if output.finished else None
            if answered is not None and answered.set_running_or_notify_cancel():
                answered.set_result(output)

    def _fail(self, failure: BaseException) -> None:
        """Nobody is left waiting for an engine that has stopped."""
        with self._door:  # after this nothing more is sent
            self._failure = failure
        waiting = list(self._asked.values())
        while True:
            try:
                order = self._inbox.get_nowait()
            except queue.Empty:
                break
            waiting += [order.answered] if isinstance(order, _Ask) else [order.done] if isinstance(order, _Call) else []
        for future in waiting:
            _tell(future, BackendError(f"vLLM's engine has stopped: {failure}"))


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
