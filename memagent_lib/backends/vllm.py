"""vLLM in this process. Token counts, finish reasons and prefix-cache hits come from the engine.

This is the engine that makes verl's rollouts, so training and evaluation sample replies in the same way. On a GPU the
engine runs in its own processes (``AsyncLLM``). On a CPU it runs in one thread of this process, because messages
between processes would cost more than a small model's arithmetic, and every process would import vLLM again.

Between two steps of that engine, every caller whose reply is complete sends its next request, so the next step serves
them all: batches depend only on the requests, not on timing.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine
from copy import copy
from itertools import count
from typing import Any

from memagent_lib.backends.interface import BackendError, BackendUnavailable, Sampling, require_room
from memagent_lib.backends.model_shape import config_of, end_tokens, kv_bytes, shape_of
from memagent_lib.prompts import Request
from memagent_lib.system import leave_room_for_sockets
from memagent_lib.tokenizer import Tokenizer
from memagent_lib.trace import Reply

CPU_KV_CACHE_BYTES = 1 << 30
KV_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
SPARE_TOKENS = 128  # the cache is cut into blocks, and one of them holds nothing
CPU_SETTINGS = {
    "enforce_eager": True,  # compiling takes longer to start than it saves on most jobs; measured 13 % faster turns
    "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
    "max_num_seqs": 256,
    "block_size": 32,  # the CPU's default of 128 would share no prefix shorter than that
    # A step that holds part of a seeded prompt kills vLLM's CPU engine ("CPU Generator does not use offset"), so none
    # is split.
    "enable_chunked_prefill": False,
}
CLOSED = "vLLM's engine has stopped: it was closed"
# vLLM's process groups and forward context are globals: engines of one process take turns, and only the last one to
# stop may tear the groups down.
engine_lock = threading.RLock()
_running: set[LoopEngine] = set()


class VLLM:
    """A vLLM engine for a model folder or hub name.

    ``engine`` options are those of vLLM's ``EngineArgs``, such as ``data_parallel_size`` on several GPUs. ``threads``
    limits the CPU engine's threads. An engine with more threads than free cores is several times slower. On a CPU
    without a ``window``, a model has its own if :data:`CPU_KV_CACHE_BYTES` hold it, and else the larger of what they
    hold and ``needed_window``, the tokens that the longest turn may need.
    """

    def __init__(
        self,
        model: str,
        sampling: Sampling,
        *,
        window: int | None = None,
        needed_window: int = 0,
        threads: int | None = None,
        **engine: Any,
    ):
        # What torch and vLLM read once, when they are imported.
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else vLLM's NUMA binding is a red line in notebooks
        self._tokenizer = Tokenizer.load(model)
        self._ends = end_tokens(model, self._tokenizer)
        self._engine = _start(model, window, needed_window, threads, engine)
        self.sampling = sampling
        self.threads = threads
        self._ids = count()
        self.window = self._engine.model_config.max_model_len

    def drawing(self, sampling: Sampling) -> VLLM:
        """Return a backend that shares this engine and samples replies with other settings."""
        other = copy(self)
        other.sampling = sampling
        return other

    async def generate(self, request: Request) -> Any:
        """Return vLLM's own final ``RequestOutput`` for a request."""
        prompt = {"prompt_token_ids": list(request.ids)}
        name = f"memagent-{next(self._ids)}"
        outputs = [output async for output in self._engine.generate(prompt, self._params(request), name)]
        return outputs[-1]

    async def complete(self, request: Request) -> Reply:
        require_room(request, self.window)
        try:
            final = await self.generate(request)
        except BackendError:
            raise
        except Exception as failure:  # the base class of vLLM's errors changes with its versions
            if getattr(self._engine, "errored", False):  # AsyncLLM, whose engine process has ended
                raise BackendUnavailable(f"vLLM has ended ({failure}); run the same command again") from failure
            raise BackendError(f"vLLM gave no reply: {failure}") from failure
        output = final.outputs[0]
        ids = tuple(output.token_ids)
        written = ids[:-1] if ids and ids[-1] in self._ends else ids
        return Reply(
            self._tokenizer.decode(written),
            output.finish_reason,
            len(request.ids),
            len(ids),
            final.num_cached_tokens or 0,
            token_ids=ids,
        )

    def _params(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        s = self.sampling.for_request(request)
        return SamplingParams(
            max_tokens=request.max_tokens,
            temperature=s.temperature,
            top_p=s.top_p,
            seed=s.seed_for(request),
            stop_token_ids=list(self._ends),
            detokenize=False,  # once, at the end, by our own tokenizer: cheaper than token by token
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache, so that a measurement starts cold."""
        await self._engine.reset_prefix_cache()

    async def close(self) -> None:
        self._engine.shutdown()


def _start(model: str, window: int | None, needed_window: int, threads: int | None, options: dict[str, Any]) -> Any:
    """Start vLLM's ``AsyncLLM``, or on a CPU the thread engine with the same methods."""
    from vllm.platforms import current_platform

    settings = {"model": model, "enable_prefix_caching": True, "disable_log_stats": True, "use_tqdm_on_load": False}
    if window is not None:
        settings["max_model_len"] = window
    if current_platform.is_cpu():
        settings |= CPU_SETTINGS | {"dtype": cpu_dtype(model)} | cpu_cache(model, window, needed_window)
        return ThreadEngine(settings | options, threads)
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    leave_room_for_sockets()
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**settings | options))


def cpu_dtype(model: str) -> str:
    """Return the type of numbers in which a CPU computes a model, as in the rollouts of its training."""
    try:
        return shape_of(model).cpu_dtype
    except (ValueError, AttributeError):  # a kind of model that only vLLM knows
        return "float32"


def cpu_cache(model: str, window: int | None, needed_window: int) -> dict[str, int]:
    """Return vLLM's settings for a model's window and KV cache on a CPU, where they differ from the defaults.

    vLLM refuses a cache that holds less than one window. It takes the cache's size from the environment instead if
    :data:`KV_CACHE_VARIABLE` is set.
    """
    if KV_CACHE_VARIABLE in os.environ:
        return {}
    try:
        config = config_of(model).get_text_config()
        longest = config.max_position_embeddings
        token_bytes = 2 * kv_bytes(config)  # in float32, so that a window does not depend on the processor
    except (ValueError, AttributeError):  # a kind of model that only vLLM knows
        return {}
    settings = {}
    if window is None:
        window = min(longest, max(CPU_KV_CACHE_BYTES // token_bytes, needed_window))
        if window < longest:
            settings["max_model_len"] = window
    cache_bytes = (window + SPARE_TOKENS) * token_bytes
    if cache_bytes > CPU_KV_CACHE_BYTES:
        settings["kv_cache_memory_bytes"] = cache_bytes
    return settings


class LoopEngine:
    """An engine whose callers share one event loop, with the methods of vLLM's ``AsyncLLM`` that verl and VLLM call.

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
            raise RuntimeError("prefixes of earlier weights are still in use, and new replies would be read from them")

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
