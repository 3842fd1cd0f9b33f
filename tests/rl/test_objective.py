"""The objective and its gradient, whole: real engines against the paper's equations written out in plain PyTorch.

The engines are ours for a CPU, ours for a GPU (logits of replies only; rows packed, with PyTorch's attention as without
flash_attn, or in trees), and verl's own on packed and on padded rows.

Rows of unequal lengths, groups of unequal numbers of turns, tokens clipped on both sides and dual-clipped, KL as k3,
entropy, a temperature, several mini-batches of several micro-batches, one process and two. The optimizer is plain
SGD, so that the weights after the update say what every gradient was.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from ports import free_port

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

from memagent_lib.text import Tokenizer  # noqa: E402

STEP = Path(__file__).parents[1] / "support" / "objective_step.py"
TEMPERATURE, MINI_BATCHES, LR, CLIP_GRAD = 0.7, 3, 0.5, 0.9
CLIP_LOW, CLIP_HIGH, DUAL_CLIP, KL, ENTROPY = 0.2, 0.28, 3.0, 0.05, 0.02
AGREEMENT = 1e-5


@dataclass
class Row:
    """One conversation: a prompt, a reply, and what training knows of the reply's tokens."""

    number: int
    prompt: list[int]
    reply: list[int]
    advantage: float
    old: torch.Tensor
    ref: torch.Tensor
    padding: bool = False


def make_policy(folder: Path, tokenizer: Tokenizer) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen2Config(
        vocab_size=len(tokenizer.hf), num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.2, **sizes
    )
    Qwen2ForCausalLM(config).double().save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)


