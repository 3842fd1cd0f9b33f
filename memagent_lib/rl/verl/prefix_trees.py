"""Lay out rows with a common beginning as trees, so that the model computes the common part once.

The rollouts of a group share question and chunk, and often the memory. Each token is a node; rows share a node if they
agree up to and including that token. A node attends only to its ancestors, so every row's results are the same as
without sharing.

There is no mask of all pairs of nodes. The new nodes at the end of a row's path attend to that path only; such ends are
batched with others of similar size. So time and memory grow with (new nodes) x (length of the path), where a mask over
a tree grows with the square of its nodes. Importing this module registers the attention :data:`TREES` with
transformers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

TREES = "memagent_trees"
PADDING = 1.3  # a block of ends may have this many times the pairs of its rows
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


@dataclass(frozen=True)
class Block:
    """Ends of rows with similar sizes. Nodes are numbered over the whole batch: tree x width + node.

    ``queries`` (rows, most new nodes) and ``keys`` (rows, longest path) are padded with node 0; ``mask`` (rows, 1,
    queries, keys) is 0 where a query attends to a key, and minus infinity elsewhere. ``real`` has the places in the
    flattened ``queries`` that are not padding.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor
    real: torch.Tensor

    def to(self, device: Any) -> Block:
        return Block(*(part.to(device) for part in (self.queries, self.keys, self.mask, self.real)))


def blocks(packed: Forest) -> list[Block]:
    """Group the ends of all rows into blocks, the longest first."""
    width = packed.ids.shape[1]
    ends = sorted(packed.ends, key=lambda end: (-end[2], -len(end[1])))
    groups: list[list[tuple[int, list[int], int]]] = []
    longest = pairs = 0
    for end in ends:
        _, path, new = end
        grown = max(longest, len(path))
        # By the order of the ends, the first of a group has the most new nodes.
        padded = (len(groups[-1]) + 1) * groups[-1][0][2] * grown if groups else 0
        if not groups or padded > PADDING * (pairs + new * len(path)):
            groups.append([])
            grown = len(path)
            pairs = 0
        groups[-1].append(end)
        longest = grown
        pairs += new * len(path)
    return [_block(group, width) for group in groups]


def _block(ends: Sequence[tuple[int, list[int], int]], width: int) -> Block:
    shape = len(ends), ends[0][2], max(len(path) for _, path, _ in ends)
    queries = torch.zeros(shape[:2], dtype=torch.long)
    keys = torch.zeros(shape[0], shape[2], dtype=torch.long)
    mask = torch.full(shape, -torch.inf)
    mask[..., 0] = 0  # a padded query attends to something, because a softmax over nothing is not a number
    for row, (tree, path, new) in enumerate(ends):
        nodes = torch.tensor(path) + tree * width
        queries[row, :new] = nodes[-new:]
        keys[row, : len(path)] = nodes
        # The last ``new`` lines of a causal mask: each new node attends to the path up to itself.
        mask[row, :new, : len(path)] = torch.full((new, len(path)), -torch.inf).triu(len(path) - new + 1)
    sizes = torch.tensor([new for _, _, new in ends])
    real = (torch.arange(shape[1]) < sizes[:, None]).flatten().nonzero().flatten()
    return Block(queries, keys, mask[:, None], real)


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    tree_blocks: Sequence[Block] | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within ``tree_blocks``. The arguments and the result are those of transformers' attention functions.

    ``query`` is (trees, heads, nodes, head size); ``key`` and ``value`` may have fewer heads. Raises ``ValueError`` if
    the model does not pass ``tree_blocks`` from its forward pass to its layers.
    """
    if tree_blocks is None:
        raise ValueError(f"{type(module).__name__} was called without tree_blocks, which say who attends to whom")
    # What a block gathers is as large as its paths together, so the backward pass gathers it again.
    return checkpoint(_attend, query, key, value, tree_blocks, scaling, use_reentrant=False), None


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tree_blocks: Sequence[Block], scale: float
) -> torch.Tensor:
    trees, heads, width, size = query.shape
    repeats = heads // key.shape[1]
    query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    # With grouped queries, several heads share a key and a value.
    key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    results = []
    for block in tree_blocks:
        found = scaled_dot_product_attention(
            _gather(query, block.queries),
            _gather(key, block.keys),
            _gather(value, block.keys),
            attn_mask=block.mask.to(query.dtype),
            scale=scale,
        )
        results.append(found.transpose(1, 2).flatten(0, 1).index_select(0, block.real))
    nodes = torch.cat([block.queries.flatten()[block.real] for block in tree_blocks])
    result = query.new_zeros(trees * width, heads, size).index_copy(0, nodes, torch.cat(results))
    return result.view(trees, width, heads, size)


def _gather(states: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """Return the states of ``nodes`` (rows, nodes) as (rows, heads, nodes, head size)."""
    return states.index_select(0, nodes.flatten()).unflatten(0, nodes.shape).transpose(1, 2)


AttentionInterface.register(TREES, tree_attention)
