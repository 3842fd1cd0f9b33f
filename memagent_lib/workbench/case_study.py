"""The paper's case study (arXiv 2507.02259), rebuilt: a question of two hops, a lead that may help, and what replaces
it.

The three articles state the facts in our own words; all others come from a generated world. :func:`play` is **no
model**: four rules, written by hand, that do with a prompt what the paper's 14B policy is reported to have done with
it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from memagent_lib.agent import Agent, open_agent
from memagent_lib.backends import Sampling, Scripted
from memagent_lib.data import Example, Span, world
from memagent_lib.files import model as model_path
from memagent_lib.prompts import Budget, Completion, Encoder, Template
from memagent_lib.text import Tokenizer

QUESTION = "The director of the romantic comedy 'Big Stone Gap' is based in what New York city?"
ACCEPTED = ("Greenwich Village", "Greenwich Village, New York City")
SCRIPT = "script"
TEMPLATE = "chunk_first"
SHARES = (0.1, 0.5, 0.52)


class Article(NamedTuple):
    """A title, what is said first, and the sentence that matters here."""

    title: str
    about: str
    fact: str

    def __str__(self) -> str:
        return f"{self.title}\n{self.about} {self.fact}"


LEAD = Article(
    "Ghost (production team)", "Ghost is a team of two who write and produce pop songs.", "Ghost is based in New York."
)
FILM = Article(
    "Big Stone Gap (film)",
    "Big Stone Gap is a romantic comedy of 2014 about a pharmacist in a coal town of Virginia.",
    "The film Big Stone Gap was directed by Adriana Trigiani.",
)
DIRECTOR = Article(
    "Adriana Trigiani",
    "Adriana Trigiani writes novels and plays, and makes films.",
    "Adriana Trigiani is based in Greenwich Village, New York City.",
)


def example(others: int = 26, places: Sequence[float] = SHARES, seed: int = 0) -> Example:
    """The question and its document: ``others`` articles of a world, and LEAD, FILM and DIRECTOR at these shares."""
    if len(places) != 3 or not all(0 <= place <= 1 for place in places):
        raise ValueError(f"places are three shares between 0 and 1 (lead, film, director), got {list(places)}")
    if others < 1:
        raise ValueError(f"others must be at least 1, got {others}")
    drawn = random.Random(f"case study {seed}").sample(world(seed).entities, others)
    articles = [(i / others, entity.document) for i, entity in enumerate(drawn)]
    articles += zip(places, map(str, (LEAD, FILM, DIRECTOR)), strict=True)
    texts = [text for _, text in sorted(articles, key=lambda at: at[0])]
    document = "\n\n".join(f"Document {i}:\n{text}" for i, text in enumerate(texts, 1))
    evidence = sorted(Span(at := document.index(article.fact), at + len(article.fact)) for article in (FILM, DIRECTOR))
    return Example(
        id=f"big-stone-gap-{others}-{seed}",
        task="case study",
        question=QUESTION,
        document=document,
        answers=ACCEPTED,
        rule="contains",
        evidence=tuple(evidence),
        metadata={"hops": 2, "documents": len(texts)},
    )


def open_reader(
    backend: str = SCRIPT, model: str = "experiments/pocket/warm_start", budget: Budget | None = None, **options: object
) -> Agent:
    """An agent that reads with :func:`play`, or with a model where ``backend`` names one of ``open_agent``'s."""
    budget = budget or Budget()
    if backend != SCRIPT:
        return open_agent(model, backend, template=TEMPLATE, budget=budget, sampling=Sampling(), **options)
    tokenizer = Tokenizer.load(model_path(model))

    def answer(prompt: str) -> Completion:
        said = play(prompt)
        return Completion(said, prompt_tokens=tokenizer.count(prompt), reply_tokens=tokenizer.count(said))

    return Agent(Encoder(tokenizer, Template.load(TEMPLATE), budget), Scripted(answer))


_DIRECTED = re.compile(r"The film (?P<film>[^.\n]+?) was directed by (?P<person>[^.\n]+)\.")
_BASED = re.compile(r"(?P<who>[A-Z][^.\n]*?) is based in (?P<where>[^.\n]*New York[^.\n]*)\.")


def play(prompt: str) -> str:
    """The next memory or the answer, by four rules that know nothing but what the prompt shows.

    Who directed the asked film is evidence, and so is where that person is based. Where somebody else in New York is
    based is a lead: kept while there is no evidence, dropped when there is. Everything else is left out.
    """
    asked, memory, piece = (_part(prompt, name) for name in ("question", "memory", "piece"))
    film = re.search(r"'(.+?)'", asked)
    seen = f"{memory}\n{piece}"
    directors = {m["person"]: None for m in _DIRECTED.finditer(seen) if film and m["film"] == film[1]}
    based = {m["who"].removeprefix("Lead: ").removeprefix("Evidence: "): m["where"] for m in _BASED.finditer(seen)}
    found = [person for person in directors if person in based]
    if "<piece>" not in prompt:
        return f"\\boxed{{{based[found[0]] if found else 'unknown'}}}"
    lines = [f"Evidence: The film {film[1]} was directed by {person}." for person in directors]
    lines += [f"Evidence: {person} is based in {based[person]}." for person in found]
    lines += [f"Lead: {who} is based in {where}." for who, where in based.items() if not found]
    return "\n".join(lines) or "Nothing that helps yet."


def _part(prompt: str, name: str) -> str:
    found = re.search(rf"<{name}>\n(.*?)\n</{name}>", prompt, re.DOTALL)
    return found[1] if found else ""
