"""MRCR (openai/mrcr on the Hub): a long conversation with several equal requests, one reply to which is the answer.

``prompt`` is a list of messages, as JSON text or as a list. The last message is the question; it requests a prefix of
random characters, without which a reply scores 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example, Span
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, field_of, records

_SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System"}
_SEPARATOR = "\n\n"


def read_mrcr(path: str | Path) -> Iterator[Example]:
    """Yield the examples of a file. Their evidence is the reply that has to be repeated, if it is in the document."""
    for record in records(path, "MRCR's records with prompt, answer and random_string_to_prepend"):
        turns = _turns(record)
        prefix = record.get("random_string_to_prepend", str)
        answer = record.get("answer", str)
        if not answer.startswith(prefix):
            raise ValueError(f"{record.where}: 'answer' must begin with random_string_to_prepend, {prefix!r}")
        document = _SEPARATOR.join(f"{speaker}: {text}" for speaker, text in turns[:-1])
        wanted = answer.removeprefix(prefix)
        start = document.find(wanted)
        needles = record.fields.get("n_needles")
        yield record.example(
            id=f"mrcr-{needles}-{record.number}",
            task=f"mrcr/{needles}_needles",
            question=turns[-1][1],
            document=document,
            answers=(answer,),
            rule=f"mrcr:{prefix}",
            evidence=(Span(start, start + len(wanted)),) if wanted and start >= 0 else (),
            metadata={"characters": record.fields.get("n_chars"), "messages": len(turns)},
        )


def _turns(record: Record) -> Sequence[tuple[str, str]]:
    """Return speaker and text of every message."""
    prompt: Any = record.get("prompt", object)
    if isinstance(prompt, str):
        try:
            prompt = json.loads(prompt)
        except ValueError as error:
            raise ValueError(f"{record.where}: 'prompt' is no JSON list of messages ({error})") from error
    if not isinstance(prompt, list) or len(prompt) < 2:
        raise ValueError(f"{record.where}: 'prompt' must have a conversation and a question, found {prompt!r:.60}")
    turns = []
    for message in prompt:
        role = field_of(message, "role", str, record.where)
        turns.append((_SPEAKERS.get(role, role), field_of(message, "content", str, record.where, may_be_empty=True)))
    return turns


FORMAT = Format(
    name="mrcr",
    files="MRCR's records",
    fields=("prompt", "answer", "random_string_to_prepend"),
    read=read_mrcr,
)
