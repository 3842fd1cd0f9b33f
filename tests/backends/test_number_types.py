"""The type of numbers that a CPU computes in: with transformers as stored, or float32 where it would emulate that type.

With vLLM, and so in rollouts, bfloat16 where the processor has it and the model is large enough to gain from it.
"""

import shutil
from dataclasses import replace

import pytest

from memagent_lib.agent import run_sync
from memagent_lib.backends import open_backend, shape_of
from memagent_lib.backends import transformers as backend_module

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU weights are used as they are stored")


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def half_model(request, model_folder, tmp_path_factory) -> tuple[str, str]:
    """A model folder with weights of two bytes, and what they are."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp(request.param) / "model"
    shutil.copytree(model_folder, folder)
    AutoModelForCausalLM.from_pretrained(model_folder, dtype=request.param).save_pretrained(folder)
    return str(folder), request.param


def computed_in(model: str) -> str:
    backend = open_backend("transformers", model, threads=1)
    run_sync(backend.close())
    return str(backend.model.dtype).removeprefix("torch.")


def test_emulated_types_are_widened_to_float32(half_model, processor):
    processor("fpu avx2")
    assert computed_in(half_model[0]) == "float32"


def test_types_in_hardware_are_used_as_they_are(half_model, processor):
    processor("fpu avx2 avx512_bf16 avx512_fp16")
    assert computed_in(half_model[0]) == half_model[1]


def test_weights_without_room_in_float32_stay_as_they_are(half_model, processor, monkeypatch):
    processor("fpu avx2")
    monkeypatch.setattr(backend_module, "free_bytes", lambda: 1000.0)
    assert computed_in(half_model[0]) == half_model[1]


@pytest.mark.parametrize(
    ("flags", "parameters", "dtype"),
    [
        ("avx512_bf16", 135_000_000, "bfloat16"),
        ("avx2", 135_000_000, "float32"),
        ("avx512_bf16", 800_000, "float32"),
    ],
)
def test_vllm_samples_from_a_large_model_in_half_precision(flags, parameters, dtype, model_folder, processor):
    processor(f"fpu {flags}")
    assert replace(shape_of(model_folder), parameters=parameters).cpu_dtype == dtype
