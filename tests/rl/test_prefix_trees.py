"""Rows computed as trees are the rows computed one by one."""

import random

import pytest

torch = pytest.importorskip("torch")

from memagent_lib.rl.verl.prefix_trees import TREES, blocks, forest, micro_batches, prefix_trees  # noqa: E402


def rows_like_rollouts(seed: int) -> list[list[int]]:
    """Groups that share a beginning, equal rows, rows that are another's beginning, rows that stand alone."""
    rng = random.Random(seed)
    some = lambda n: [rng.randrange(1, 40) for _ in range(n)]  # noqa: E731
    rows = [some(9), [7]]
    for _ in range(3):
        shared = some(rng.randrange(5, 12))
        rows += [shared + some(rng.randrange(1, 6)) for _ in range(4)] + [shared, list(shared)]
    rng.shuffle(rows)
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_every_row_can_be_read_off_its_tree(seed):
    rows = rows_like_rollouts(seed)
    trees = prefix_trees(rows)
    packed = forest(trees)
    for row, (tree, path) in zip(rows, packed.nodes, strict=True):
        assert packed.ids[tree, path].tolist() == row
        assert packed.positions[tree, path].tolist() == list(range(len(row)))
    assert sum(len(t.ids) for t in trees) < sum(map(len, rows))


@pytest.mark.parametrize("seed", range(5))
def test_every_node_attends_to_its_ancestors_only(seed):
    packed = forest(prefix_trees(rows_like_rollouts(seed)))
    width = packed.ids.shape[1]
    ancestors = {
        tree * width + node: [tree * width + n for n in path[: depth + 1]]
        for tree, path in packed.nodes
        for depth, node in enumerate(path)
    }
    seen = {}
    for block in blocks(packed):
        flat = block.queries.flatten()
        mask = block.mask.flatten(0, 2)
        for at in block.real.tolist():
            keys = block.keys[at // block.queries.shape[1]]
            seen[int(flat[at])] = keys[mask[at] == 0].tolist()
    assert seen == ancestors


@pytest.mark.parametrize("limit", [1, 12, 20])
def test_only_a_single_row_makes_a_tree_over_the_limit(limit):
    rows = rows_like_rollouts(3)
    trees = prefix_trees(rows, limit)
    assert sorted(row for tree in trees for row in tree.rows) == list(range(len(rows)))
    assert all(len(tree.ids) <= max(limit, len(rows[tree.rows[0]])) for tree in trees)
    assert len(trees) > len(prefix_trees(rows))


def test_micro_batches_have_every_row_once_in_any_number():
    rows = rows_like_rollouts(1)
    trees = prefix_trees(rows)
    for least in (1, 7, len(rows)):
        batches = micro_batches(trees, limit=60, at_least=least)
        assert sorted(row for batch in batches for row in batch) == list(range(len(rows)))
        assert len(batches) >= least
        assert all(batches)
    with pytest.raises(ValueError, match="cannot be cut"):
        micro_batches(trees, limit=60, at_least=len(rows) + 1)


def small_model():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=40, max_position_embeddings=64, tie_word_embeddings=True, **sizes))


def test_trees_have_the_logits_and_gradients_of_single_rows():
    model, rows = small_model(), rows_like_rollouts(2)
    weights = [torch.randn(len(row), 40, generator=torch.Generator().manual_seed(len(row))) for row in rows]
    alone = [model(input_ids=torch.tensor([row])).logits[0] for row in rows]
    sum((w * a).sum() for w, a in zip(weights, alone, strict=True)).backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    packed = forest(prefix_trees(rows))
    model.set_attn_implementation(TREES)
    inputs = {"input_ids": packed.ids, "position_ids": packed.positions, "tree_blocks": blocks(packed)}
    logits = model(**inputs, use_cache=False).logits
    together = [logits[tree, path] for tree, path in packed.nodes]
    sum((w * t).sum() for w, t in zip(weights, together, strict=True)).backward()
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    for p, want in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, want, atol=1e-4, rtol=1e-3)


def test_a_model_called_without_blocks_is_an_error():
    model = small_model()
    model.set_attn_implementation(TREES)
    with pytest.raises(ValueError, match="Qwen2Attention was called without tree_blocks"):
        model(input_ids=torch.tensor([[1, 2]]), use_cache=False)


def test_trees_need_layers_that_attend_to_everything():
    from transformers import Gemma3TextConfig, MistralConfig, Qwen2Config, Qwen3NextConfig

    from memagent_lib.rl.verl.prefix_trees import attends_to_everything

    windows = Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=1)
    fit = [
        Qwen2Config(),
        MistralConfig(sliding_window=None),
        windows,
        MistralConfig(),
        Gemma3TextConfig(),
        Qwen3NextConfig(),
    ]
    assert [attends_to_everything(config) for config in fit] == [True, True, False, False, False, False]
