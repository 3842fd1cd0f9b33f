"""MemoryAgentBench (Hu et al. 2025, arXiv 2507.05257, ai-hyz/MemoryAgentBench): many questions about one context.

    memagent data --from memoryagentbench Conflict_Resolution.parquet source=factconsolidation --out facts.parquet

A record has a ``context``, the lists ``questions`` and ``answers``, and the name of its data set in ``metadata``. Each
question is an example, so the context is read once for each. A box counts as the reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data import Example, Format, accepted_answers
from memagent_lib.scoring import AnyAnswer, box_or_all, normalise

RULES = {
    "ruler_niah": "match_all",
    "ruler_qa": "memoryagentbench/substring",
    "eventqa": "match_all",
    "factconsolidation": "memoryagentbench/substring",
    "icl_": "memoryagentbench/exact",
    "detective_qa": "memoryagentbench/exact",
    "longmemeval": "contains",
    "infbench_sum": "longbench/rouge_l",
}
"""The judge of each data set, by the beginning of its name."""
_INSTRUCTIONS = {
    "icl_": "The document shows texts, each with the number of its label. Which number has the label of this text? "
    "Answer with the number only.",
    "factconsolidation": "The document's facts are numbered. Where two contradict each other, the one with the larger "
    "number is true. Answer from these facts alone, even if they are not so in the real world.",
}
"""Instructions in our own words, for data sets whose questions lack what the benchmark's own prompts add to them."""


def examples(record: Mapping[str, Any], number: int, path: Path, source: str = "") -> Iterator[Example]:
    """Yield the examples of a record whose data set's name contains ``source``.

    Raises ``ValueError`` for recsys_redial, whose answers are numbers of films in a file that the records lack.
    """
    metadata = record["metadata"]
    name = metadata["source"]
    if source not in name:
        return
    rule = next((rule for begin, rule in RULES.items() if name.startswith(begin)), None)
    if rule is None:
        raise ValueError(f"no judge for {name}; choose other records with source=, such as source=icl")
    instruction = next((text for begin, text in _INSTRUCTIONS.items() if name.startswith(begin)), "")
    kinds = metadata.get("question_types") or []
    for at, (question, accepted) in enumerate(zip(record["questions"], record["answers"], strict=True)):
        yield Example(
            id=f"{name}-{number}-{at + 1}",
            task=f"memoryagentbench/{name}",
            question=f"{instruction}\n\n{question.strip()}".strip(),
            document=record["context"],
            answers=accepted_answers(accepted),
            rule=rule,
            metadata={"context": number, "category": kinds[at] if at < len(kinds) else name},
        )


def exact_match(found: str, answer: str) -> bool:
    """Return whether a reply, or what it has after its first ``Answer:``, equals an answer in SQuAD's normal form.

    Without ``Answer:`` the first line counts as well.
    """
    line = re.search(r"answer:(.*)(?:\n|$)", found, re.IGNORECASE)
    part = line[1] if line else found.split("\n")[0]
    part = re.sub("^answer:", "", part.strip(), flags=re.IGNORECASE)
    return normalise(answer) in (normalise(found), normalise(part))


NOTE = "MemoryAgentBench judges longmemeval and infbench_sum by a model: memagent evaluate --judge"
FORMAT = Format(files="MemoryAgentBench's records", examples=examples, note=NOTE)
JUDGES = {
    "memoryagentbench/substring": AnyAnswer(box_or_all, lambda found, answer: normalise(answer) in normalise(found)),
    "memoryagentbench/exact": AnyAnswer(box_or_all, exact_match),
}
