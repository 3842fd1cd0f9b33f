"""``python -m experiments.bench read``: ideas for speed, each beside the way without it, on one engine.

The engine is vLLM over a random model whose size makes prefill and decoding cost what they cost; the result is ratios,
not seconds. Sizes are the published ones scaled down: chunk to memory as 5,000 to 1,024.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from experiments.bench.files import huge, length
from experiments.bench.material import random_model
from experiments.bench.results import Measured
from experiments.bench.turns import Bench, lock_step, order, overhead
from memagent_lib.agent import run_sync
from memagent_lib.backends import Sampling
from memagent_lib.text import Tokenizer

PUBLISHED_RATIO = 5000 / 1024
MEASURES: dict[str, Callable] = {
    "order": order,
    "overhead": overhead,
    "lock_step": lock_step,
    "length": length,
    "huge": huge,
}
KV_CACHE_GB = "3"
BLOCK_TOKENS = 16  # a GPU's; the prefix cache shares whole blocks, and these chunks are small


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBench:
    """What is measured, in tokens and chunks; a ``group`` reads one document, ``concurrent`` readings read one each."""

    chunk_tokens: int = 1000
    chunks: int = 6
    group: int = 16
    concurrent: int = 64
    concurrent_chunks: int = 1
    rounds: int = 2
    engine_lengths: tuple[int, ...] = (16_000, 64_000, 256_000)
    lengths: tuple[int, ...] = (16_000, 64_000, 256_000, 1_000_000, 3_500_000)
    huge_mb: float = 1000
    huge_seconds: float = 60
    width: int = 512
    layers: int = 8
    threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value < (0 if field.name == "seed" else 1):
                raise ValueError(f"{field.name} must be at least 1, got {value}")

    @property
    def memory_tokens(self) -> int:
        return max(8, round(self.chunk_tokens / PUBLISHED_RATIO))

    @property
    def short_memory_tokens(self) -> int:
        """A memory so short that prefill is at least half of a turn."""
        return max(4, self.chunk_tokens // 32)


def bench_read(
    tokenizer: str | Path,
    settings: ReadBench | None = None,
    measures: Iterable[str] = (),
    report: Callable[[str], None] = print,
) -> dict[str, Measured]:
    """Measure what is asked for (all of :data:`MEASURES` unless named), by name. ``tokenizer`` is a model folder."""
    s, wanted = settings or ReadBench(), list(measures) or list(MEASURES)
    if unknown := set(wanted) - set(MEASURES):
        raise ValueError(f"no measure {', '.join(sorted(unknown))}; choose from {', '.join(MEASURES)}")
    from memagent_lib.backends.vllm import VLLM
    from memagent_lib.backends.vllm_thread import environment

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        random_model(tokenizer, folder, s.width, s.layers, 8 * s.chunk_tokens, s.seed)
        with environment(VLLM_CPU_KVCACHE_SPACE=KV_CACHE_GB):
            engine = VLLM(folder, Sampling(temperature=1.0, seed=s.seed), threads=s.threads, block_size=BLOCK_TOKENS)
        try:
            bench = Bench(s, Tokenizer.load(folder), engine, Path(folder))
            for name in wanted:
                measure = MEASURES[name]
                report(f"{name}: {inspect.getdoc(measure)} ...")
                result = measure(bench)
                found[name] = run_sync(result) if inspect.isawaitable(result) else result
        finally:
            run_sync(engine.close())
    return found
