"""Which backend reads one document where none is named."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from pocket import TRAINED

from memagent_lib.backends import Sampling, backend_for_one_reading, open_backend, opening
from memagent_lib.backends.opening import SMALL_MODEL_MB


def test_only_small_folders_without_a_gpu_skip_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    folder = str(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert backend_for_one_reading(folder) == "transformers"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert backend_for_one_reading(folder) == "vllm"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    os.truncate(weights, SMALL_MODEL_MB * 1_000_000 + 1)
    assert backend_for_one_reading(folder) == "vllm"
    weights.rename(tmp_path / "adapter_model.safetensors")  # as small as it may be, its base model is not
    os.truncate(tmp_path / "adapter_model.safetensors", 1)
    assert backend_for_one_reading(folder) == "vllm"
    assert backend_for_one_reading("organisation/model") == "vllm"


def test_a_small_model_has_one_thread_unless_a_number_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    assert open_backend("transformers", str(TRAINED)).threads == 1
    assert open_backend("transformers", str(TRAINED), threads=2).threads == 2
    monkeypatch.setattr(opening, "SMALL_MODEL_MB", 0)
    assert open_backend("transformers", str(TRAINED)).threads is None


@pytest.mark.parametrize("temperature", [-0.1, math.nan, math.inf])
def test_a_temperature_that_no_engine_has_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match=f"temperature must be at least 0, got {temperature}"):
        Sampling(temperature=temperature)
