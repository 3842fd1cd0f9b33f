"""Measure how often one hard turn loses a value, notes a false one, or fails to correct a false one.

Run it as ``python -m experiments.pocket.lookups MODEL [MODEL ...]``. The questions are about one code, two codes, or
the last of several; nearly all of the ten statements in a chunk share a word with a key in the question.

- *Lost*: the memory has the answer, in the policy's own words, but where the next memory should repeat the value,
  another token is likelier.
- *False*: no text has stated the answer, but the next memory states a value for a key in the question.
- *Not taken*: the memory has a false value and the chunk states the true one, but the next memory lacks the true one.

Three thousand turns take minutes; counting losses in documents of 256 chunks takes an hour.
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
from experiments.pocket.world import QuestionKind, Triple
from memagent_lib.evaluation import wilson
from memagent_lib.prompts import Template
from memagent_lib.text import Chunk, Tokenizer
from memagent_lib.trace import Kind, Prompt

KINDS = (QuestionKind.NEEDLE, QuestionKind.MULTIKEY, QuestionKind.UPDATE)
CROWD = world.Crowd(density=1.0, half_matching=0.95)
BATCH = 64
REPLY_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Lookup:
    """A question, the triples that answer it, and the text of a chunk full of other statements."""

    kind: QuestionKind
    question: str
    triples: list[Triple]
    text: str

    def prompt(self, memory: str, text: str) -> Prompt:
        """Return the prompt of a read turn with this question, ``memory``, and the chunk ``text``."""
        return Prompt(Kind.READ, self.question, memory, Chunk(0, text, 0, len(text), 0))

    def stating(self, triple: Triple, rng: random.Random) -> str:
        """Return the chunk's text with ``triple`` in place of a random statement."""
        sentences = self.text.strip(" .").split(". ")
        sentences[rng.randrange(len(sentences))] = triple.text.rstrip(".")
        return f" {'. '.join(sentences)}."


def lookups(n: int, seed: int) -> list[Lookup]:
    """Return ``n`` look-ups that depend only on ``seed``. Their questions cycle through the three kinds."""
    rng = random.Random(seed)
    made = []
    for i in range(n):
        question = world.random_question(KINDS[i % len(KINDS)], rng)
        # Of several values of one key, the last one is the answer.
        triples = list({triple.key: triple for triple in question.triples}.values())
        text = " " + " ".join(CROWD.sentences(rng, question, (), 10))
        made.append(Lookup(question.kind, question.text, triples, text))
    return made


def batches(turns: list[Lookup]) -> Iterator[list[Lookup]]:
    """Yield the turns in order, in batches for the model."""
    return (turns[start : start + BATCH] for start in range(0, len(turns), BATCH))


def margins(model: Any, turns: list[Lookup]) -> pd.DataFrame:
    """Return a row per turn with its ``kind`` and its ``margin`` in nats. A value with a margin below 0 is lost.

    The margin is the log-probability of the value minus that of the likeliest other token at its position. A turn with
    two values gets the smaller margin.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokenizer = Tokenizer(build_tokenizer())
    template = Template.load("short")
    found = []
    for batch in batches(turns):
        memories = noted(model, tokenizer, template, batch)
        prompts = [
            tokenizer.chat(template.render(turn.prompt(memory, turn.text)))
            for turn, memory in zip(batch, memories, strict=True)
        ]
        continuations = [tokenizer.encode(memory) for memory in memories]
        ids = [torch.tensor(prompt + reply) for prompt, reply in zip(prompts, continuations, strict=True)]
        with torch.no_grad():
            # Padded on the right, where it changes nothing in a causal model.
            hidden = model.model(input_ids=pad_sequence(ids, batch_first=True)).last_hidden_state
            for row, turn, prompt, reply in zip(hidden, batch, prompts, continuations, strict=True):
                values = [tokenizer.encode(f" {triple.value}")[0] for triple in turn.triples]
                logits = model.lm_head(row[[len(prompt) + reply.index(value) - 1 for value in values]])
                true = torch.tensor(values)[:, None]
                others = logits.scatter(1, true, -torch.inf).amax(1)
                found.append((str(turn.kind), (logits.gather(1, true)[:, 0] - others).min().item()))
    return pd.DataFrame(found, columns=["kind", "margin"])


def plain(turn: Lookup) -> str:
    """Return the statements that answer a turn's question, worded as in a document."""
    return " ".join(triple.text for triple in turn.triples)


def noted(model: Any, tokenizer: Tokenizer, template: Template, turns: list[Lookup]) -> list[str]:
    """Return, for each turn, the policy's greedy memory after a chunk that states only the answer.

    A memory that lacks a value is replaced by the chunk's own words: a warm start chooses statements at random.
    """
    memories = replies(model, tokenizer, template, [turn.prompt("", f" {plain(turn)}") for turn in turns])
    return [
        memory if all(f" {triple.value}" in memory for triple in turn.triples) else plain(turn)
        for turn, memory in zip(turns, memories, strict=True)
    ]


