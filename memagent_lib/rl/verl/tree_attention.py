"""Attention over trees of tokens: each node attends to its ancestors, without a mask of all pairs of nodes.

The new nodes at the end of a row's path attend to that path only. Such ends are batched with others of similar size, so
time and memory grow with (new nodes) x (length of the path), where a mask over a tree grows with the square of its
nodes. Importing this module registers the attention :data:`NAME` with transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from memagent_lib.rl.verl.prefix_trees import Forest

NAME = "memagent_trees"
PADDING = 1.3  # a block may have this many times the pairs of its rows


@dataclass(frozen=True)
class Block:
    """Ends of rows with similar sizes. Nodes are numbered over the whole batch: tree x width + node.

    ``queries`` (rows, most new nodes) and ``keys`` (rows, longest path) are padded with node 0; ``mask`` (rows, 1,
    queries, keys) is 0 where a query attends to a key, and minus infinity elsewhere. ``real`` has the places in the
    flattened ``queries`` that are no padding.
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


AttentionInterface.register(NAME, tree_attention)
