"""The wording and sizes of the readings in ``data.traces``, which their journals record, beside those of the recipe.

Lessons from traces take the replies of these readings and the prompts of the recipe. Both may differ on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.prompts import Encoder
from memagent_lib.trace import Kind

COMPARED_SIZES = ("chunk_tokens", "memory_tokens")


def differing_readings(readings: Path, encoder: Encoder, kinds: Iterable[Kind]) -> list[str]:
    """Return a sentence for each way in which ``readings`` were made with other prompts or sizes than ``encoder``'s.

    ``readings`` is a folder of journals, and ``kinds`` are the prompts of the recipe's reader. Files that record no
    settings, such as results without a journal, are passed over.
    """
    kinds = list(kinds)
    identities = [_identity(file) for file in sorted(readings.glob("*.jsonl"))]
    return list(dict.fromkeys(sentence for found in identities for sentence in _differences(found, encoder, kinds)))


def _identity(file: Path) -> Mapping[str, Any]:
    with open(file, encoding="utf-8") as lines:
        try:
            header = json.loads(lines.readline())
        except ValueError:  # reading the results reports a damaged file
            return {}
    return header.get("identity", {})


def _differences(identity: Mapping[str, Any], encoder: Encoder, kinds: Iterable[Kind]) -> Iterable[str]:
    template = identity.get("template", {})
    ours = {kind.name: encoder.template.words(kind) for kind in kinds} | {"empty_memory": encoder.template.empty_memory}
    if any(template.get(name, words) != words for name, words in ours.items()):
        name = f"template {template['name']!r}"
        own = repr(encoder.template.name)
        if template["name"] == encoder.template.name:
            own = f"another version of {own}"
        yield f"{name}, and the recipe teaches with {own} (reading.template)"
    sizes = identity.get("budget", {})
    for size in COMPARED_SIZES:
        own = getattr(encoder.budget, size)
        if sizes.get(size, own) != own:
            yield f"{size} {sizes[size]:,}, and the recipe teaches with {own:,} (reading.{size})"