def false_values(model: Any, turns: list[Lookup]) -> pd.DataFrame:
    """Return a row per turn with its ``kind``, and whether its greedy memory is ``false``.

    A false memory states a value for a key in the question, although no chunk has stated one. The previous memory is
    the one that the policy writes after a chunk with only filler.
    """
    tokenizer = Tokenizer(build_tokenizer())
    template = Template.load("short")
    found = []
    for batch in batches(turns):
        memories = [""] * len(batch)
        # First a chunk of filler, so that the previous memory is what the policy writes if nothing is stated.
        for texts in ([f" {world.FILLER[0]}"] * len(batch), [turn.text for turn in batch]):
            prompts = [turn.prompt(memory, text) for turn, memory, text in zip(batch, memories, texts, strict=True)]
            memories = replies(model, tokenizer, template, prompts)
        for turn, memory in zip(batch, memories, strict=True):
            values = [
                value
                for triple in turn.triples
                for value in re.findall(rf"code of {world.with_article(triple.key)} is (\w+)", memory)
            ]
            # A memory may state that a value is unknown, which is true here.
            found.append((str(turn.kind), any(value in world.CODES for value in values)))
    return pd.DataFrame(found, columns=["kind", "false"])


def not_taken(model: Any, turns: list[Lookup]) -> pd.DataFrame:
    """Return a row per turn with its ``kind``, and whether the true value is ``not taken``.

    The memory (see :func:`noted`) has a false value for a key in the question, or for one of its two keys, and the
    chunk states the true value. That value is not taken if the next memory lacks it.
    """
    tokenizer = Tokenizer(build_tokenizer())
    template = Template.load("short")
    rng = random.Random(0)
    found = []
    for batch in batches(turns):
        stated = []
        prompts = []
        for turn, memory in zip(batch, noted(model, tokenizer, template, batch), strict=True):
            triple = rng.choice(turn.triples)
            true = {each.value for each in turn.triples}
            false = rng.choice([code for code in world.CODES if code not in true])
            stated.append(triple)
            prompts.append(turn.prompt(memory.replace(f" {triple.value}", f" {false}"), turn.stating(triple, rng)))
        memories = replies(model, tokenizer, template, prompts)
        for turn, triple, memory in zip(batch, stated, memories, strict=True):
            taken = f"code of {world.with_article(triple.key)} is {triple.value}" in memory
            found.append((str(turn.kind), not taken))
    return pd.DataFrame(found, columns=["kind", "not taken"])


def replies(model: Any, tokenizer: Tokenizer, template: Template, turns: list[Prompt]) -> list[str]:
    """Return the greedy replies to prompts, each of at most :data:`REPLY_TOKENS` tokens."""
    import torch

    prompts = [tokenizer.chat(template.render(turn)) for turn in turns]
    width = max(map(len, prompts))
    pad = tokenizer.hf.pad_token_id
    # Padded on the left, because a reply begins right after its prompt.
    made = model.generate(
        input_ids=torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts]),
        attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
        max_new_tokens=REPLY_TOKENS,
        do_sample=False,
        eos_token_id=tokenizer.hf.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=pad,
    )
    texts = tokenizer.hf.batch_decode(made[:, width:], skip_special_tokens=True)
    return [text.strip() for text in texts]


def table(models: list[str], turns: list[Lookup]) -> pd.DataFrame:
    """Return a row per model and kind of question, with each share and its Wilson interval."""
    from transformers import AutoModelForCausalLM

    rows = []
    for name in models:
        model = AutoModelForCausalLM.from_pretrained(name)
        false = false_values(model, turns).groupby("kind")["false"].sum()
        missed = not_taken(model, turns).groupby("kind")["not taken"].sum()
        for kind, margin in margins(model, turns).groupby("kind")["margin"]:
            rows.append(
                {
                    "model": name,
                    "question": kind,
                    "lost": str(wilson(int((margin < 0).sum()), len(margin))),
                    "lowest 1 % of margins": margin.quantile(0.01),
                    "false": str(wilson(int(false[kind]), len(margin))),
                    "not taken": str(wilson(int(missed[kind]), len(margin))),
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.pocket.lookups", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--n", type=int, default=3000, help="turns, a third of each kind (default: 3000)")
    parser.add_argument("--seed", type=int, default=77)
    options = parser.parse_args()
    found = table(options.models, lookups(options.n, options.seed))
    print(found.to_string(index=False, float_format="{:.1f} nats".format))


if __name__ == "__main__":
    main()
