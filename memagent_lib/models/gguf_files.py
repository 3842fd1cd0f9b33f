"""GGUF files, the format of llama.cpp, converted once to a folder that every backend and the trainer load.

``transformers`` converts the weights; the tokenizer is made by :mod:`memagent_lib.models.gguf_tokenizer`, because
transformers ignores how the file splits text into words and takes the beginning-of-text token for the end. All that can
be refused is refused from the file's header, before a weight is read.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from memagent_lib.models.gguf_tokenizer import write_tokenizer
from memagent_lib.models.model_cache import (
    PROCESS_BYTES,
    SOURCE_FILE,
    ModelError,
    cache_folder,
    file_hash,
    made_once,
    require_disk,
    require_memory,
)
from memagent_lib.paths import write_atomically

FLOAT32_BELOW = 1_000_000_000
"""Below this number of parameters, a folder has float32 weights, the exact values of the file; from it on, bfloat16."""
LLAMA3_TRAINED_WINDOW = 8192
_SPLIT = "split.count"


def converted(file: Path) -> Path:
    """Return the folder made from a GGUF file, in the cache under the file's name and hash.

    Raises :class:`ModelError` if the file is no GGUF file, is one part of several, has an architecture, a tokenizer or
    a scaling of positions that cannot be converted, or needs more memory or disk than is free.
    """
    sha256 = file_hash(file)
    folder = cache_folder() / f"{file.stem}-{sha256[:12]}"
    return made_once(folder, lambda part: _convert(file, sha256, part, folder))


def _convert(file: Path, sha256: str, part: Path, folder: Path) -> None:
    reader = _header(file)
    architecture = _require_convertible(reader, file)
    parameters = sum(math.prod(map(int, tensor.shape)) for tensor in reader.tensors)
    small = parameters < FLOAT32_BELOW
    weights_bytes = parameters * (4 if small else 2)
    require_disk(weights_bytes + 20_000_000, file.name)
    require_memory(2 * weights_bytes + PROCESS_BYTES, f"converting {file.name}")
    write_tokenizer(reader, part, file)
    print(
        f"converting {file.name} ({architecture}, {parameters / 1e6:,.0f}M parameters) once, to {folder}",
        file=sys.stderr,
        flush=True,
    )
    _write_weights(file, part, "float32" if small else "bfloat16")
    scaling = _llama3_scaling(reader)
    if scaling:
        config = json.loads((part / "config.json").read_text(encoding="utf-8"))
        write_atomically(part / "config.json", json.dumps(config | {"rope_parameters": scaling}, indent=2) + "\n")
    quantization = Counter(tensor.tensor_type.name for tensor in reader.tensors).most_common(1)[0][0]
    source = {
        "file": file.name,
        "sha256": sha256,
        "name": _text(reader, "general.name"),
        "licence": _text(reader, "general.license"),
        "quantization": quantization,
    }
    write_atomically(part / SOURCE_FILE, json.dumps(source, indent=2) + "\n")


def _header(file: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as missing:
        raise ImportError("GGUF files need the package gguf; install it with: pip install gguf") from missing
    with open(file, "rb") as content:
        magic = content.read(4)
    if magic != b"GGUF":
        raise ModelError(f"{file} is no GGUF file: it begins with {magic!r}, not b'GGUF'; download it again")
    try:
        return GGUFReader(file)
    except Exception as broken:  # numpy's and the reader's own errors have no common base
        raise ModelError(f"{file} is broken or cut short ({type(broken).__name__}: {broken}); download it again") from (
            broken
        )


def _require_convertible(reader: Any, file: Path) -> str:
    """Return the file's architecture. Raises :class:`ModelError` if transformers cannot read it faithfully."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    architecture = _text(reader, "general.architecture")
    readable = set(GGUF_SUPPORTED_ARCHITECTURES) - {"general", "tokenizer"}  # these two are groups of keys
    known = {name.replace("_", "").replace("-", "") for name in readable}
    if architecture.replace("_", "").replace("-", "") not in known:
        raise ModelError(
            f"{file.name} has the architecture {architecture!r}, which transformers cannot read from GGUF files "
            f"(it reads {', '.join(sorted(readable))}); use the model's Hugging Face folder, or "
            "serve the file with llama.cpp and --backend openai"
        )
    parts = reader.get_field(_SPLIT)
    if parts is not None and int(parts.contents()) > 1:
        raise ModelError(f"{file.name} is one of {parts.contents()} parts; join them with llama-gguf-split --merge")
    scaling = reader.get_field(f"{architecture}.rope.scaling.type")
    scaled = scaling is not None and scaling.contents() not in ("", "none")
    by_length = any(tensor.name.startswith("rope_factors_") for tensor in reader.tensors)  # Phi 3's, short and long
    unknown = _position_factors(reader) is not None and _llama3_scaling(reader) is None
    if architecture != "gpt-oss" and (scaled or by_length or unknown):
        raise ModelError(
            f"{file.name} scales its positions (rope_freqs, rope_factors or rope.scaling) in a way that transformers "
            "does not read from GGUF files; use the model's Hugging Face folder, or serve the file with llama.cpp and "
            "--backend openai"
        )
    return architecture


def _position_factors(reader: Any) -> list[float] | None:
    """Return the factors by which the file stretches the wavelengths of positions, or ``None`` if it has none."""
    tensor = next((one for one in reader.tensors if one.name == "rope_freqs.weight"), None)
    return None if tensor is None else [float(factor) for factor in tensor.data]


def _llama3_scaling(reader: Any) -> dict[str, Any] | None:
    """Return Llama 3.1's scaling of positions in transformers' words; ``None`` unless the file's factors are its own.

    The file has only the factors that follow from the scaling, which transformers ignores. Long prompts would be read
    with other positions than the model was trained with, and nothing would fail.
    """
    factors = _position_factors(reader)
    theta = reader.get_field("llama.rope.freq_base")
    if not factors or theta is None:
        return None
    base = float(theta.contents())
    largest = max(factors)
    found = {
        "rope_type": "llama3",
        "rope_theta": base,
        "factor": largest,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": LLAMA3_TRAINED_WINDOW,
    }
    for number, factor in enumerate(factors):
        wavelength = 2 * math.pi * base ** (number / len(factors))
        turns = LLAMA3_TRAINED_WINDOW / wavelength  # in the window of pre-training: 1 and fewer are stretched whole
        smooth = min(1.0, max(0.0, (turns - 1.0) / 3.0))
        if not math.isclose(factor, 1 / ((1 - smooth) / largest + smooth), rel_tol=1e-3):
            return None
    return found


def _write_weights(file: Path, folder: Path, dtype: str) -> None:
    from transformers import AutoModelForCausalLM, modeling_gguf_pytorch_utils
    from transformers.utils.logging import disable_progress_bar

    if not sys.stderr.isatty():
        disable_progress_bar()
        modeling_gguf_pytorch_utils.tqdm = lambda tensors, **_: tensors  # a bar of its own, without a switch
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=dtype)
    model.save_pretrained(folder)


def _text(reader: Any, name: str) -> str:
    field = reader.get_field(name)
    return "" if field is None else str(field.contents())
