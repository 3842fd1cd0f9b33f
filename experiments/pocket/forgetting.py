"""The pocket policy: a memory agent small enough to watch learning on a laptop, and how it is warmed up.

``python -m experiments.pocket.forgetting.warm_start --out FOLDER`` makes the committed warm start: a byte-level BPE
tokenizer of Qwen2's kind, a Qwen2 model of 0.75M parameters, and supervised turns of
:mod:`memagent_lib.data.tasks.needles`. Their teacher reads perfectly and keeps badly: a crowded text drives what it
knew out of its memory. The warm start learns both; what to keep is left to reinforcement.

Knows torch and transformers; knows no verl and no vLLM. Everything is a function of the seed.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.data.tasks.needles import (
    ADJECTIVES,
    FILLER,
    NOUNS,
    needle,
    other_key,
    other_value,
    question,
    random_key,
    random_value,
)
from memagent_lib.pocket.model import compare_words
from memagent_lib.pocket.pocket_tokenizer import train_tokenizer
from memagent_lib.prompts import Template
from memagent_lib.text import Chunk, Tokenizer
from memagent_lib.trace import NO_MEMORY, Kind, Prompt

if TYPE_CHECKING:
    import torch

UNKNOWN = "unknown"
CODE = "The code of the"
DIGITS = 4
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class ForgettingPhase:
    """A stretch of supervision: passages of at most ``width`` tokens, a share of lookup drills, and how dense the codes
    stand, of which the share ``half_matching`` has one word of the asked name and ``half_alike`` begins like the asked
    code.
    """

    width: int
    steps: int
    drill: float
    density: float
    half_matching: float = 0.0
    half_alike: float = 0.3


# Lookup drills first, then short passages before longer ones: a wide passage from the start costs ten times the steps.
# At the end the codes are as confusable as they can be: what is wrong once in a thousand chunks of a document is wrong
# often here.
PHASES = (
    ForgettingPhase(32, 250, 1.0, 0.5),
    ForgettingPhase(48, 200, 0.3, 0.5, 0.3),
    ForgettingPhase(80, 250, 0.15, 0.4, 0.5),
    ForgettingPhase(128, 300, 0.05, 0.3, 0.5),
    ForgettingPhase(128, 1200, 0.0, 0.35, 0.9, 0.6),
)
LEARNING_RATE = 3e-3
CROWDED = 5
"""A text with this many codes makes the teacher forget the one that it knew,"""
FORGETS = 0.8
"""in this share of the turns: where it always did, no rollout would ever keep one, and reinforcement would have nothing
to favour.
"""
SHARDS = 4
SHARES = {"answer": 0.08, "direct": 0.10, "blind": 0.01, "keep": 0.26, "find": 0.36, "none": 0.19}


class ForgettingTurn(NamedTuple):
    """One supervised conversation as token ids; ``weights`` has one entry per id of the reply."""

    kind: str
    prompt: list[int]
    reply: list[int]
    weights: list[float]


def build_tokenizer() -> Any:
    """Byte-level BPE in which every word of the needle world is one token and digits stand alone."""
    return train_tokenizer(_corpus())


def _corpus() -> list[str]:
    template, key = Template.load("pocket"), ("bold", "owl")
    prompts = [template.render(Prompt(kind, question(key), chunk=Chunk(0, "", 0, 0, 0))) for kind in Kind]
    lines = [
        *(f" {word}" for word in ADJECTIVES + NOUNS),
        *FILLER,
        *(f" {s}" for s in FILLER),
        *prompts,
        needle(key, ""),
    ]
    text = "\n".join([*lines, needle(key, UNKNOWN), rf"\boxed{{{UNKNOWN}}}", "user assistant system The"])
    return re.findall(r"[^\s\w]?\w+| \w+", text) + re.findall(r" \w+", text)


def build_model(tokenizer: Any, seed: int = 0) -> Any:
    """Four layers of width 128, born with the beginnings of a lookup circuit (:func:`look_back`,
    :func:`compare_words`).
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.pad_token_id,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e8,
        },  # most dimensions compare words wherever they stand
        initializer_range=0.04,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        look_back(model)
        compare_words(model, seed, back=(2, 3))
    return model


