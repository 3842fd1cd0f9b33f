"""SQuAD v2 (Rajpurkar et al. 2018): answerable questions, each about its own paragraph or about many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, field_of, json_value, unique
from memagent_lib.data.pools import Pool, PoolQuestion, PoolSpan, read_once

_EXPECTED = "an object with 'data', as in dev-v2.0.json"


def read_squad(path: str | Path) -> Iterator[Example]:
    """Yield one example per answerable question, with the paragraph that the question is about as its document."""
    pool = read_squad_pool(path)
    return (pool.own_example(replace(question, own=question.gold), "squad") for question in pool.questions)


@read_once
def read_squad_pool(path: str | Path) -> Pool:
    """Return all paragraphs, sorted, and the answerable questions, whose ``own`` paragraphs are their article's."""
    data = field_of(json_value(path, dict, _EXPECTED), "data", list, str(path))
    articles = []
    for number, article in enumerate(data, 1):
        where = f"{path}, article {number}"
        paragraphs = field_of(article, "paragraphs", list, where)
        articles.append(
            (where, [(field_of(p, "context", str, where), field_of(p, "qas", list, where)) for p in paragraphs])
        )
    # MemAgent's evaluation files point into this order by number.
    documents = tuple(sorted({text for _, paragraphs in articles for text, _ in paragraphs}))
    if not documents:
        raise ValueError(f"{path}: expected {_EXPECTED}, found no paragraph")
    number_of = {text: i for i, text in enumerate(documents)}
    questions: list[PoolQuestion] = []
    unanswerable = 0
    for where, paragraphs in articles:
        own = tuple(dict.fromkeys(number_of[text] for text, _ in paragraphs))
        for text, entries in paragraphs:
            answerable = [entry for entry in entries if not entry.get("is_impossible", False)]
            unanswerable += len(entries) - len(answerable)
            questions += [_question(entry, text, number_of[text], own, where) for entry in answerable]
    return Pool(documents, tuple(unique(questions, path)), str(path), unanswerable=unanswerable)


def _question(entry: Mapping[str, Any], text: str, document: int, own: tuple[int, ...], where: str) -> PoolQuestion:
    question = field_of(entry, "question", str, where)
    answers = field_of(entry, "answers", list, where)
    id = Record(entry, 1, where).id("id") or question
    where = f"{where}, question {id!r}"
    if not answers:
        raise ValueError(f"{where}: the answer list is empty and is_impossible is not set")
    start = field_of(answers[0], "answer_start", int, where)
    # Annotators' spans differ; the first one is the evidence, and every wording is accepted.
    wordings = tuple(dict.fromkeys(field_of(answer, "text", str, where) for answer in answers))
    # In translations of SQuAD, positions are often wrong, or -1.
    is_there = start >= 0 and text.startswith(wordings[0], start)
    return PoolQuestion(
        id=id,
        question=question,
        answers=wordings,
        gold=(document,),
        own=own,
        evidence=(PoolSpan(document, start, start + len(wordings[0])),) if is_there else (),
    )


FORMAT = Format(
    name="squad",
    files="SQuAD v2's JSON",
    fields=("data",),
    read=read_squad,
    pool=read_squad_pool,
    unanswerable=lambda path: read_squad_pool(path).unanswerable,
)
