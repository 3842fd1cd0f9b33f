"""Measure how much each idea for speed saves, on one engine: ``python -m experiments.studies.speed read``.

The engine is vLLM with a random model, so results are ratios rather than seconds. Sizes are scaled down, but chunk and
memory have the published proportion, 5,000 to 1,024.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.studies.speed.cost import cost
from experiments.studies.speed.files import huge, length
from experiments.studies.speed.material import random_policy
from experiments.studies.speed.results import Measured
from experiments.studies.speed.turns import Bench, order, overhead
from memagent_lib.agent import run_sync
from memagent_lib.backends import Sampling
from memagent_lib.text import Tokenizer

PUBLISHED_RATIO = 5000 / 1024
MEASURES: dict[str, Callable] = {
    "order": order,
    "overhead": overhead,
    "length": length,
    "huge": huge,
    "cost": cost,
}
SHAPES = {  # the sizes that determine the engine's arithmetic, from the models' own config.json
    "qwen2.5-7b": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
}
KV_CACHE_BYTES = 3 << 30  # enough for a group of 16 with full memories
BLOCK_TOKENS = 16  # as on a GPU; the prefix cache shares only whole blocks, and these chunks are small


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBench:
    """Sizes in tokens and chunks. A ``group`` of readings shares one document; ``concurrent`` readings have one each.

    The model has random weights. Its size is ``width`` and ``layers``, or a ``shape`` from :data:`SHAPES`. ``model``
    provides the tokenizer. ``measures`` are names from :data:`MEASURES`; if it is empty, all of them are run.
    """

    chunk_tokens: int = 1000
    chunks: int = 6
    group: int = 16
    concurrent: int = 64
    concurrent_chunks: int = 1
    rounds: int = 2
    engine_lengths: tuple[int, ...] = (16_000, 64_000, 256_000)
    full_lengths: tuple[int, ...] = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000)
    lengths: tuple[int, ...] = (16_000, 64_000, 256_000, 1_000_000, 3_500_000)
    huge_mb: float = 1000
    huge_seconds: float = 60
    width: int = 512
    layers: int = 8
    shape: str = ""
    threads: int = 1
    seed: int = 0
    model: str = "experiments/pocket/warm_start"
    measures: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = set(self.measures) - set(MEASURES)
        if unknown:
            raise ValueError(f"no measure {', '.join(sorted(unknown))}; choose from {', '.join(MEASURES)}")

    @property
    def memory_tokens(self) -> int:
        return max(8, round(self.chunk_tokens / PUBLISHED_RATIO))

    @property
    def short_memory_tokens(self) -> int:
        """The length of a memory that is so short that prefill takes at least half of a turn."""
        return max(4, self.chunk_tokens // 32)


def bench_read(settings: ReadBench, report: Callable[[str], None] = print) -> dict[str, Measured]:
    """Run the chosen measures and return their results by name."""
    s = settings
    wanted = settings.measures or tuple(MEASURES)
    from memagent_lib.backends.vllm import VLLM

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        window = 2 * max(s.full_lengths) if "cost" in wanted else 0
        options = _model(folder, s, max(window, 8 * s.chunk_tokens))
        options |= {"kv_cache_memory_bytes": KV_CACHE_BYTES, "block_size": BLOCK_TOKENS}
        engine = VLLM(folder, Sampling(temperature=1.0, seed=s.seed), threads=s.threads, **options)
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


def _model(folder: str, s: ReadBench, window: int) -> dict[str, Any]:
    """Write the model's folder, and return further options of the engine.

    A large model gets no weights in its folder, because speed does not depend on them.
    """
    if not s.shape:
        random_policy(s.model, folder, s.width, s.layers, window, s.seed)
        return {}
    from transformers import AutoTokenizer, Qwen2Config

    words = AutoTokenizer.from_pretrained(s.model)
    sizes = SHAPES[s.shape] | {"vocab_size": len(words), "max_position_embeddings": window}
    ends = {"bos_token_id": None, "eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id}
    Qwen2Config(**sizes, **ends, architectures=["Qwen2ForCausalLM"], dtype="bfloat16").save_pretrained(folder)
    words.save_pretrained(folder)
    return {"load_format": "dummy"}
