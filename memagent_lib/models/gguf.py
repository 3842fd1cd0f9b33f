"""GGUF files, the format of llama.cpp, converted once to a folder that every backend loads.

transformers converts the weights. It ignores how the file splits text into words (``tokenizer.ggml.pre``) and scaled
positions, which gives another model without an error, so the tokenizer is made here and scaled positions are refused.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from memagent_lib.models.cache import ModelError, cache_folder, file_hash, made_once, write_source

FLOAT32_BELOW = 1_000_000_000
"""Below this number of parameters, a folder has float32 weights, the exact values of the file; from it on, bfloat16."""
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{digits}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"llama-bpe": _WORDS.replace("{digits}", "{1,3}"), "qwen2": _WORDS.replace("{digits}", "")}
"""The pattern of words in the models' own ``tokenizer.json``. SmolLM has GPT-2's, with every digit apart."""

SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}

# llama.cpp's numbers for kinds of tokens (llama_token_type).
CONTROL = 3
USER_DEFINED = 4


def converted(file: Path) -> Path:
    """Return the folder made from a GGUF file, in the cache under the file's name and hash.

    Raises :class:`ModelError` if the file is one part of several, scales its positions, or has an unknown tokenizer.
    """
    sha256 = file_hash(file)
    return made_once(cache_folder() / f"{file.stem}-{sha256[:12]}", lambda part: _convert(file, sha256, part))


def _convert(file: Path, sha256: str, part: Path) -> None:
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM

    reader = GGUFReader(file)
    wrong = ""
    if _value(reader, "split.count", 1) > 1:
        wrong = "is one part of several"
    scaling = _value(reader, f"{_value(reader, 'general.architecture')}.rope.scaling.type", "none")
    if scaling != "none" or any(tensor.name.startswith("rope_f") for tensor in reader.tensors):
        wrong = "scales its positions"
    if _value(reader, "tokenizer.ggml.pre") not in ("smollm", *PATTERNS):
        wrong = f"has a tokenizer other than smollm, {', '.join(PATTERNS)}"
    if wrong:
        raise ModelError(
            f"{file.name} {wrong}, which cannot be converted; use the model's Hugging Face folder, or serve the file "
            "with llama.cpp and --backend openai"
        )
    print(f"converting {file.name} once", file=sys.stderr, flush=True)
    _save_tokenizer(reader, part)
    parameters = sum(math.prod(map(int, tensor.shape)) for tensor in reader.tensors)
    dtype = "float32" if parameters < FLOAT32_BELOW else "bfloat16"
    AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype).save_pretrained(part)
    write_source(part, file=file.name, sha256=sha256)


def _save_tokenizer(reader: Any, part: Path) -> None:
    """Save the byte-level BPE tokenizer that the file describes, with its chat template."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = _value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in _value(reader, "tokenizer.ggml.merges")]
    pre = _value(reader, "tokenizer.ggml.pre")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    words = pre_tokenizers.Digits(individual_digits=True)
    if pre in PATTERNS:
        words = pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in PATTERNS)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, in_bytes])
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    kinds = zip(tokens, _value(reader, "tokenizer.ggml.token_type"), strict=True)
    apart = [(token, kind == CONTROL) for token, kind in kinds if kind in (CONTROL, USER_DEFINED)]
    backend.add_tokens([AddedToken(token, normalized=False, special=special) for token, special in apart])
    numbers = {name: _value(reader, f"tokenizer.ggml.{key}_token_id") for name, key in SPECIAL_TOKENS.items()}
    special = {name: tokens[number] for name, number in numbers.items() if number is not None}
    made = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **special)
    made.chat_template = _value(reader, "tokenizer.chat_template")
    made.save_pretrained(part)


def _value(reader: Any, name: str, default: Any = None) -> Any:
    field = reader.get_field(name)
    return default if field is None else field.contents()
