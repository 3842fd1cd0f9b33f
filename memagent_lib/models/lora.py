"""Merge LoRA adapters into the weights of their model, which gives a plain model with the same outputs; or save them.

Weights have the names that peft gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.paths import apply_umask

if TYPE_CHECKING:
    import torch

PREFIX = "base_model.model."
BASE = ".base_layer."
DOWN = ".lora_A.default.weight"
UP = ".lora_B.default.weight"
WEIGHTS_FILE = "adapter_model.safetensors"  # in the folder of an adapter, as peft names it


def merged_weights(weights: Mapping[str, torch.Tensor], scale: float) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all weights by the plain model's names, with each ``W`` that has an adapter replaced by ``W + scale B A``.

    ``scale`` is alpha / rank (arXiv 2106.09685, equation 3). The product is computed in fp32, then rounded to the
    weight's own type. Sharded weights (``DTensor``) are gathered one at a time.
    """
    for name, weight in weights.items():
        if name.endswith((DOWN, UP)):
            continue
        weight = _whole(weight)
        stem = name.removesuffix(f"{BASE}weight")
        if stem != name:
            change = _whole(weights[stem + UP]).float() @ _whole(weights[stem + DOWN]).float()
            weight = (weight.float() + scale * change).to(weight.dtype)
        yield name.removeprefix(PREFIX).replace(BASE, "."), weight


def _whole(weight: torch.Tensor) -> torch.Tensor:
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def saved_name(name: str) -> str:
    """Return the name of an adapter's weight in peft's files, which leave out the adapter's own name, "default"."""
    return name.replace(".default.", ".")


def save_adapter(weights: Mapping[str, torch.Tensor], rank: int, alpha: float, folder: Path) -> None:
    """Save the adapters among ``weights`` in a new folder that peft, transformers and vLLM load, in bfloat16."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    adapters = {name: weight for name, weight in weights.items() if name.endswith((DOWN, UP))}
    modules = {name.removesuffix(UP).rpartition(".")[2] for name in adapters if name.endswith(UP)}
    folder.mkdir()
    LoraConfig(r=rank, lora_alpha=alpha, target_modules=sorted(modules), task_type="CAUSAL_LM").save_pretrained(folder)
    named = {saved_name(name): weight.bfloat16().contiguous() for name, weight in adapters.items()}
    save_file(named, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    apply_umask(folder)
