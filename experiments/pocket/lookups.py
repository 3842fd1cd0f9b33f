"""How often does one hard turn lose what a memory holds, note what no text told, or keep what is false?

``python -m experiments.pocket.lookups MODEL [MODEL ...]``. In every turn nearly all of the chunk's ten facts share a
word with an asked key (of one fact, two, the last of several values). *Lost*: the memory tells what is asked, in the
words in which the policy itself notes it, and after the words of that memory another token is likelier than the value.
*False*: nothing has told what is asked, and the next memory gives an asked key a value. *Not taken*: the memory holds
such a value, the chunk tells the true one, and the next memory lacks it. Three thousand turns take minutes, where
losses in documents of 256 chunks take an hour to count.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.pocket import world
from experiments.pocket.word_tokenizer import build_tokenizer
from memagent_lib.data import FILLER
from memagent_lib.evaluation import wilson
from memagent_lib.prompts import Template
from memagent_lib.text import Chunk, Tokenizer
from memagent_lib.trace import Kind, Prompt

ASKS = (world.Ask.NEEDLE, world.Ask.MULTIKEY, world.Ask.UPDATE)
CROWD = world.Crowd(density=1.0, half_matching=0.95)
BATCH = 64


@dataclass(frozen=True, slots=True)
class Lookup:
    """A question, the ``facts`` that answer it, and the text of a chunk full of others."""

    ask: world.Ask
    question: str
    facts: list[world.PocketFact]
    text: str

    def prompt(self, memory: str, text: str) -> Prompt:
        """A read turn of this question."""
        return Prompt(Kind.READ, self.question, memory, Chunk(0, text, 0, len(text), 0))

    def telling(self, fact: world.PocketFact, rng: random.Random) -> str:
        """The chunk with one of its facts, whichever, replaced by this one."""
        sentences = self.text.strip(" .").split(". ")
        sentences[rng.randrange(len(sentences))] = fact.text.rstrip(".")
        return f" {'. '.join(sentences)}."


def lookups(n: int, seed: int) -> list[Lookup]:
    """``n`` questions in turn about one fact, two and the last of several values; a function of ``seed``."""
    rng, made = random.Random(seed), []
    for at in range(n):
        asked = world.riddle(ASKS[at % len(ASKS)], rng)
        facts = list({fact.key: fact for fact in asked.facts}.values())
        text = " " + " ".join(CROWD.sentences(rng, asked, (), 10))
        made.append(Lookup(asked.ask, asked.question, facts, text))
    return made


def batches(turns: list[Lookup]) -> Iterator[list[Lookup]]:
    """The turns in their order, as many at once as a model is given."""
    return (turns[at : at + BATCH] for at in range(0, len(turns), BATCH))


def margins(model: Any, turns: list[Lookup]) -> pd.DataFrame:
    """Of each turn its ``ask`` and ``margin``: how much likelier a value is than any other token there, in nats; of two
    values the smaller margin. Below 0 the value is lost.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokenizer, template = Tokenizer(build_tokenizer()), Template.load("short")

    def asked(turn: Lookup, memory: str, text: str) -> list[int]:
        return tokenizer.chat(template.render(turn.prompt(memory, text)))

    found = []
    for batch in batches(turns):
        memories = noted(model, tokenizer, template, batch)
        begun = [asked(turn, memory, turn.text) for turn, memory in zip(batch, memories, strict=True)]
        told = [tokenizer.encode(memory) for memory in memories]
        ids = [torch.tensor(prompt + reply) for prompt, reply in zip(begun, told, strict=True)]
        with torch.no_grad():
            hidden = model.model(input_ids=pad_sequence(ids, batch_first=True)).last_hidden_state
            for row, turn, prompt, reply in zip(hidden, batch, begun, told, strict=True):
                values = [tokenizer.encode(f" {fact.value}")[0] for fact in turn.facts]
                logits = model.lm_head(row[[len(prompt) + reply.index(value) - 1 for value in values]])
                true = torch.tensor(values)[:, None]
                others = logits.scatter(1, true, -torch.inf).amax(1)
                found.append((str(turn.ask), (logits.gather(1, true)[:, 0] - others).min().item()))
    return pd.DataFrame(found, columns=["ask", "margin"])


def plain(turn: Lookup) -> str:
    """The facts that answer, told as a document tells them."""
    return " ".join(fact.text for fact in turn.facts)


