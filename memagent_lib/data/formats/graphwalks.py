"""GraphWalks (openai/graphwalks on the Hub): a list of edges, and the nodes that a walk reaches or a node's parents.

``prompt`` is one text. Its last ``Operation:`` begins the question; the edges before it are the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import records

_OPERATION = "Operation:"
_NODES = "answer_nodes"


def read_graphwalks(path: str | Path) -> Iterator[Example]:
    """Yield the examples of a file. The accepted answer is the list of nodes, such as ``[a, b]``, or ``[]``."""
    for record in records(path, "GraphWalks' records with prompt, answer_nodes and problem_type"):
        prompt = record.get("prompt", str)
        start = prompt.rfind(_OPERATION)
        if start < 0:
            raise ValueError(f"{record.where}: 'prompt' has no {_OPERATION!r}, with which GraphWalks' question begins")
        nodes = record.get(_NODES, list, "answer")
        yield record.example(
            id=f"graphwalks-{record.number}",
            task=f"graphwalks/{record.get('problem_type', str)}",
            question=prompt[start:].strip(),
            document=prompt[:start].rstrip(),
            answers=(f"[{', '.join(map(str, nodes))}]",),
            rule="graphwalks",
            metadata={"characters": record.fields.get("prompt_chars"), "nodes": len(nodes)},
        )


FORMAT = Format(
    name="graphwalks",
    files="GraphWalks' records",
    fields=("prompt", "problem_type"),
    fits=lambda fields: _NODES in fields or "answer" in fields,
    read=read_graphwalks,
)
