"""The tokens at which a reply ends, the same for every engine of this machine: evaluation and rollouts stop alike."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

from memagent_lib.tokenizer import Tokenizer


def end_tokens(model: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids at which a reply of ``model`` (a folder or hub name) ends, the likeliest first.

    They are the token after an assistant's text in the chat template, the EOS of the tokenizer, and those that
    ``generation_config.json`` and ``config.json`` state. Published models often state only some of them: with Llama 3's
    base configuration a chat reply would run on after ``<|eot_id|>``.
    """
    return tuple(dict.fromkeys((*tokenizer.end_ids, *_stated(model))))


@lru_cache(maxsize=8)
def _stated(model: str) -> tuple[int, ...]:
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(model)
    sources = [config.get_text_config(), config]
    with suppress(OSError):  # the file is optional
        sources.insert(0, GenerationConfig.from_pretrained(model))
    ids: list[int] = []
    for source in sources:
        eos = getattr(source, "eos_token_id", None)
        if eos is not None:
            ids += eos if isinstance(eos, list | tuple) else [eos]
    return tuple(ids)
