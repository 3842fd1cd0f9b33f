"""How often does one hard turn lose what a memory holds? ``python -m experiments.pocket.lookups MODEL [MODEL ...]``.

In every turn the memory tells what is asked (one fact, two, the last of several values), and nearly all of the chunk's
ten facts share a word with an asked key. A turn loses a value where, after the words of the true memory, another token
is likelier. Three thousand turns take a minute, where losses in documents of 256 chunks take an hour to count.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from typing import Any

import pandas as pd

from memagent_lib.data import pocket_world as world
from memagent_lib.evaluation import wilson
from memagent_lib.pocket.pocket_tokenizer import build_tokenizer
from memagent_lib.prompts import Template
from memagent_lib.text import Chunk, Tokenizer
from memagent_lib.trace import Kind, Prompt

ASKS = (world.Ask.NEEDLE, world.Ask.MULTIKEY, world.Ask.UPDATE)
CROWD = world.Crowd(density=1.0, half_matching=0.95)
BATCH = 64


@dataclass(frozen=True, slots=True)
class Lookup:
    """One turn as token ids up to the end of its memory; ``values`` are the places of what must be kept."""

    ask: world.Ask
    ids: list[int]
    values: list[int]


def lookups(n: int, seed: int) -> list[Lookup]:
    """``n`` turns in the pocket wording; a function of ``seed``."""
    tokenizer, template, rng = Tokenizer(build_tokenizer()), Template.load("pocket"), random.Random(seed)
    made = []
    for at in range(n):
        asked = world.riddle(ASKS[at % len(ASKS)], rng)
        last = {fact.key: fact for fact in asked.facts}
        memory = " ".join(fact.text for fact in last.values())
        box = rf"\boxed{{ {', '.join(fact.value for fact in last.values())}}}"
        text = " " + " ".join(CROWD.sentences(rng, asked, (), 10))
        prompt = Prompt(Kind.READ, asked.question, f"{memory} {box}", Chunk(0, text, 0, len(text), 0))
        begun, told = tokenizer.chat(template.render(prompt)), tokenizer.encode(memory)
        wanted = {tokenizer.encode(f" {fact.value}")[0] for fact in last.values()}
        made.append(
            Lookup(asked.ask, begun + told, [len(begun) + i for i, token in enumerate(told) if token in wanted])
        )
    return made


def margins(model: Any, turns: list[Lookup]) -> pd.DataFrame:
    """Of each turn its ``ask`` and ``margin``: how much likelier a value is than any other token there, in nats; of two
    values the smaller margin. Below 0 the value is lost.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    found = []
    turns = sorted(turns, key=lambda turn: len(turn.ids))
    for batch in (turns[at : at + BATCH] for at in range(0, len(turns), BATCH)):
        ids = pad_sequence([torch.tensor(turn.ids) for turn in batch], batch_first=True)
        with torch.no_grad():
            hidden = model.model(input_ids=ids).last_hidden_state
            for row, turn in zip(hidden, batch, strict=True):
                logits = model.lm_head(row[[place - 1 for place in turn.values]])
                true = torch.tensor([[turn.ids[place]] for place in turn.values])
                others = logits.scatter(1, true, -torch.inf).amax(1)
                found.append((str(turn.ask), (logits.gather(1, true)[:, 0] - others).min().item()))
    return pd.DataFrame(found, columns=["ask", "margin"])


def main() -> None:
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(prog="python -m experiments.pocket.lookups", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--n", type=int, default=3000, help="turns, a third of each kind (default: 3000)")
    parser.add_argument("--seed", type=int, default=77)
    a = parser.parse_args()
    rows, turns = [], lookups(a.n, a.seed)
    for name in a.models:
        for ask, margin in margins(AutoModelForCausalLM.from_pretrained(name), turns).groupby("ask")["margin"]:
            lost = wilson(int((margin < 0).sum()), len(margin))
            rows.append(
                {"model": name, "asked": ask, "lost": str(lost), "lowest 1 % of margins": margin.quantile(0.01)}
            )
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.1f} nats".format))


if __name__ == "__main__":
    main()
