"""Rows with a common beginning, computed once: the rollouts of a group share question and chunk, often memory too.

Rows are laid out as trees of their tokens. A token that several rows share, with everything before it, is one node. A
node attends only to its ancestors, so each row's results are those of the row alone. Knows only tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

SHARED = 0.3  # rows with less in common than this share of the shorter one are better off in separate trees


@dataclass
class Tree:
    """``paths[i]`` are the nodes of row ``rows[i]``, first token first. Nodes are numbered as they were added."""

    rows: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)

    def add(self, row: int, tokens: Sequence[int], shared: int) -> None:
        """Add a row whose first ``shared`` tokens are those of the row before it."""
        new = range(len(self.ids), len(self.ids) + len(tokens) - shared)
        self.rows.append(row)
        self.paths.append([*(self.paths[-1][:shared] if shared else ()), *new])
        self.ids += tokens[shared:]
        self.depths += range(shared, len(tokens))

    def sees(self) -> torch.Tensor:
        """Return which node (row) attends to which (column)."""
        seen = torch.zeros(len(self.ids), len(self.ids), dtype=torch.bool)
        done = 0
        for path in self.paths:
            shared = sum(node < done for node in path)
            end = path[-1] + 1
            if end > done:  # a row that is another's beginning, or the same again, adds no node
                seen[done:end, path[:shared]] = True
                seen[done:end, done:end] = torch.ones(end - done, end - done, dtype=torch.bool).tril()
                done = end
        return seen


def attends_to_everything(config: Any) -> bool:
    """Return whether every layer of a model attends to everything before a token, as trees need it.

    Sliding windows and linear attention do not.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return set(kinds) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


def prefix_trees(rows: Sequence[Sequence[int]], limit: float = math.inf) -> list[Tree]:
    """Put every row in exactly one tree of at most ``limit`` nodes; a longer row is a tree of its own."""
    trees: list[Tree] = []
    before: Sequence[int] = ()
    for row in sorted(range(len(rows)), key=lambda i: list(rows[i])):
        tokens = rows[row]
        shared = _common(before, tokens)
        alone = not trees or shared < SHARED * min(len(before), len(tokens))
        if alone or len(trees[-1].ids) + len(tokens) - shared > limit:
            trees.append(Tree())
            shared = 0
        trees[-1].add(row, tokens, shared)
        before = tokens
    return trees


def micro_batches(trees: Sequence[Tree], limit: int, at_least: int = 1) -> list[list[int]]:
    """Batch the rows of trees of similar size, padded to at most ``limit`` nodes in all; a larger tree is alone."""
    batches: list[list[int]] = []
    width = longest = 0
    for tree in sorted(trees, key=lambda t: -len(t.ids)):
        if not batches or width + longest > limit:
            batches.append([])
            width, longest = 0, len(tree.ids)
        batches[-1] += tree.rows
        width += longest
    while len(batches) < at_least:
        batches.sort(key=len)
        largest = batches.pop()
        if len(largest) < 2:
            raise ValueError(f"{sum(map(len, batches)) + 1} rows cannot be cut into {at_least} micro-batches")
        batches += [largest[::2], largest[1::2]]
    return batches


@dataclass(frozen=True)
class Forest:
    """Trees side by side, (trees, most nodes): the model's inputs, and the nodes of each row."""

    ids: torch.Tensor
    positions: torch.Tensor
    sees: torch.Tensor
    nodes: list[tuple[int, list[int]]]
    """Of each row, in the rows' order: the number of its tree, and its path of nodes."""


def forest(trees: Sequence[Tree]) -> Forest:
    """Lay trees side by side. Padding attends to itself, so that no row of the attention is empty."""
    shape = len(trees), max(len(tree.ids) for tree in trees)
    ids = torch.zeros(shape, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    sees = torch.eye(shape[1], dtype=torch.bool).repeat(shape[0], 1, 1)
    nodes: dict[int, tuple[int, list[int]]] = {}
    for number, tree in enumerate(trees):
        size = len(tree.ids)
        ids[number, :size] = torch.tensor(tree.ids)
        positions[number, :size] = torch.tensor(tree.depths)
        sees[number, :size, :size] = tree.sees()
        nodes.update((row, (number, path)) for row, path in zip(tree.rows, tree.paths, strict=True))
    return Forest(ids, positions, sees, [nodes[row] for row in sorted(nodes)])


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two rows have in common at their beginning."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))