def noted(model: Any, tokenizer: Tokenizer, template: Template, turns: list[Lookup]) -> list[str]:
    """What the policy notes (greedy) of a chunk that tells nothing but the answer; the chunk's own words where that
    lacks a value, as in a warm start's random choice.
    """
    memories = replies(model, tokenizer, template, [turn.prompt("", f" {plain(turn)}") for turn in turns])
    return [
        memory if all(f" {fact.value}" in memory for fact in turn.facts) else plain(turn)
        for turn, memory in zip(turns, memories, strict=True)
    ]


def false_values(model: Any, turns: list[Lookup]) -> pd.DataFrame:
    """Of each turn its ``ask`` and whether its greedy memory is ``false``: it gives an asked key a value, where neither
    the chunk nor the memory before, which the policy wrote of nothing but filler, told one.
    """
    tokenizer, template = Tokenizer(build_tokenizer()), Template.load("short")
    found = []
    for batch in batches(turns):
        chunks = [f" {FILLER[0]}"] * len(batch), [turn.text for turn in batch]
        memories = [""] * len(batch)
        for texts in chunks:
            prompts = [turn.prompt(*each) for turn, *each in zip(batch, memories, texts, strict=True)]
            memories = replies(model, tokenizer, template, prompts)
        for turn, memory in zip(batch, memories, strict=True):
            values = [re.findall(rf"code of {world.told(fact.key)} is (\w+)", memory) for fact in turn.facts]
            found.append((str(turn.ask), any(value in world.CODES for told in values for value in told)))
    return pd.DataFrame(found, columns=["ask", "false"])


def not_taken(model: Any, turns: list[Lookup]) -> pd.DataFrame:
    """Of each turn its ``ask`` and whether a true value is ``not_taken``: the memory, which is :func:`noted`, holds a
    false value of an asked key (of two, either), the chunk tells the true one, and the next memory lacks it.
    """
    tokenizer, template = Tokenizer(build_tokenizer()), Template.load("short")
    rng, found = random.Random(0), []
    for batch in batches(turns):
        facts, prompts = [], []
        for turn, memory in zip(batch, noted(model, tokenizer, template, batch), strict=True):
            fact = rng.choice(turn.facts)
            false = rng.choice([code for code in world.CODES if code not in {each.value for each in turn.facts}])
            facts.append(fact)
            prompts.append(turn.prompt(memory.replace(f" {fact.value}", f" {false}"), turn.telling(fact, rng)))
        for turn, fact, memory in zip(batch, facts, replies(model, tokenizer, template, prompts), strict=True):
            taken = f"code of {world.told(fact.key)} is {fact.value}" in memory
            found.append((str(turn.ask), not taken))
    return pd.DataFrame(found, columns=["ask", "not taken"])


def replies(model: Any, tokenizer: Tokenizer, template: Template, turns: list[Prompt]) -> list[str]:
    """Greedy replies of at most 48 tokens."""
    import torch

    prompts = [tokenizer.chat(template.render(turn)) for turn in turns]
    width = max(map(len, prompts))
    end, pad = tokenizer.hf.convert_tokens_to_ids("<|im_end|>"), tokenizer.hf.pad_token_id
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    made = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=48, do_sample=False, eos_token_id=end, pad_token_id=pad
    )
    texts = tokenizer.hf.batch_decode(made[:, width:], skip_special_tokens=True)
    return [text.strip() for text in texts]


def main() -> None:
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(prog="python -m experiments.pocket.lookups", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--n", type=int, default=3000, help="turns, a third of each kind (default: 3000)")
    parser.add_argument("--seed", type=int, default=77)
    a = parser.parse_args()
    rows, turns = [], lookups(a.n, a.seed)
    for name in a.models:
        model = AutoModelForCausalLM.from_pretrained(name)
        false, kept = (of(model, turns).groupby("ask") for of in (false_values, not_taken))
        for ask, margin in margins(model, turns).groupby("ask")["margin"]:
            rows.append(
                {
                    "model": name,
                    "asked": ask,
                    "lost": str(wilson(int((margin < 0).sum()), len(margin))),
                    "lowest 1 % of margins": margin.quantile(0.01),
                    "false": str(wilson(int(false.get_group(ask)["false"].sum()), len(margin))),
                    "not taken": str(wilson(int(kept.get_group(ask)["not taken"].sum()), len(margin))),
                }
            )
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.1f} nats".format))


if __name__ == "__main__":
    main()
