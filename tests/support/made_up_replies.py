"""Replies put together from what models write, the same on every machine, to pin every verdict of the judges."""

from __future__ import annotations

import random
from collections.abc import Iterator

PARTS = (
    "Lisbon", "Porto", "the Old Mill", "Ada Blau", "garden", "kitchen", "yes", "no", "noanswer", "7", "-7", "3.5",
    "1,000",
    "2 602", "1/2", "50 %", "B", "(C)", "A", "Straße", "里斯本", "４２", "C++", "Owl, Newt", "Owl and Newt",
    "1. Owl\n2. Newt",
)  # fmt: skip
FRAMES = (
    "{}", "\\boxed{{{}}}", "The answer is {}.", "the answer is {}.", "Therefore, the answer is **{}**", "Answer: {}",
    "\\boxed {}$ done", "\\boxed{{\\text{{{}}}}}", "{} or {}", "{}, {} and {}", "not {}",
    "\\boxed{{{}}} no, \\boxed{{{}}}",
    "I think it is {}.\nMore of {}", "`{}`\n{}", "答案是{}。", "<answer>{}</answer>", "\\boxed{{{}, {}}}", "option {}",
    "",
)  # fmt: skip
ANSWERS = (
    ("Lisbon",), ("the Old Mill", "Old Mill"), ("7",), ("-7",), ("3.5",), ("1000",), ("yes",), ("garden",), ("B",),
    ("Ada Blau", "A"), ("Owl", "Newt"), ("里斯本",), ("Straße",), ("[7, 1000]",), ("C",),
)  # fmt: skip


def made_up(count: int, seed: int = 0) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield ``count`` replies, each with accepted answers."""
    chosen = random.Random(seed)
    for _ in range(count):
        answers = chosen.choice(ANSWERS)
        parts = [chosen.choice(PARTS) for _ in range(3)]
        if chosen.random() < 0.6:
            parts[chosen.randrange(2)] = chosen.choice(answers)
        reply = chosen.choice(FRAMES).format(*parts)
        if chosen.random() < 0.2:
            reply += " " + chosen.choice(PARTS)
        yield reply, answers