def look_back(model: Any, strength: float = 6.0, pairs: int = 6) -> None:
    """Make head h of the first layer attend h + 1 tokens back.

    With rotary angles (q - k) f, a constant key and a constant query turned by -(h + 1) f agree best at exactly that
    distance. Everything stays trainable; a random start needs thousands of steps to find this.
    """
    import torch

    attention, config = model.model.layers[0].self_attn, model.config
    size = attention.head_dim
    rates = config.rope_parameters["rope_theta"] ** (-torch.arange(pairs) / (size // 2))
    q, k = attention.q_proj.bias.view(-1, size), attention.k_proj.bias.view(-1, size)
    for head in range(config.num_attention_heads):
        q[head, :pairs] = strength * torch.cos((head + 1) * rates)
        q[head, size // 2 : size // 2 + pairs] = -strength * torch.sin((head + 1) * rates)
        k[head, :pairs] = strength


class ForgettingTeacher:
    """Writes supervised turns in the pocket wording: what an ideal reader replies, but for a code that is forgotten in
    a crowded text. A pure function of the generator it is given.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self.template = tokenizer, Template.load("pocket")
        self.end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
        self.verb = tokenizer.encode(" is")[-1]

    def turn(self, rng: random.Random, phase: ForgettingPhase) -> ForgettingTurn:
        """A find, keep, none, answer, direct or blind turn, in the proportions of :data:`SHARES`."""
        (kind,), width = rng.choices(list(SHARES), SHARES.values()), phase.width
        key, value = random_key(rng), random_value(rng, DIGITS)
        known, unknown = needle(key, value), needle(key, UNKNOWN)
        asked = question(key)
        if kind == "blind":
            return self._turn(kind, Prompt(Kind.BLIND, asked), _boxed(None))
        if kind == "answer":
            held = (
                known
                if rng.random() < 0.7
                else rng.choice((NO_MEMORY, unknown, needle(other_key(rng, key, 0.3), value)))
            )
            return self._turn(kind, Prompt(Kind.ANSWER, asked, held), _boxed(value if held == known else None))
        if kind == "direct":
            shown = value if rng.random() < 0.75 else None
            passage = self._passage(
                rng, key, value, shown is not None, max(24, int(width * rng.uniform(0.5, 1.3))), phase
            )
            return self._turn(kind, Prompt(Kind.DIRECT, asked, chunk=passage), _boxed(shown))
        passage = self._passage(rng, key, value, kind == "find", rng.randint(int(width * 0.75), width), phase)
        before = known if kind == "keep" else self._without_answer(rng, key, wrong=kind == "find")
        forgotten = kind == "keep" and passage.text.count(CODE) >= CROWDED and rng.random() < FORGETS
        return self._turn(
            kind, Prompt(Kind.READ, asked, before, passage), unknown if kind == "none" or forgotten else known
        )

    def _without_answer(self, rng: random.Random, key: tuple[str, str], wrong: bool) -> str:
        """What a memory may hold before the answer is read: nothing, the code of something else, or, where the text
        will correct it, a wrong code.
        """
        chance = rng.random()
        if chance < 0.15:
            return needle(key if wrong else other_key(rng, key, 0.5), random_value(rng, DIGITS))
        return NO_MEMORY if chance < 0.5 else needle(key, UNKNOWN)

    def drill(self, rng: random.Random, phase: ForgettingPhase, codes: int = 5) -> ForgettingTurn:
        """Some codes, then the same codes in another order: each code's first digit can only be looked up."""
        value = random_value(rng, DIGITS)
        facts = [" " + needle(random_key(rng), other_value(rng, value, phase.half_alike)) for _ in range(codes)]
        first = facts + [" " + rng.choice(FILLER) for _ in range(rng.randrange(3))]
        rng.shuffle(first)
        rng.shuffle(facts)
        reply = self.tokenizer.encode("".join(facts))
        weights = [0.05] * len(reply)
        for at in (i for i, token in enumerate(reply) if token == self.verb):
            weights[at + 2 : at + 2 + DIGITS] = [1.0, *[0.3] * (DIGITS - 1)]
        return ForgettingTurn("drill", self.tokenizer.encode("".join(first)), reply, weights)

    def _turn(self, kind: str, prompt: Prompt, reply: str) -> ForgettingTurn:
        said = [*self.tokenizer.encode(reply), self.end]
        return ForgettingTurn(kind, self.tokenizer.chat(self.template.render(prompt)), said, [1.0] * len(said))

    def _passage(
        self, rng: random.Random, key: tuple[str, str], value: str, shown: bool, width: int, phase: ForgettingPhase
    ) -> Chunk:
        needed = [needle(key, value)] if shown else []
        room, sentences = width - sum(self.tokenizer.count(" " + s) for s in needed), []
        while True:
            told = rng.random() < phase.density
            sentence = (
                needle(other_key(rng, key, phase.half_matching), other_value(rng, value, phase.half_alike))
                if told
                else rng.choice(FILLER)
            )
            room -= self.tokenizer.count(" " + sentence)
            if room < 0:
                break
            sentences.append(sentence)
        for fact in needed:
            sentences.insert(rng.randrange(len(sentences) + 1), fact)
        text = " ".join(sentences)
        return Chunk(0, text, 0, len(text), 0)


def _boxed(value: str | None) -> str:
    return rf"\boxed{{{value or UNKNOWN}}}"


def batches(
    teacher: ForgettingTeacher, rng: random.Random, phase: ForgettingPhase, size: int, pool: int = 4
) -> Iterator[list[ForgettingTurn]]:
    """Batches of turns of like length."""
    while True:
        rows = [
            teacher.drill(rng, phase) if rng.random() < phase.drill else teacher.turn(rng, phase)
            for _ in range(size * pool)
        ]
        rows.sort(key=lambda row: len(row.prompt) + len(row.reply))
        cut = [rows[i : i + size] for i in range(0, len(rows), size)]
        rng.shuffle(cut)
        yield from cut


def warm_up(
    model: Any,
    tokenizer: Tokenizer,
    phases: tuple[ForgettingPhase, ...] = PHASES,
    *,
    seed: int = 0,
    rank: int = 0,
    processes: int = 1,
) -> None:
    """Supervise in place, printing loss and the share of faultless replies per kind of turn every 50 steps.

    A step is :data:`SHARDS` shards of 16 turns; each of ``processes`` takes its share of them, and gradients are
    averaged.
    """
    import torch
    from torch import distributed

    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=LEARNING_RATE, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    shards = [random.Random(f"warm start {seed} {shard}") for shard in range(rank, SHARDS, processes)]
    teacher, step, started, right = ForgettingTeacher(tokenizer), 0, time.monotonic(), defaultdict(list)
    planned = sum(phase.steps for phase in phases)
    for phase in phases:
        sources = [batches(teacher, rng, phase, 64 // SHARDS) for rng in shards]
        for _ in range(phase.steps):
            step += 1
            scale = min(1.0, step / 50) * (0.05 + 0.475 * (1 + math.cos(math.pi * step / planned)))
            for group in (g for o in optimizers for g in o.param_groups):
                group["lr"] = LEARNING_RATE * scale
            for rows in map(next, sources):
                loss, faultless = _loss(model, rows)
                (loss / SHARDS).backward()
                for row, good in zip(rows, faultless, strict=True):
                    right[row.kind].append(good)
            if processes > 1:
                for parameter in model.parameters():
                    distributed.all_reduce(parameter.grad)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            if step % 50 == 0 and rank == 0:
                shares = "  ".join(f"{kind} {sum(good) / len(good):.2f}" for kind, good in sorted(right.items()))
                print(
                    f"step {step:4d}  width {phase.width:3d}  loss {loss.item():.3f}  "
                    f"{time.monotonic() - started:4.0f} s  {shares}",
                    flush=True,
                )
                right.clear()


def _loss(model: Any, rows: list[ForgettingTurn], everything: float = 0.05) -> tuple[torch.Tensor, list[bool]]:
    """Cross-entropy weighted per token, over fully weighted tokens; prompts count a little, which helps copying to
    form.
    """
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
    wrong = torch.zeros(wanted.shape, dtype=torch.bool)
    wrong[wanted] = (logits.argmax(-1) != targets) & (counted == 1)
    return loss, (~wrong.any(1)).tolist()


def make(rank: int, processes: int, out: Path, seed: int, meeting: str) -> None:
    """One of ``processes`` equal workers, one thread each, that meet at the address ``meeting``; the first writes the
    folder.
    """
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    if processes > 1:
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed)
    warm_up(model, Tokenizer(tokenizer), seed=seed, rank=rank, processes=processes)
    if rank == 0:
        tokenizer.save_pretrained(out)
        model.save_pretrained(out)


def main() -> None:
    """Make the warm start and write it as a Hugging Face folder."""
    from torch import multiprocessing

    parser = argparse.ArgumentParser(
        prog="python -m experiments.pocket.forgetting.warm_start", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--processes", type=int, default=4, choices=(1, 2, 4), help="each on one core; the weights hardly depend on it"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args = (arguments.processes, arguments.out, arguments.seed, f"file://{folder}/meeting")
        multiprocessing.spawn(make, args, nprocs=arguments.processes)


if __name__ == "__main__":
    main()
