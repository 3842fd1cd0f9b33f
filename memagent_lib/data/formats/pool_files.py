"""Questions over pools of documents: HotpotQA (Yang et al. 2018), distractor setting, and SQuAD v2 (Rajpurkar et al.).

HotpotQA's files are the project's JSON, or Hugging Face's parquet or JSON lines. 2WikiMultihopQA (Ho et al. 2020) has
the same records; in its parquet (xanhho/2WikiMultihopQA), lists are JSON texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data.formats.records import records, utf8_text, written_value
from memagent_lib.data.pools import Pool, PoolQuestion, PoolSpan, read_once

Paragraph = tuple[str, list[str]]
"""A title and its sentences."""


@read_once
def hotpot_pool(path: str | Path) -> Pool:
    """Return a file's questions and its distinct paragraphs, which are in MemAgent's order."""
    found = [(record, _pairs(record["context"], "title", "sentences")) for record in records(path)]
    # MemAgent's evaluation files point into this order by number.
    documents = tuple(sorted({_text(paragraph) for _, own in found for paragraph in own}))
    number_of = {text: i for i, text in enumerate(documents)}
    questions = [_hotpot_question(record, number, own, number_of) for number, (record, own) in enumerate(found, 1)]
    titles = [{title for title, _ in own} for _, own in found]
    incomplete = sum(
        any(title not in known for title, _ in _supporting(record))
        for (record, _), known in zip(found, titles, strict=True)
    )
    return Pool(documents, tuple(questions), str(path), incomplete)


def hotpot_note(path: str | Path) -> str:
    """Return a note if questions lack a supporting paragraph, so that their document does not answer them."""
    found = hotpot_pool(path)
    if not found.incomplete:
        return ""
    return (
        f"{path}: {found.incomplete:,} of {len(found.questions):,} questions lack a paragraph that their answer needs, "
        "as in HotpotQA's fullwiki files; use the distractor files, such as hotpot_dev_distractor_v1.json"
    )


def _pairs(value: Any, first: str, second: str) -> list[tuple[Any, Any]]:
    """Return the pairs of a list, which may be a JSON text, or of the Hub's two columns ``first`` and ``second``."""
    if isinstance(value, str):
        value = written_value(value)
    if isinstance(value, Mapping):
        return list(zip(value[first], value[second], strict=True))
    return [(left, right) for left, right in value]


def _supporting(record: Mapping[str, Any]) -> list[tuple[str, int]]:
    return _pairs(record.get("supporting_facts") or [], "title", "sent_id")


def _text(paragraph: Paragraph) -> str:
    title, sentences = paragraph
    return f"{title}\n{''.join(sentences)}"


def _hotpot_question(
    record: Mapping[str, Any], number: int, own: list[Paragraph], number_of: Mapping[str, int]
) -> PoolQuestion:
    gold: dict[int, None] = {}  # in order, without repeats
    evidence: list[PoolSpan] = []
    for title, index in _supporting(record):
        # The source may name a paragraph that the question lacks, or a title that several paragraphs have.
        for paragraph in own:
            if paragraph[0] == title:
                document = number_of[_text(paragraph)]
                gold[document] = None
                evidence += _sentence(document, paragraph, index)
    context = dict.fromkeys(number_of[_text(paragraph)] for paragraph in own)
    return PoolQuestion(
        id=str(record.get("_id") or record.get("id") or number),
        question=record["question"],
        answers=(record["answer"],),
        gold=tuple(gold or context),  # without supporting sentences, any paragraph may have the answer
        own=tuple(context),
        evidence=tuple(evidence),
        metadata={"type": record.get("type")},
    )


def _sentence(document: int, paragraph: Paragraph, index: int) -> list[PoolSpan]:
    """Return the span of a sentence, without the white space around it; none if there is no such sentence."""
    title, sentences = paragraph
    if not 0 <= index < len(sentences) or not sentences[index].strip():
        return []
    end = len(title) + 1 + sum(map(len, sentences[: index + 1]))
    return [PoolSpan(document, end - len(sentences[index].lstrip()), end)]


@read_once
def squad_pool(path: str | Path) -> Pool:
    """Return all paragraphs, sorted, and the answerable questions, whose ``near`` paragraphs are their article's."""
    articles = [article["paragraphs"] for article in json.loads(utf8_text(Path(path)))["data"]]
    # MemAgent's evaluation files point into this order by number.
    documents = tuple(sorted({paragraph["context"] for article in articles for paragraph in article}))
    number_of = {text: i for i, text in enumerate(documents)}
    questions: list[PoolQuestion] = []
    unanswerable = 0
    for article in articles:
        near = tuple(dict.fromkeys(number_of[paragraph["context"]] for paragraph in article))
        for paragraph in article:
            answerable = [entry for entry in paragraph["qas"] if not entry.get("is_impossible", False)]
            unanswerable += len(paragraph["qas"]) - len(answerable)
            text = paragraph["context"]
            questions += [_squad_question(entry, text, number_of[text], near) for entry in answerable]
    return Pool(documents, tuple(questions), str(path), unanswerable=unanswerable)


def _squad_question(entry: Mapping[str, Any], text: str, document: int, near: tuple[int, ...]) -> PoolQuestion:
    start = entry["answers"][0]["answer_start"]
    # Annotators' spans differ; the first one is the evidence, and every wording is accepted.
    wordings = tuple(dict.fromkeys(answer["text"] for answer in entry["answers"]))
    # In translations of SQuAD, positions are often wrong, or -1.
    is_there = start >= 0 and text.startswith(wordings[0], start)
    return PoolQuestion(
        id=str(entry.get("id") or entry["question"]),
        question=entry["question"],
        answers=wordings,
        gold=(document,),
        own=(document,),
        near=near,
        evidence=(PoolSpan(document, start, start + len(wordings[0])),) if is_there else (),
    )
