"""Supervision of the pocket policy: lookups first, then turns of growing width.

A step is :data:`BATCH` turns. Long and short turns go in separate halves, so that little is padding.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.pocket.model import build_model
from experiments.pocket.teacher import Shares, Supervised, Teacher
from experiments.pocket.word_tokenizer import build_tokenizer
from memagent_lib.agent import SETTINGS_FILE, AgentSettings
from memagent_lib.prompts import Budget
from memagent_lib.text import Tokenizer

if TYPE_CHECKING:
    import torch

READING = AgentSettings(
    template="short", budget=Budget(chunk_tokens=96, memory_tokens=48, answer_tokens=48, question_tokens=32)
)
BATCH = 64
LEARNING_RATE = 3e-3


@dataclass(frozen=True, slots=True)
class Phase:
    """Supervision with chunks of at most ``width`` tokens: the shares of repetitions and drills among the turns, and
    ``shares`` of the others.
    """

    width: int
    steps: int
    repeat: float = 0.0
    drill: float = 0.0
    shares: Shares = field(default_factory=Shares)


PHASES = (
    Phase(24, 150, drill=1.0),
    Phase(32, 150, drill=0.3),
    Phase(64, 250, drill=0.1),
    Phase(96, 1650, drill=0.03, shares=Shares(several=0.4, twice=0.3, direct=0.35)),
)
AWARE = (Phase(96, 800, drill=0.03, shares=Shares(answers=0.3, several=0.4, twice=0.3, direct=0.15)),)
UNPLANTED = (
    Phase(16, 200, repeat=1.0),
    Phase(24, 150, repeat=0.2, drill=0.5),
    Phase(32, 250, drill=0.4),
    Phase(64, 400, drill=0.4),
    Phase(96, 1200, drill=0.15),
)
"""Random weights find copying by themselves, in dense lessons; the lookup by two words they had not found in 1,200
steps.
"""


def warm_up(
    model: Any,
    teacher: Teacher,
    phases: Sequence[Phase],
    *,
    seed: int = 0,
    on_step: Callable[[int], None] = lambda step: None,
) -> None:
    """Supervise in place, printing loss and the share of faultless replies per kind of turn every 50 steps.

    Of a read turn, whose choices cannot be foreseen, the words after "is" are judged alone.
    """
    import torch

    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=LEARNING_RATE, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    rng, step = random.Random(f"warm start {seed}"), 0
    planned, started, right = sum(phase.steps for phase in phases), time.monotonic(), defaultdict(list)
    for phase in phases:
        for at in range(phase.steps):
            step += 1
            scale = min(1.0, step / 50) * (0.03 + 0.485 * (1 + math.cos(math.pi * step / planned)))
            for group in (g for o in optimizers for g in o.param_groups):
                group["lr"] = LEARNING_RATE * scale
            rows = sorted(
                (_row(teacher, rng, phase, at) for _ in range(BATCH)), key=lambda row: len(row.prompt) + len(row.reply)
            )
            for part in (rows[: BATCH // 2], rows[BATCH // 2 :]):
                loss, faultless = loss_of(model, part, teacher.verb)
                (loss / 2).backward()
                for row, good in zip(part, faultless, strict=True):
                    right[row.kind].append(good)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            if step % 50 == 0:
                shares = "  ".join(f"{kind} {sum(good) / len(good):.3f}" for kind, good in sorted(right.items()))
                print(
                    f"step {step:4d}  width {phase.width:3d}  loss {loss.item():.3f}  "
                    f"{time.monotonic() - started:4.0f} s  {shares}",
                    flush=True,
                )
                right.clear()
                on_step(step)


def _row(teacher: Teacher, rng: random.Random, phase: Phase, at: int) -> Supervised:
    chance = rng.random()
    if chance < phase.repeat:
        return teacher.repeat(rng, min(24, 6 + at // 8))
    if chance < phase.repeat + phase.drill:
        return teacher.drill(rng)
    return teacher.turn(rng, phase.width, phase.shares)


def loss_of(model: Any, rows: list[Supervised], verb: int, everything: float = 0.02) -> tuple[torch.Tensor, list[bool]]:
    """Weighted cross-entropy over fully weighted tokens; prompts count a little, which helps copying to form."""
    import torch
    from torch.nn import functional as F

    width = max(len(row.prompt) + len(row.reply) for row in rows)
    ids, weights = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        length = len(row.prompt) + len(row.reply)
        ids[i, :length] = torch.tensor(row.prompt + row.reply)
        weights[i, 1:length] = torch.tensor([everything] * (len(row.prompt) - 1) + row.weights)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    wanted = weights[:, 1:] > 0
    logits, targets, counted = model.lm_head(hidden[:, :-1][wanted]), ids[:, 1:][wanted], weights[:, 1:][wanted]
    loss = (F.cross_entropy(logits, targets, reduction="none") * counted).sum() / (counted == 1).sum()
    judged = torch.zeros_like(wanted)
    for i, row in enumerate(rows):
        judged[i] = (weights[i, 1:] == 1) & ((ids[i, :-1] == verb) if row.kind == "read" else True)
    wrong = torch.zeros(wanted.shape, dtype=torch.bool)
    wrong[wanted] = logits.argmax(-1) != targets
    return loss, (~(wrong & judged).any(1)).tolist()


def make(
    out: Path,
    *,
    seed: int = 0,
    aware: Path | None = None,
    template: str = READING.template,
    planted: bool = True,
    threads: int = 1,
) -> None:
    """Make a warm start that reads by ``template``: a Hugging Face folder, written every 200 steps. With ``aware``, the
    folder of a warm start, go on from it with ideal memories and its own template instead.

    Raises ValueError for a folder that no warm start was written to.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    tokenizer, reading = build_tokenizer(), replace(READING, template=template)
    if aware is None:
        model, phases = build_model(tokenizer, seed, planted=planted), PHASES if planted else UNPLANTED
    elif (aware / SETTINGS_FILE).is_file():
        model, phases, reading = AutoModelForCausalLM.from_pretrained(aware), AWARE, AgentSettings.load(aware)
    else:
        raise ValueError(
            f"{aware} holds no warm start ({SETTINGS_FILE} is not there); give a folder that "
            "`python -m experiments.pocket --out FOLDER` wrote, such as experiments/pocket/warm_start"
        )

    def save(step: int = 0) -> None:
        if step % 200 == 0:
            tokenizer.save_pretrained(out)
            model.save_pretrained(out)
            reading.save(out)

    teacher = Teacher(Tokenizer(tokenizer), aware is not None, reading.template)
    warm_up(model, teacher, phases, seed=seed, on_step=save)
    save()
