"""vLLM in this process. Token counts, finish reasons and prefix-cache hits come from the engine.

This is the engine that makes verl's rollouts, so training and evaluation sample replies in the same way. On a GPU the
engine runs in its own processes (``AsyncLLM``). On a CPU it runs in one thread of this process, because messages
between processes would cost more than a small model's arithmetic, and every process would import vLLM again.
"""

from __future__ import annotations

import os
from copy import copy
from itertools import count
from typing import Any

from memagent_lib.backends.interface import BackendError, BackendUnavailable, Sampling, require_room
from memagent_lib.backends.model_shape import config_of, end_tokens, kv_bytes
from memagent_lib.backends.vllm_engines import ThreadEngine
from memagent_lib.prompts import Request
from memagent_lib.tokenizer import Tokenizer
from memagent_lib.trace import Reply

CPU_KV_CACHE_BYTES = 1 << 30
KV_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
SPARE_TOKENS = 128  # the cache is cut into blocks, and one of them holds nothing
CPU_SETTINGS = {
    "dtype": "float32",  # half precision is emulated on most CPUs: slower there and not what the policy was trained in
    "enforce_eager": True,  # compiling takes longer to start than it saves on most jobs; measured 13 % faster turns
    "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
    "max_num_seqs": 256,
    "block_size": 32,  # the CPU's default of 128 would share no prefix shorter than that
    # A step that holds part of a seeded prompt kills vLLM's CPU engine ("CPU Generator does not use offset"), so none
    # is split.
    "enable_chunked_prefill": False,
}


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
                raise BackendUnavailable(
                    f"vLLM's engine has ended ({failure}); run the same command again"
                ) from failure
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
        return ThreadEngine(settings | CPU_SETTINGS | cpu_cache(model, window, needed_window) | options, threads)
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**settings | options))


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
        token_bytes = 2 * kv_bytes(config)  # in float32
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
