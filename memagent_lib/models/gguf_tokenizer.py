"""Tokenizer files from the header of a GGUF file, with the ids of the tokenizer that the file was made from.

A GGUF file names how text is split into words before the merges (``tokenizer.ggml.pre``) instead of storing it. The
patterns are those of the models' own ``tokenizer.json``; a name that is not listed is refused, because other words
give other ids, and no error would tell.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memagent_lib.models.model_cache import ModelError
from memagent_lib.paths import write_atomically

# llama.cpp's numbers for kinds of tokens (llama_token_type).
_CONTROL = 3
_USER_DEFINED = 4
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{end}|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{end}"
)
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_THREE_DIGITS = f"{_CONTRACTIONS}|{_LETTERS}|\\p{{N}}{{1,3}}|{_REST}"
_ONE_DIGIT = f"{_CONTRACTIONS}|{_LETTERS}|\\p{{N}}|{_REST}"
_TEKKEN = f"{_CASED.replace('{end}', '')}|\\p{{N}}|{_CASED_REST}"
_O200K = f"{_CASED.replace('{end}', _CONTRACTIONS + '?')}|\\p{{N}}{{1,3}}|{_CASED_REST}"
PATTERNS = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "olmo"), ""),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe", "falcon3"), _THREE_DIGITS),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _ONE_DIGIT),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _O200K),
}
"""The pattern of words by the name in the file: ``""`` is GPT-2's own, ``digits`` GPT-2's with every digit apart."""
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken", "gpt-4o", "llama4")
"""A word that is a token stays one, even if no merges lead to it."""
_NORMALIZED = ("qwen2", "deepseek-r1-qwen")


def write_tokenizer(reader: Any, folder: Path, file: Path) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and, if the file has one, ``chat_template.jinja``.

    Raises :class:`ModelError` for a kind of tokenizer whose ids would not be those of the original.
    """
    kind = _value(reader, "tokenizer.ggml.model", "")
    pre = _value(reader, "tokenizer.ggml.pre", "default")
    tokens = _value(reader, "tokenizer.ggml.tokens", [])
    if kind == "gpt2" and pre in PATTERNS:
        tokenizer = _byte_level(reader, tokens, pre)
    elif kind == "llama":
        tokenizer = _sentence_piece(reader, tokens)
    else:
        raise ModelError(
            f"{file.name} has the tokenizer {kind!r} with the words of {pre!r}, which cannot be made from the file "
            f"(known are llama, and gpt2 with {', '.join(sorted(PATTERNS))}); use the model's Hugging Face folder, or "
            "serve the file with llama.cpp and --backend openai"
        )
    special = _special_tokens(reader, tokens)
    _add_tokens(tokenizer, reader, tokens)
    # llama.cpp's own defaults, for a file that does not state whether a BOS comes first.
    begins = kind == "llama" or pre in ("llama-bpe", "llama3", "llama-v3")
    if _value(reader, "tokenizer.ggml.add_bos_token", begins) and "bos_token" in special:
        _begin_with(tokenizer, special["bos_token"])
    tokenizer.save(str(folder / "tokenizer.json"))
    context = _value(reader, f"{_value(reader, 'general.architecture', '')}.context_length", None)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        **special,
    }
    write_atomically(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
    chat_template = _value(reader, "tokenizer.chat_template", "")
    if chat_template:
        write_atomically(folder / "chat_template.jinja", chat_template)


def _byte_level(reader: Any, tokens: list[str], pre: str) -> Any:
    """Build a byte-level BPE tokenizer, as GPT-2, Llama 3, Qwen and SmolLM have."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    merges = [tuple(merge.split(" ", 1)) for merge in _value(reader, "tokenizer.ggml.merges", [])]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in _WHOLE_WORDS))
    pattern = PATTERNS[pre]
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern in ("", "digits"))]
    if pattern == "digits":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif pattern:
        steps.insert(0, pre_tokenizers.Split(Regex(pattern), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if pre in _NORMALIZED:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _sentence_piece(reader: Any, tokens: list[str]) -> Any:
    """Build SentencePiece's BPE, as Llama 2, Mistral 7B and Gemma have. Its merges follow from the tokens' scores."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {token: number for number, token in enumerate(tokens)}
    scores = _value(reader, "tokenizer.ggml.scores", [])
    # As transformers converts such tokenizers: by score, and equal scores in the order of the vocabulary.
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(score, pair) for pair in known]
    merges.sort(key=lambda merge: merge[0], reverse=True)
    unknown = _value(reader, "tokenizer.ggml.unknown_token_id", None)
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            [pair for _, pair in merges],
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaced = _value(reader, "tokenizer.ggml.add_space_prefix", True)
    mark = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), mark]) if spaced else mark
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if spaced:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _special_tokens(reader: Any, tokens: list[str]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    numbers = {name: _value(reader, f"tokenizer.ggml.{key}_token_id", None) for name, key in keys.items()}
    return {name: tokens[number] for name, number in numbers.items() if number is not None}


def _add_tokens(tokenizer: Any, reader: Any, tokens: list[str]) -> None:
    """Mark the tokens that the merges must not touch. Control tokens are special, a user's own are not."""
    from tokenizers import AddedToken

    kinds = _value(reader, "tokenizer.ggml.token_type", [])
    # In one call: each builds the search for all added tokens anew, and Gemma has thousands of them.
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind == _CONTROL)
            for token, kind in zip(tokens, kinds, strict=False)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )


def _begin_with(tokenizer: Any, bos: str) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )


def _value(reader: Any, name: str, default: Any) -> Any:
    field = reader.get_field(name)
    return default if field is None else field.contents()
