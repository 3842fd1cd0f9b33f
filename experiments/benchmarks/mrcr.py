"""MRCR (openai/mrcr on the Hub): a long conversation with several equal requests, one reply to which is the answer.

    memagent data --from mrcr 2needle.parquet --out mrcr.parquet

``prompt`` is a list of messages, as JSON text or as a list. The last message is the question; it requests a prefix of
random characters, without which a reply scores 0. The judge ``mrcr:PREFIX`` compares what follows by difflib's ratio.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from memagent_lib.data import Example, Format, Span
from memagent_lib.scoring import AnyAnswer, Rule, box_or_all


def examples(record: Mapping[str, Any], number: int, path: Path) -> Iterator[Example]:
    """Yield the example of a record. Its evidence is the reply that has to be repeated, if it is in the document."""
    prompt = record["prompt"]
    *turns, last = json.loads(prompt) if isinstance(prompt, str) else prompt
    prefix = record["random_string_to_prepend"]
    answer = record["answer"]
    if not answer.startswith(prefix):
        raise ValueError(f"'answer' must begin with random_string_to_prepend, {prefix!r}")
    document = "\n\n".join(f"{turn['role'].capitalize()}: {turn['content']}" for turn in turns)
    wanted = answer.removeprefix(prefix)
    start = document.find(wanted)
    needles = record.get("n_needles")
    yield Example(
        id=f"mrcr-{needles}-{number}",
        task=f"mrcr/{needles}_needles",
        question=last["content"],
        document=document,
        answers=(answer,),
        rule=f"mrcr:{prefix}",
        evidence=(Span(start, start + len(wanted)),) if wanted and start >= 0 else (),
        metadata={"characters": record.get("n_chars"), "messages": len(turns) + 1},
    )


def likeness_after(prefix: str) -> Rule:
    """Return a rule that compares a reply with the answer after ``prefix``, with which both have to begin."""

    def after(reply: str) -> str | None:
        text = box_or_all(reply)
        return text.removeprefix(prefix) if text.startswith(prefix) else None

    return AnyAnswer(after, lambda found, answer: SequenceMatcher(None, found, answer.removeprefix(prefix)).ratio())


FORMAT = Format(files="MRCR's records", examples=examples)
JUDGES = {"mrcr": likeness_after}
