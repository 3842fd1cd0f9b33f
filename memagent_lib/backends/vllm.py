"""vLLM in this process's own engine: token counts, finish reasons and prefix-cache hits are the engine's.

The same engine that makes verl's rollouts, so training and evaluation sample alike.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

from memagent_lib.backends import BackendError, Completion, Request, Sampling
from memagent_lib.text import looks_like_path

CPU_KV_CACHE_GB = "1"


class VLLM:
    """An engine over a model folder or hub name. ``engine`` options are vLLM's own ``AsyncEngineArgs``."""

    def __init__(self, model: str, sampling: Sampling, *, window: int | None = None, **engine: Any):
        if looks_like_path(model) and not Path(model).is_dir():
            raise FileNotFoundError(f"no model folder {model!r}")
        try:
            os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_KV_CACHE_GB)
            from vllm import AsyncEngineArgs, SamplingParams
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as missing:
            raise ImportError("the vllm backend needs vLLM: pip install 'memagent-lib[cpu]', or [gpu] on a CUDA machine") from missing
        on_cpu = current_platform.is_cpu()
        # Half precision is emulated on most CPUs: slower there and not what the policy was trained in.
        settings = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 256} if on_cpu else {}
        settings |= {"model": model, "enable_prefix_caching": True, "disable_log_stats": True}
        if window is not None:
            settings["max_model_len"] = window
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**(settings | engine)))
        self._params = SamplingParams
        self._sampling = sampling
        self._ids = count()
        self.window = self._engine.model_config.max_model_len

    async def complete(self, request: Request) -> Completion:
        if len(request.ids) + request.max_tokens > self.window:
            raise BackendError(
                f"the prompt is {len(request.ids):,} tokens with a reply of up to {request.max_tokens:,}, and the model's window is {self.window:,}"
            )
        number, sampling = next(self._ids), self._sampling
        seed = None if sampling.seed is None else hash((sampling.seed, request.ids)) & 0x7FFFFFFF
        params = self._params(
            max_tokens=request.max_tokens, temperature=sampling.temperature, top_p=sampling.top_p, seed=seed, output_kind=_final_only()
        )
        final = None
        try:
            async for final in self._engine.generate({"prompt_token_ids": list(request.ids)}, params, f"memagent-{number}"):
                pass
        except (RuntimeError, ValueError) as failure:  # EngineDeadError and EngineGenerateError are RuntimeErrors
            raise BackendError(f"vLLM gave no reply: {failure}") from failure
        said = final.outputs[0]
        return Completion(
            said.text, said.finish_reason, len(request.ids), len(said.token_ids), final.num_cached_tokens or 0, tuple(said.token_ids)
        )

    async def close(self) -> None:
        self._engine.shutdown()


def _final_only() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY
