"""vLLM in this process: token counts, finish reasons and prefix-cache hits are the engine's.

The same engine that makes verl's rollouts, so training and evaluation sample alike. On a GPU the engine runs in
processes of its own (``AsyncLLM``); on a CPU it runs in one thread of this process, because there the messages between
processes cost more than a small model's arithmetic and every process imports vLLM again.
"""

from __future__ import annotations

import os
from copy import copy
from itertools import count
from typing import Any, Protocol

from memagent_lib.backends.interface import BackendError, Sampling, require_room
from memagent_lib.backends.vllm_thread import ThreadEngine
from memagent_lib.prompts import Completion, Request
from memagent_lib.tokenizer import Tokenizer

CPU_KV_CACHE_GB = "1"
CPU_SETTINGS = {
    "dtype": "float32",  # half precision is emulated on most CPUs: slower there and not what the policy was trained in
    "enforce_eager": True,  # compiling takes longer to start than it saves on most jobs; measured 13 % faster turns
    "max_num_seqs": 256,
    "block_size": 32,  # the CPU's default of 128 would share no prefix shorter than that
    # A step that holds part of a seeded prompt kills vLLM's CPU engine ("CPU Generator does not use offset"), so none
    # is split.
    "enable_chunked_prefill": False,
}


class Engine(Protocol):
    """A started engine: the one thing that differs between a GPU and a CPU."""

    window: int

    async def generate(self, ids: list[int], params: Any, name: str) -> Any:
        """vLLM's final ``RequestOutput``; a cancelled call withdraws its request."""

    async def reset_prefix_cache(self) -> None: ...

    def shutdown(self) -> None: ...


class VLLM:
    """An engine over a model folder or hub name. ``engine`` options are vLLM's own ``EngineArgs``.

    ``threads`` bounds the CPU engine's OpenMP threads; more threads than free cores make it several times slower.
    """

    def __init__(
        self, model: str, sampling: Sampling, *, window: int | None = None, threads: int | None = None, **engine: Any
    ):
        self._tokenizer = Tokenizer.load(model)
        self._engine = _start(model, window, threads, engine)
        self.sampling = sampling
        self._ids = count()
        self.window = self._engine.window

    def drawing(self, sampling: Sampling) -> VLLM:
        """The same engine with replies drawn in another way."""
        other = copy(self)
        other.sampling = sampling
        return other

    async def generate(self, request: Request) -> Any:
        """vLLM's own ``RequestOutput``, as it comes."""
        return await self._engine.generate(list(request.ids), self._params(request), f"memagent-{next(self._ids)}")

    async def complete(self, request: Request) -> Completion:
        require_room(request, self.window)
        try:
            final = await self.generate(request)
        except BackendError:
            raise
        except (RuntimeError, ValueError) as failure:  # EngineDeadError and EngineGenerateError are RuntimeErrors
            raise BackendError(f"vLLM gave no reply: {failure}") from failure
        said = final.outputs[0]
        return Completion(
            self._tokenizer.decode(said.token_ids),
            said.finish_reason,
            len(request.ids),
            len(said.token_ids),
            final.num_cached_tokens or 0,
            tuple(said.token_ids),
        )

    def _params(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        s = self.sampling
        return SamplingParams(
            max_tokens=request.max_tokens,
            temperature=s.temperature,
            top_p=s.top_p,
            seed=s.seed_for(request),
            detokenize=False,  # once, at the end, by our own tokenizer: cheaper than token by token
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache, so that a measurement starts cold."""
        await self._engine.reset_prefix_cache()

    async def close(self) -> None:
        self._engine.shutdown()


def _start(model: str, window: int | None, threads: int | None, options: dict[str, Any]) -> Engine:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else vLLM's NUMA binding is a red line in every notebook
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_KV_CACHE_GB)
    try:
        from vllm.platforms import current_platform
    except ImportError as missing:
        raise ImportError(
            "the vllm backend needs vLLM: pip install 'memagent-lib[cpu]', or [gpu] on a CUDA machine"
        ) from missing
    on_cpu = current_platform.is_cpu()
    settings = {"model": model, "enable_prefix_caching": True, "disable_log_stats": True, "use_tqdm_on_load": False}
    if window is not None:
        settings["max_model_len"] = window
    if on_cpu:
        return ThreadEngine(settings | CPU_SETTINGS | options, threads)
    return ProcessEngine(settings | options)


class ProcessEngine:
    """vLLM's ``AsyncLLM``: the engine in processes of its own."""

    def __init__(self, settings: dict[str, Any]):
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**settings))
        self.window = self._engine.model_config.max_model_len

    async def generate(self, ids: list[int], params: Any, name: str) -> Any:
        final = None
        async for output in self._engine.generate({"prompt_token_ids": ids}, params, name):
            final = output
        if final is None:
            raise BackendError("vLLM ended a request without an output")
        return final

    async def reset_prefix_cache(self) -> None:
        await self._engine.reset_prefix_cache()

    def shutdown(self) -> None:
        self._engine.shutdown()
