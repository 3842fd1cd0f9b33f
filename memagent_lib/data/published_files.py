"""Files of MemAgent (Yu et al. 2025), RULER (Hsieh et al. 2024), HotpotQA (Yang et al. 2018) and SQuAD v2.

MemAgent's training parquet has verl's columns. Its evaluation JSON, such as ``eval_50.json``, has ``input`` and
``answers``, or ``outputs`` for RULER's tasks; in long examples ``context`` is a list of numbers, which refer to
documents of HotpotQA or SQuAD.

RULER's own ``validation.jsonl`` puts the document and the question into one field, ``input``, which is split before the
fixed words that begin the question in RULER's templates. If it has no such words, the whole text is the document, and
the question is :data:`FOLLOW_DOCUMENT`. The mirror on Hugging Face (simonjegou/ruler) has separate fields: ``context``,
``question``, ``answer``, ``task``.

HotpotQA's files, in the distractor setting, are the project's JSON, or Hugging Face's parquet or JSON lines.
2WikiMultihopQA (Ho et al. 2020) has the same records; in its parquet (xanhho/2WikiMultihopQA), lists are JSON texts.
These files and SQuAD's are pools of documents, from which longer documents are built.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.layout import numbered_documents
from memagent_lib.data.pools import Pool, PoolQuestion, PoolSpan, read_once
from memagent_lib.data.records import records, texts, utf8_text, written_value
from memagent_lib.paths import expanded

FOLLOW_DOCUMENT = "Follow the task that the document sets at its beginning and at its end."
_QA = "Answer the question based on the given documents."
_ENDS = ("\nWhat are all the special magic ", "\nWhat is the special magic ", "\nQuestion: ", f"\n\n{_QA}")
_MEMAGENT_POOLS = "hotpot_dev_distractor_v1.json (dev-v2.0.json for qa_1)"
Paragraph = tuple[str, list[str]]
"""A title and its sentences."""


def memagent_examples(
    record: Mapping[str, Any], number: int, path: Path, pool: str | Path | None = None
) -> Iterator[Example]:
    """Yield the example of a record in any of MemAgent's forms.

    Document numbers refer to the documents in the file ``pool``. Raises ``ValueError`` for numbers without a ``pool``,
    or if they point into another file. The judges are MemAgent's own: ``boxed`` for training files, ``match_all`` for
    RULER's tasks except qa, and ``lenient`` with the first answer for all others.
    """
    if "reward_model" in record:
        yield _training_example(record, number)
        return
    question = record["input"]
    count = record.get("num_docs")
    index = record.get("index", number - 1)
    metadata = {"documents": count, "index": index, "question_id": question}
    if "outputs" in record:
        named = re.match(r"eval_(.+)_\d+$", path.stem)  # as in eval_niah_single_1_8192.json
        name = named[1] if named else "ruler"
        task = f"ruler/{name}"
        id = f"{name}-{path.stem}-{number}"
        answers = texts(record["outputs"])
    else:
        name = "qa"
        task = "hotpotqa"
        id = f"hqa-{count}-{index}"
        answers = texts(record["answers"])
    is_exact = not name.startswith("qa")
    if is_exact:  # made questions: all of fwe are alike, so each record is a question of its own
        del metadata["question_id"]
    context = record["context"]
    yield Example(
        id=id,
        task=task,
        question=question,
        document=context if isinstance(context, str) else _pool_document(context, question, pool),
        answers=answers if is_exact else answers[:1],
        rule="match_all" if is_exact else "lenient",
        metadata=metadata,
    )


def _training_example(record: Mapping[str, Any], number: int) -> Example:
    extra = record.get("extra_info") or {}
    index = extra.get("index")
    question = record["prompt"][0]["content"]
    return Example(
        id=f"memagent-{extra.get('num_docs')}-{number - 1 if index is None else index}",
        task=str(record.get("data_source") or "hotpotqa"),
        question=question,
        document=record["context"],
        answers=texts(record["reward_model"]["ground_truth"]),
        metadata={"documents": extra.get("num_docs"), "index": index, "question_id": question},
    )


def _pool_document(numbers: Sequence[int], question: str, path: str | Path | None) -> str:
    """Join the pool's documents with the given numbers.

    Raises ``ValueError`` unless the pool has the question and ``numbers`` include its gold documents, because another
    pool would silently give other documents.
    """
    if path is None:
        raise ValueError(f"'context' lists numbers of documents; set pool= to {_MEMAGENT_POOLS}")
    with open(expanded(path), "rb") as file:
        # SQuAD's file is one object, HotpotQA's is a list.
        is_squad = file.read(64).lstrip().startswith(b"{")
    pool = read_once(squad_pool if is_squad else hotpot_pool, expanded(path))
    gold = [set(known.gold) for known in pool.questions if known.question == question]
    if not any(documents <= set(numbers) for documents in gold):
        raise ValueError(f"the pool {path} is not the one that the file was made from; set pool= to {_MEMAGENT_POOLS}")
    return numbered_documents([pool.documents[i] for i in numbers])


def ruler_examples(record: Mapping[str, Any], number: int, path: Path) -> Iterator[Example]:
    """Yield the example of a record, judged as in RULER: qa tasks by ``match_part``, all others by ``match_all``.

    Ids contain the number of the record, because ``index`` repeats in RULER's needle files. The task is named by the
    mirror's records. For other files it is the file's name or, in RULER's own layout
    (``niah_single_1/validation.jsonl``), the folder's name.
    """
    if "input" in record:
        file = Path(os.path.abspath(path))  # links are not followed: the Hub's cache links names to hashes
        task = file.parent.name if file.stem in ("validation", "test", "train") else file.stem
        document, question = split_ruler(record["input"])
        is_qa = _QA in record["input"]
    else:
        task = record["task"]
        document, question = record["context"], record["question"].strip()
        is_qa = task.startswith("qa")
    recorded = {name: record[name] for name in ("length", "token_position_answer") if name in record}
    yield Example(
        id=f"{task}-{number}",
        task=f"ruler/{task}",
        question=question,
        document=document,
        answers=texts(record["outputs"] if "input" in record else record["answer"]),
        rule="match_part" if is_qa else "match_all",
        metadata={"line": number, **recorded},
    )


def split_ruler(text: str) -> tuple[str, str]:
    """Split a RULER ``input`` into ``(document, question)`` at the last words that begin a question in RULER.

    Without such words, the question is :data:`FOLLOW_DOCUMENT`. An instruction that RULER repeats right before the
    question is left out.
    """
    # At the last, because documents contain questions too.
    cut = max(text.rfind(end) for end in _ENDS)
    if cut < 0:
        return text, FOLLOW_DOCUMENT
    document = text[:cut]
    # RULER repeats its instruction right before the question of a qa prompt.
    if _QA in document.rpartition("\n\n")[2]:
        document = document.rpartition("\n\n")[0]
    return document, text[cut:].strip()


def hotpot_pool(path: str | Path) -> Pool:
    """Return a file's questions and its distinct paragraphs, which are in MemAgent's order.

    Questions that lack a supporting paragraph, as most in the fullwiki files do, are left out as unanswerable.
    """
    found = [(record, _pairs(record["context"], "sentences")) for record in records(path)]
    # MemAgent's evaluation files point into this order by number.
    documents = tuple(sorted({_text(paragraph) for _, own in found for paragraph in own}))
    number_of = {text: i for i, text in enumerate(documents)}
    questions = []
    for number, (record, own) in enumerate(found, 1):
        if {title for title, _ in _supporting(record)} <= {title for title, _ in own}:
            questions.append(_hotpot_question(record, number, own, number_of))
    return Pool(documents, tuple(questions), str(path), len(found) - len(questions))


def _pairs(value: Any, second: str) -> list[tuple[Any, Any]]:
    """Return the pairs of a list, which may be a JSON text, or of the Hub's two columns ``title`` and ``second``."""
    if isinstance(value, str):
        value = written_value(value)
    if isinstance(value, Mapping):
        return list(zip(value["title"], value[second], strict=True))
    return [(left, right) for left, right in value]


def _supporting(record: Mapping[str, Any]) -> list[tuple[str, int]]:
    return _pairs(record.get("supporting_facts") or [], "sent_id")


def _text(paragraph: Paragraph) -> str:
    title, sentences = paragraph
    return f"{title}\n{''.join(sentences)}"


def _hotpot_question(
    record: Mapping[str, Any], number: int, own: list[Paragraph], number_of: Mapping[str, int]
) -> PoolQuestion:
    gold: dict[int, None] = {}  # in order, without repeats
    evidence: list[PoolSpan] = []
    for title, index in _supporting(record):
        for paragraph in own:  # several may have one title
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
    return Pool(documents, tuple(questions), str(path), unanswerable)


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
