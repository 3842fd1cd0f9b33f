"""Supervised training of the pocket policy: look-ups first, then turns with longer and longer chunks.

A step has :data:`BATCH` turns. It processes the short and the long half separately, which saves padding.
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
    """A phase of supervision: ``steps`` steps with chunks of at most ``width`` tokens.

    ``repeat`` and ``drill`` are the shares of these two lessons of :class:`Teacher`; ``shares`` mixes all other turns.
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
"""Phases for random weights. These learn to copy from dense lessons, but 1,200 steps do not teach them look-ups."""


def warm_up(
    model: Any,
    teacher: Teacher,
    phases: Sequence[Phase],
    *,
    seed: int = 0,
    on_step: Callable[[int], None] = lambda step: None,
) -> None:
    """Train a model in place. Every 50 steps, print the loss and the share of faultless replies per kind of turn.

    Of a read turn's reply, only the words after "is" are judged, because the choice of its statements is random.
    """
    import torch

    optimizers = _optimizers(model)
    rng = random.Random(f"warm start {seed}")
    step = 0
    planned = sum(phase.steps for phase in phases)
    started = time.monotonic()
    faultless: dict[str, list[bool]] = defaultdict(list)
    for phase in phases:
        for step_of_phase in range(phase.steps):
            step += 1
            _set_learning_rate(optimizers, step, planned)
            rows = [_row(teacher, rng, phase, step_of_phase) for _ in range(BATCH)]
            rows.sort(key=lambda row: len(row.prompt) + len(row.reply))
            for part in (rows[: BATCH // 2], rows[BATCH // 2 :]):  # short and long turns apart, for less padding
                loss, verdicts = loss_of(model, part, teacher.verb)
                (loss / 2).backward()
                for row, verdict in zip(part, verdicts, strict=True):
                    faultless[row.kind].append(verdict)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            if step % 50 == 0:
                shares = "  ".join(f"{kind} {sum(good) / len(good):.3f}" for kind, good in sorted(faultless.items()))
                print(
                    f"step {step:4d}  width {phase.width:3d}  loss {loss.item():.3f}  "
                    f"{time.monotonic() - started:4.0f} s  {shares}",
                    flush=True,
                )
                faultless.clear()
                on_step(step)


def _optimizers(model: Any) -> list[torch.optim.Optimizer]:
    """Return Muon for the hidden matrices, for which it was designed, and AdamW for embeddings and vectors."""
    import torch

    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=LEARNING_RATE, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _set_learning_rate(optimizers: Sequence[torch.optim.Optimizer], step: int, planned: int) -> None:
    """Set the learning rate of a step: it rises over 50 steps, then falls along a cosine to 3 %."""
    scale = min(1.0, step / 50) * (0.03 + 0.485 * (1 + math.cos(math.pi * step / planned)))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * scale


def _row(teacher: Teacher, rng: random.Random, phase: Phase, step: int) -> Supervised:
    chance = rng.random()
    if chance < phase.repeat:
        return teacher.repeat(rng, min(24, 6 + step // 8))
    if chance < phase.repeat + phase.drill:
        return teacher.drill(rng)
    return teacher.turn(rng, phase.width, phase.shares)


def loss_of(
    model: Any, rows: list[Supervised], verb: int, prompt_weight: float = 0.02
) -> tuple[torch.Tensor, list[bool]]:
    """Return the weighted cross-entropy of rows, and whether each reply is faultless.

    The sum is divided by the number of tokens with weight 1. Tokens of prompts have the small weight
    ``prompt_weight``, which helps the policy to learn copying.
    """
    import torch
    from torch.nn import functional as F

    width = max(len(row.prompt) + len(row.reply) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    weights = torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        length = len(row.prompt) + len(row.reply)
        ids[i, :length] = torch.tensor(row.prompt + row.reply)
        weights[i, 1:length] = torch.tensor([prompt_weight] * (len(row.prompt) - 1) + row.weights)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    counts = weights[:, 1:] > 0  # logits are computed only where a token has weight
    logits = model.lm_head(hidden[:, :-1][counts])
    targets = ids[:, 1:][counts]
    target_weights = weights[:, 1:][counts]
    losses = F.cross_entropy(logits, targets, reduction="none")
    loss = (losses * target_weights).sum() / (target_weights == 1).sum()
    judged = torch.zeros_like(counts)
    for i, row in enumerate(rows):
        judged[i] = weights[i, 1:] == 1
        if row.kind == "read":
            judged[i] &= ids[i, :-1] == verb
    wrong = torch.zeros(counts.shape, dtype=torch.bool)
    wrong[counts] = logits.argmax(-1) != targets
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
    """Train a warm start on the prompts of ``template``, and save it in ``out`` every 200 steps and at the end.

    ``out`` becomes a Hugging Face folder. With ``aware``, the folder of a warm start, training continues from that warm
    start, with its template and with ideal memories. Raises ``ValueError`` if ``aware`` has no warm start.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    tokenizer = build_tokenizer()
    if aware is None:
        model = build_model(tokenizer, seed, planted=planted)
        phases = PHASES if planted else UNPLANTED
        reading = replace(READING, template=template)
    elif (aware / SETTINGS_FILE).is_file():
        model = AutoModelForCausalLM.from_pretrained(aware)
        phases = AWARE
        reading = AgentSettings.load(aware)
    else:
        raise ValueError(
            f"{aware} is not a warm start ({SETTINGS_FILE} is not there); name a folder that "
            "`python -m experiments.pocket --out FOLDER` wrote, such as experiments/pocket/warm_start"
        )

    def save(step: int = 0) -> None:
        if step % 200 == 0:  # also in the last call, which has no step
            tokenizer.save_pretrained(out)
            model.save_pretrained(out)
            reading.save(out)

    teacher = Teacher(Tokenizer(tokenizer), aware is not None, reading.template)
    warm_up(model, teacher, phases, seed=seed, on_step=save)
    save()
