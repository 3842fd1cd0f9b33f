"""SQuAD v2 (Rajpurkar et al. 2018): answerable questions, over their own paragraph or among all articles'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.records import field_of, json_value, unique
from memagent_lib.data.pools import Pool, PoolPlace, PoolQuestion


def read_squad(path: str | Path) -> Iterator[Example]:
    """Each answerable question over its own paragraph."""
    pool = read_squad_pool(path)
    return (pool.own(replace(asked, own=asked.gold), "squad") for asked in pool.questions)


def read_squad_pool(path: str | Path) -> Pool:
    """All paragraphs, sorted, and the answerable questions, each with its article's other paragraphs."""
    data = field_of(json_value(path, dict, "an object with 'data', as in dev-v2.0.json"), "data", list, str(path))
    articles = []
    for number, article in enumerate(data, 1):
        where = f"{path}, article {number}"
        paragraphs = field_of(article, "paragraphs", list, where)
        articles.append(
            (where, [(field_of(p, "context", str, where), field_of(p, "qas", list, where)) for p in paragraphs])
        )
    documents = tuple(sorted({text for _, paragraphs in articles for text, _ in paragraphs}))
    place = {text: i for i, text in enumerate(documents)}
    asked: list[PoolQuestion] = []
    for where, paragraphs in articles:
        own = tuple(dict.fromkeys(place[text] for text, _ in paragraphs))
        for text, questions in paragraphs:
            answerable = [qa for qa in questions if not qa.get("is_impossible", False)]
            asked += [_question(qa, place[text], own, where) for qa in answerable]
    return Pool(documents, tuple(unique(asked, path)), str(path))


def unanswerable(path: str | Path) -> int:
    """How many questions of a file are left out, because its paragraphs do not answer them."""
    articles = json_value(path, dict, "an object with 'data', as in dev-v2.0.json")["data"]
    asked = (qa for article in articles for paragraph in article["paragraphs"] for qa in paragraph["qas"])
    return sum(bool(qa.get("is_impossible", False)) for qa in asked)


def _question(qa: Mapping[str, Any], document: int, own: tuple[int, ...], where: str) -> PoolQuestion:
    question, answers = field_of(qa, "question", str, where), field_of(qa, "answers", list, where)
    where = f"{where}, question {qa.get('id')!r}"
    if not answers:
        raise ValueError(f"{where}: the answer list is empty and is_impossible is not set")
    start = field_of(answers[0], "answer_start", int, where)
    wordings = tuple(dict.fromkeys(field_of(answer, "text", str, where) for answer in answers))
    return PoolQuestion(
        id=str(qa.get("id", question)),
        question=question,
        answers=wordings,
        gold=(document,),
        own=own,
        evidence=(PoolPlace(document, start, start + len(wordings[0])),),
    )