def load(folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")


def log_probs(model: torch.nn.Module, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each reply token: its log-probability and the entropy of its distribution, at the temperature."""
    logits = model(input_ids=torch.tensor([row.prompt + row.reply])).logits[0, len(row.prompt) - 1 : -1]
    logs = (logits / TEMPERATURE).log_softmax(-1)
    return logs[range(len(row.reply)), row.reply], -(logs.exp() * logs).sum(-1)


def rows_of(model: torch.nn.Module) -> list[Row]:
    """Four groups of three rollouts with one to five turns. Old and reference policies are far enough to be clipped."""
    rng = random.Random(5)
    noise = torch.Generator().manual_seed(5)
    rows: list[Row] = []
    for _ in range(4):
        scores = [rng.choice([0.0, 0.5, 1.0]) for _ in range(3)]
        beginning = [rng.randrange(3, 200) for _ in range(rng.randrange(4, 9))]  # shared by the group, as chunks are
        for score in scores:
            for _ in range(rng.randrange(1, 6)):
                prompt = beginning + [rng.randrange(3, 200) for _ in range(rng.randrange(1, 7))]
                reply = [rng.randrange(3, 200) for _ in range(rng.randrange(1, 8))]
                row = Row(len(rows), prompt, reply, score - sum(scores) / 3, torch.empty(0), torch.empty(0))
                with torch.no_grad():
                    now = log_probs(model, row)[0]
                row.old = now + 0.8 * torch.randn(len(reply), generator=noise, dtype=torch.float64)
                row.ref = now + 0.5 * torch.randn(len(reply), generator=noise, dtype=torch.float64)
                rows.append(row)
    while len(rows) % (2 * MINI_BATCHES):
        zero = torch.zeros(1, dtype=torch.float64)
        rows.append(Row(len(rows), [1, 1, 1], [1], 0.0, zero, zero, padding=True))
    return rows


def objective(model: torch.nn.Module, rows: list[Row]) -> torch.Tensor:
    """The loss of one mini-batch: arXiv 2507.02259, equations 4 and 5, with dual clipping and entropy."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        if row.padding:
            continue
        new, entropy = log_probs(model, row)
        for now, before, reference, spread in zip(new, row.old, row.ref, entropy, strict=True):
            ratio = torch.exp(now - before)
            gain = min(ratio * row.advantage, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * row.advantage)
            if row.advantage < 0:
                gain = max(gain, torch.tensor(DUAL_CLIP * row.advantage, dtype=torch.float64))
            k3 = torch.exp(reference - now) - (reference - now) - 1
            total = total - gain + KL * k3.clamp(-10, 10) - ENTROPY * spread
            tokens += 1
    return total / tokens


def regions(model: torch.nn.Module, rows: list[Row]) -> set[str]:
    """Which parts of the clipped objective the rows reach."""
    found = set()
    for row in (row for row in rows if not row.padding):
        for ratio in torch.exp(log_probs(model, row)[0] - row.old).tolist():
            side = "high" if ratio > 1 + CLIP_HIGH else "low" if ratio < 1 - CLIP_LOW else "inside"
            found.add(f"{side} {'+' if row.advantage > 0 else '-' if row.advantage < 0 else '0'}")
            if ratio > DUAL_CLIP and row.advantage < 0:
                found.add("dual")
    return found


def write_case(folder: Path, rows: list[Row]) -> None:
    length = lambda row: len(row.prompt) + len(row.reply)  # noqa: E731
    save = [
        {
            "number": row.number,
            "input_ids": torch.tensor(row.prompt + row.reply),
            "position_ids": torch.arange(length(row)),
            "prompts": torch.tensor(row.prompt),
            "responses": torch.tensor(row.reply),
            "loss_mask": torch.full((len(row.reply),), int(not row.padding)),
            "response_mask": torch.full((len(row.reply),), int(not row.padding)),
            "old_log_probs": row.old,
            "ref_log_prob": row.ref,
            "advantages": torch.full((len(row.reply),), row.advantage, dtype=torch.float64),
        }
        for row in rows
    ]
    torch.save(save, folder / "rows.pt")
    actor = {"ppo_mini_batch_size": 1, "kl_loss_coef": KL, "entropy_coeff": ENTROPY, "optim": {"lr": LR}}
    actor |= {"clip_ratio_low": CLIP_LOW, "clip_ratio_high": CLIP_HIGH}
    actor["optim"]["weight_decay"] = 0.0
    rollout = {"n": 3, "temperature": TEMPERATURE}
    verl = {"trainer": {"total_training_steps": 1}, "data": {"train_batch_size": 4}}
    verl["actor_rollout_ref"] = {"actor": actor, "rollout": rollout}
    reading = {"template": "short", "chunk_tokens": 32, "memory_tokens": 8, "answer_tokens": 8, "question_tokens": 8}
    recipe = {"model": {"path": str(folder / "policy"), "device": "cpu"}, "data": {"train": "x", "eval": "x"}}
    recipe |= {"reading": reading, "verl": verl}
    extra = {"num_mini_batch": MINI_BATCHES, "global_batch_size": len(rows) // MINI_BATCHES, "epochs": 1, "seed": 3}
    extra |= {"temperature": TEMPERATURE, "calculate_entropy": True, "dataloader_kwargs": {"shuffle": True}}
    case = {"recipe": recipe, "extra_info": extra, "clip_grad": CLIP_GRAD, "micro_batch_tokens": 48}
    (folder / "case.json").write_text(json.dumps(case))


def run_step(folder: Path, ranks: int) -> list[dict]:
    """Each rank's account of the update, by engine."""
    port = free_port()
    variables = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "memagent_lib.rl.verl.cpu_platform"}
    variables |= {"MEMAGENT_RUN_KEY": "objective", "OMP_NUM_THREADS": "1"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    started = [
        subprocess.Popen(
            [sys.executable, str(STEP), str(folder)],
            env=os.environ | variables | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0] * ranks, outputs[0][-3000:]
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=False) for rank in range(ranks)]


@pytest.fixture(scope="module")
def case(tmp_path_factory, tokenizer) -> tuple[Path, list[Row]]:
    folder = tmp_path_factory.mktemp("objective")
    make_policy(folder / "policy", tokenizer)
    rows = rows_of(load(folder / "policy"))
    write_case(folder, rows)
    return folder, rows


def test_the_rows_reach_every_part_of_the_objective(case):
    folder, rows = case
    assert regions(load(folder / "policy"), rows) >= {
        "high +",
        "low -",
        "high -",
        "low +",
        "inside +",
        "inside -",
        "dual",
    }
    assert any(row.padding for row in rows)


@pytest.fixture(
    scope="module", params=[1, pytest.param(2, marks=pytest.mark.long)], ids=["one process", "two processes"]
)
def accounts(case, request) -> list[dict]:
    return run_step(case[0], request.param)


def by_hand(
    folder: Path, rows: list[Row], mini_batches: list[list[int]]
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses of some mini-batches, named by row numbers, and the weights after their updates."""
    model, losses = load(folder / "policy"), []
    for numbers in mini_batches:
        loss = objective(model, [rows[number] for number in numbers])
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_GRAD)
        with torch.no_grad():
            for weight in model.parameters():
                weight -= LR * weight.grad
        losses.append(loss.item())
    return losses, model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ("ours", "ReplyEngine"),
        ("replies", "ReplyEngine"),
        ("trees", "ReplyEngine"),
        ("unpacked", "FSDPEngineWithLMHead"),
        ("packed", "FSDPEngineWithLMHead"),
    ],
)
def test_every_engine_has_the_equations_loss_and_gradients(case, accounts, engine, kind):
    folder, rows = case
    ranks = [account[engine] for account in accounts]
    assert {rank["engine"] for rank in ranks} == {kind}
    mini_batches = [list(chain(*numbers)) for numbers in zip(*(rank["rows"] for rank in ranks), strict=True)]
    assert sorted(chain(*mini_batches)) == list(range(len(rows)))
    losses, weights = by_hand(folder, rows, mini_batches)
    for rank in ranks:
        assert rank["losses"] == pytest.approx(losses, abs=AGREEMENT)
        for name, weight in weights.items():
            torch.testing.assert_close(rank["weights"][name], weight, atol=AGREEMENT, rtol=AGREEMENT)


@pytest.mark.slow
def test_logits_are_computed_for_reply_tokens_only(case, accounts):
    _, rows = case
    counted = {engine: sum(account[engine]["logits"] for account in accounts) for engine in accounts[0]}
    replies, all_tokens = (sum(len(row.reply) + whole * len(row.prompt) for row in rows) for whole in (0, 1))
    assert (counted["replies"], counted["packed"]) == (replies, all_tokens)
    assert counted["ours"] == counted["trees"] < all_tokens < counted["unpacked"]


@pytest.mark.slow
def test_what_rows_have_in_common_goes_through_the_model_once(case, accounts):
    _, rows = case
    seen = {engine: sum(account[engine]["tokens"] for account in accounts) for engine in accounts[0]}
    assert seen["replies"] == seen["packed"] == sum(len(row.prompt) + len(row.reply) for row in rows)
    assert seen["ours"] == seen["trees"] < seen["packed"]


def test_an_update_computes_without_dropout() -> None:
    """verl has it on in the update alone, whose ratio to the sampler's policy would then be noise."""
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from memagent_lib.rl.verl.reply_engine import switch_dropout_off

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=50, num_key_value_heads=1, attention_dropout=0.5, **sizes)
    lora = LoraConfig(r=2, lora_dropout=0.5, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(Qwen2ForCausalLM(config), lora).train()
    ids = torch.arange(20)[None]
    assert not torch.equal(model(ids).logits, model(ids).logits)
    switch_dropout_off(model)
    assert torch.equal(model(ids).logits, model(ids).logits)
