"""Offsets of the tokens of a byte-level tokenizer, from the tokens' lengths alone.

Without tracking offsets, the tokenizers package encodes a long text in two thirds of the time. Each token of a
byte-level tokenizer stands for a fixed number of bytes, so the offsets follow from the ids. This module does not depend
on chat templates, prompts or models.
"""

from __future__ import annotations

import json
import unicodedata
from array import array
from typing import Any

import numpy as np

_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


class ByteLevel:
    """A byte-level tokenizer, such as Qwen's, Llama 3's or GPT-2's, that encodes long texts without tracking offsets.

    ``form`` is the Unicode normal form into which it brings a text before it encodes it, or "".
    """

    def __init__(self, backend: Any, form: str) -> None:
        self._backend = backend
        self._form = form
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self._bytes = np.zeros(max(vocabulary.values()) + 1, np.uint32)
        # The byte-level alphabet has one character for each byte.
        self._bytes[list(vocabulary.values())] = list(map(len, vocabulary))

    @classmethod
    def of(cls, backend: Any) -> ByteLevel | None:
        """Return the tokenizer as a byte-level one, or ``None`` if its offsets may not follow from its tokens."""
        model = backend.model
        steps = _steps(backend.pre_tokenizer)
        form = "".join(step["type"] for step in _steps(backend.normalizer))
        is_exact = (
            type(model).__name__ == "BPE"
            and not (model.continuing_subword_prefix or model.end_of_word_suffix or model.byte_fallback)
            and bool(steps)
            and steps[-1]["type"] == "ByteLevel"
            and not steps[-1]["add_prefix_space"]
            and form in ("", *_FORMS)
            and not any(step.get("trim_offsets") for step in _steps(backend.post_processor))
        )
        return cls(backend, form) if is_exact else None

    def encode(self, text: str) -> tuple[array[int], array[int]] | None:
        """Return token ids and the character offset at which each token starts; ``None`` if the tokens do not add up.

        They do not if the tokenizer changes the text before it encodes it.
        """
        if self._form and not unicodedata.is_normalized(self._form, text):
            return None
        ids = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        sizes = self._bytes[ids]
        ends = np.cumsum(sizes, dtype=np.uint32)
        data = text.encode()
        if not ids or ends[-1] != len(data):
            return None
        starts = ends - sizes
        if len(data) > len(text):
            # In UTF-8, all bytes of a character but its first begin with the bits 10.
            is_first = np.frombuffer(data, np.uint8) & 0xC0 != 0x80
            starts = (np.cumsum(is_first, dtype=np.uint32) - 1)[starts]
        return array("I", ids), array("I", starts.astype(np.uint32).tobytes())


def _steps(component: Any) -> list[dict[str, Any]]:
    """Return the steps of a part of a tokenizer, each with its type and settings."""
    if component is None:
        return []
    table = json.loads(component.__getstate__())
    nested = table.get("pretokenizers") or table.get("normalizers") or table.get("processors")
    return nested if table["type"] == "Sequence" else [table]
