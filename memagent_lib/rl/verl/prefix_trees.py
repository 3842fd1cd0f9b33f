"""Lay out rows with a common beginning as trees, so that the model computes the common part once.

The rollouts of a group share question and chunk, and often the memory. Each token is a node; rows share a node if they
agree up to and including that token. A node attends only to its ancestors, so every row's results are the same as
without sharing. The functions here depend only on tokens.
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
    """A tree of tokens. ``paths[i]`` lists the nodes of row ``rows[i]`` from its first token to its last.

    Nodes are numbered in the order of addition: node ``k`` has the token ``ids[k]`` and is token ``depths[k]`` of its
    rows, counted from 0. ``new[i]`` is how many nodes at the end of ``paths[i]`` no earlier path has.
    """

    rows: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    new: list[int] = field(default_factory=list)

    def add(self, row: int, tokens: Sequence[int], shared: int) -> None:
        """Add a row whose first ``shared`` tokens equal those of the row added before it."""
        added = range(len(self.ids), len(self.ids) + len(tokens) - shared)
        self.rows.append(row)
        self.paths.append([*(self.paths[-1][:shared] if shared else ()), *added])
        self.new.append(len(added))
        self.ids += tokens[shared:]
        self.depths += range(shared, len(tokens))


def attends_to_everything(config: Any) -> bool:
    """Return whether every layer of a model attends to all earlier tokens, as trees require.

    A layer with a sliding window or linear attention does not.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return set(kinds) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


def prefix_trees(rows: Sequence[Sequence[int]], limit: float = math.inf) -> list[Tree]:
    """Group rows into trees of at most ``limit`` nodes. A row longer than ``limit`` becomes a tree by itself."""
    trees: list[Tree] = []
    before: Sequence[int] = ()
    # Sorted by their tokens, so that rows with a long common prefix are neighbours.
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
    """Return micro-batches as lists of row numbers, each with the rows of trees of similar size.

    Padded to its largest tree, a micro-batch has at most ``limit`` nodes; a larger tree is a micro-batch by itself.
    ``at_least`` is the minimum number of micro-batches; raises ``ValueError`` if there are fewer rows.
    """
    batches: list[list[int]] = []
    width = longest = 0
    # Largest first, so that the trees of a batch have similar sizes and padding is small.
    for tree in sorted(trees, key=lambda t: -len(t.ids)):
        if not batches or width + longest > limit:
            batches.append([])
            width = 0
            longest = len(tree.ids)
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
    """Several trees as one padded batch of the model's inputs.

    ``ids`` and ``positions`` have the shape (trees, nodes of the largest tree).
    """

    ids: torch.Tensor
    positions: torch.Tensor
    nodes: list[tuple[int, list[int]]]
    """For each row, in the rows' order: the number of its tree, and its path of nodes."""
    ends: list[tuple[int, list[int], int]]
    """For each row that adds nodes: the number of its tree, its path, and how many nodes at its end are new."""


def forest(trees: Sequence[Tree]) -> Forest:
    """Pack trees into one batch. The padding is token 0 at position 0 and belongs to no row."""
    shape = len(trees), max(len(tree.ids) for tree in trees)
    ids = torch.zeros(shape, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    nodes: dict[int, tuple[int, list[int]]] = {}
    ends = []
    for number, tree in enumerate(trees):
        size = len(tree.ids)
        ids[number, :size] = torch.tensor(tree.ids)
        positions[number, :size] = torch.tensor(tree.depths)
        nodes.update((row, (number, path)) for row, path in zip(tree.rows, tree.paths, strict=True))
        ends += [(number, path, new) for path, new in zip(tree.paths, tree.new, strict=True) if new]
    return Forest(ids, positions, [nodes[row] for row in sorted(nodes)], ends)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two rows."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))
