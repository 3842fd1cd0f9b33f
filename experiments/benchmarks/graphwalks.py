"""GraphWalks (openai/graphwalks on the Hub): a list of edges, and the nodes that a walk reaches or a node's parents.

    memagent data --from graphwalks graphwalks.parquet --out graphwalks.parquet

``prompt`` is one text. Its last ``Operation:`` begins the question; the edges before it are the document. Its judge is
the F1 of the nodes in the last line's ``Final Answer: [a, b]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data import Example, Format
from memagent_lib.scoring import AnyAnswer, box_or_all, boxed, overlap_f1

_NODES = re.compile(r"final answer:\s*\[(.*)\]", re.IGNORECASE)


def examples(record: Mapping[str, Any], number: int, path: Path) -> Iterator[Example]:
    """Yield the example of a record. The accepted answer is the list of nodes, such as ``[a, b]``, or ``[]``."""
    prompt = record["prompt"]
    start = prompt.rindex("Operation:")
    nodes = record["answer_nodes"] if "answer_nodes" in record else record["answer"]
    yield Example(
        id=f"graphwalks-{number}",
        task=f"graphwalks/{record['problem_type']}",
        question=prompt[start:].strip(),
        document=prompt[:start].rstrip(),
        answers=(f"[{', '.join(map(str, nodes))}]",),
        rule="graphwalks",
        metadata={"characters": record.get("prompt_chars"), "nodes": len(nodes)},
    )


def named_nodes(reply: str) -> str | None:
    """Return what GraphWalks reads as the list of nodes: the brackets in the last line's ``Final Answer: [a, b]``.

    A box that has no such words is the list itself. Returns ``None`` if there is neither.
    """
    inside = boxed(reply)
    if inside is not None and "final answer:" not in inside.lower():
        return inside.strip().strip("[]")
    found = _NODES.search(box_or_all(reply).split("\n")[-1])
    return found[1] if found else None


def node_f1(found: str, answer: str) -> float:
    """Return GraphWalks' F1 of two sets of nodes. ``answer`` may have brackets. Two empty sets score 1."""
    nodes, accepted = (
        {name.strip() for name in text.split(",") if name.strip()} for text in (found, answer.strip().strip("[]"))
    )
    return 1.0 if not nodes and not accepted else overlap_f1(nodes, accepted)


FORMAT = Format(files="GraphWalks' records", examples=examples)
JUDGES = {"graphwalks": AnyAnswer(named_nodes, node_f1)}
