"""The files of other projects, read as those projects publish them. Their words stay theirs: nothing is rewritten.

:func:`read_original` reads one of :data:`FORMATS`; an error names the file, the line, what was expected and what was found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example, Span
from memagent_lib.data.formats.babilong import read_babilong
from memagent_lib.data.formats.infinitebench import read_infinitebench
from memagent_lib.data.formats.json_files import field_of, json_file, json_lines, named_texts, texts
from memagent_lib.data.formats.longbench import read_longbench
from memagent_lib.data.formats.ruler_prompts import split_ruler
from memagent_lib.data.tasks.pooled import FilePool, Place, PoolQuestion, joined, located

_POOL_HINT = "give pool=, the hotpot_dev_distractor_v1.json that the numbers point into"


def read_ruler(path: str | Path, rule: str | None = None) -> Iterator[Example]:
    """RULER's ``validation.jsonl``: ``index``, ``input``, ``outputs``, ``length``; or MemAgent's form with ``context`` apart.

    The rule is RULER's own, ``match_part`` for its qa prompts and ``match_all`` for all others, unless ``rule`` says otherwise.

    RULER keeps document and question in one text, ``input``; they are told apart by the end of the task's template. Where that
    does not succeed the whole text is the document, and the question says to follow it.
    """
    for line, record in json_lines(path):
        where = f"{path}, line {line}"
        whole, answers = field_of(record, "input", str, where), texts(record, "outputs", where)
        document, question = (
            (record["context"], whole) if isinstance(record.get("context"), str) else split_ruler(whole)
        )
        part = (
            "answer" in str(record.get("answer_prefix", "")).lower() and "Question:" in whole and "Document 1:" in whole
        )
        facts = {"length": record.get("length"), "line": line} | {
            k: record[k] for k in ("token_position_answer",) if k in record
        }
        yield Example(
            id=f"{Path(path).parent.name}-{record.get('index', line - 1)}",
            task=f"ruler/{Path(path).parent.name}",
            question=question,
            document=document,
            answers=tuple(answers),
            rule=rule or ("match_part" if part else "match_all"),
            metadata=facts,
        )


def read_hotpot(path: str | Path, rule: str = "contains") -> Iterator[Example]:
    """HotpotQA's distractor JSON: each question over its own ten paragraphs, with the supporting sentences as evidence."""
    pool = read_hotpot_pool(path, rule=rule)
    for asked in pool.questions:
        yield _over_own(pool, asked, "hotpotqa")


def read_squad(path: str | Path, rule: str = "contains") -> Iterator[Example]:
    """SQuAD v2 JSON: each answerable question over its own paragraph."""
    pool = read_squad_pool(path, rule=rule)
    for asked in pool.questions:
        yield _over_own(pool, asked, "squad", only_gold=True)


def _over_own(pool: FilePool, asked: PoolQuestion, task: str, only_gold: bool = False) -> Example:
    order = list(asked.gold) if only_gold else list(asked.metadata["context"])
    text, starts = located(pool.documents, order, set(order))
    evidence = tuple(Span(starts[p.document] + p.start, starts[p.document] + p.end) for p in asked.evidence)
    return Example(
        id=f"{task}-{asked.metadata['id']}",
        task=task,
        question=asked.question,
        document=text,
        answers=asked.answers,
        rule=asked.rule,
        evidence=evidence,
        metadata={"type": asked.metadata.get("type"), "documents": len(order)},
    )


def read_hotpot_pool(path: str | Path, rule: str = "contains") -> FilePool:
    """All paragraphs of a HotpotQA distractor file, without repeats and sorted as MemAgent sorts them, and its questions."""
    records = json_file(path, list, "a list of questions, as in hotpot_dev_distractor_v1.json")
    paragraphs = [_paragraphs(record, f"{path}, question {i}") for i, record in enumerate(records, 1)]
    documents = tuple(sorted({text for own in paragraphs for text, _ in own}))
    place = {text: i for i, text in enumerate(documents)}
    asked = [
        _hotpot_question(r, own, place, rule, f"{path}, question {i}")
        for i, (r, own) in enumerate(zip(records, paragraphs, strict=True), 1)
    ]
    _require_different([q.metadata["id"] for q in asked], path)
    return FilePool(documents, tuple(asked), str(path))


Paragraph = tuple[str, dict[int, tuple[int, int]]]
"""A paragraph's text under its title, and where each of its sentences stands in it."""


def _paragraphs(record: Any, where: str) -> list[Paragraph]:
    found = []
    for entry in field_of(record, "context", list, where):
        if not (
            isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], list)
        ):
            raise ValueError(
                f"{where}: a paragraph of 'context' is [title, [sentence, ...]], found {str(entry)[:80]!r}"
            )
        title, sentences = entry
        at, spans = len(title) + 1, {}
        for number, sentence in enumerate(sentences):
            spans[number] = (at, at + len(sentence))
            at += len(sentence)
        found.append((f"{title}\n{''.join(sentences)}", spans))
    return found


def _hotpot_question(
    record: Mapping[str, Any], own: list[Paragraph], place: Mapping[str, int], rule: str, where: str
) -> PoolQuestion:
    question, answer = field_of(record, "question", str, where), field_of(record, "answer", str, where)
    if not answer.strip():
        raise ValueError(f"{where}: the answer is empty")
    titles = {text.partition("\n")[0]: (text, spans) for text, spans in own}
    evidence, gold = [], []
    for title, number in record.get("supporting_facts", ()):
        if title not in titles:
            continue
        text, spans = titles[title]
        gold.append(place[text])
        if (
            number in spans and spans[number][0] < spans[number][1]
        ):  # some supporting facts of the published file point past the end
            start, end = spans[number]
            evidence.append(Place(place[text], start + len(text[start:end]) - len(text[start:end].lstrip()), end))
    context = [place[text] for text, _ in own]
    return PoolQuestion(
        question=question,
        answers=(answer,),
        gold=tuple(dict.fromkeys(gold)) or tuple(dict.fromkeys(context)),
        near=tuple(context),
        evidence=tuple(e for e in evidence if e.start < e.end),
        rule=rule,
        metadata={
            "id": str(record.get("_id", where)),
            "type": record.get("type"),
            "context": list(dict.fromkeys(context)),
        },
    )


def read_squad_pool(path: str | Path, rule: str = "contains") -> FilePool:
    """All paragraphs of a SQuAD file, sorted, and its answerable questions; the article's other paragraphs are near documents."""
    data = field_of(json_file(path, dict, "an object with 'data', as in dev-v2.0.json"), "data", list, str(path))
    contexts: list[list[str]] = []
    for number, article in enumerate(data, 1):
        where = f"{path}, article {number}"
        contexts.append([field_of(p, "context", str, where) for p in field_of(article, "paragraphs", list, where)])
    documents = tuple(sorted({text for own in contexts for text in own}))
    place = {text: i for i, text in enumerate(documents)}
    asked: list[PoolQuestion] = []
    for number, (article, own) in enumerate(zip(data, contexts, strict=True), 1):
        near = tuple(dict.fromkeys(place[text] for text in own))
        for paragraph, text in zip(article["paragraphs"], own, strict=True):
            for qa in field_of(paragraph, "qas", list, f"{path}, article {number}"):
                if not qa.get("is_impossible", False):
                    asked.append(_squad_question(qa, place[text], near, rule, f"{path}, article {number}"))
    _require_different([q.metadata["id"] for q in asked], path)
    return FilePool(documents, tuple(asked), str(path))


def _squad_question(qa: Mapping[str, Any], document: int, near: tuple[int, ...], rule: str, where: str) -> PoolQuestion:
    question, answers = field_of(qa, "question", str, where), field_of(qa, "answers", list, where)
    where = f"{where}, question {qa.get('id')!r}"
    if not answers:
        raise ValueError(f"{where}: the answer list is empty and is_impossible is not set")
    start = field_of(answers[0], "answer_start", int, where)
    wordings = tuple(dict.fromkeys(field_of(answer, "text", str, where) for answer in answers))
    return PoolQuestion(
        question=question,
        answers=wordings,
        gold=(document,),
        near=near,
        evidence=(Place(document, start, start + len(wordings[0])),),
        rule=rule,
        metadata={"id": str(qa.get("id", question))},
    )


def read_memagent_parquet(path: str | Path) -> Iterator[Example]:
    """MemAgent's training parquet (``hotpotqa_train_32k.parquet``): ``context``, ``prompt``, ``reward_model``, ``extra_info``."""
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except ValueError as error:
        raise ValueError(f"{path}: expected MemAgent's parquet, found no parquet file ({error})") from error
    needed = {"context", "prompt", "reward_model", "extra_info"}
    if missing := needed - set(file.schema_arrow.names):
        raise ValueError(
            f"{path}: missing column {', '.join(sorted(missing))}; found {', '.join(file.schema_arrow.names)}"
        )
    row = 0
    for batch in file.iter_batches(batch_size=16):
        for record in batch.to_pylist():
            row += 1
            where, extra = f"{path}, row {row}", record["extra_info"]
            yield Example(
                id=f"memagent-{extra.get('num_docs')}-{extra.get('index', row - 1)}",
                task=str(record.get("data_source") or "hotpotqa"),
                question=record["prompt"][0]["content"],
                document=field_of(record, "context", str, where),
                answers=tuple(texts(record["reward_model"], "ground_truth", where)),
                rule="boxed",
                metadata={"documents": extra.get("num_docs"), "index": extra.get("index")},
            )


def read_memagent_eval(path: str | Path, pool: str | Path | None = None) -> Iterator[Example]:
    """MemAgent's evaluation JSON (``eval_50.json`` ...): ``context``, ``input``, ``answers``, ``num_docs``, ``index``.

    Above 10,000 documents ``context`` lists numbers of documents, which ``pool`` (the HotpotQA dev file) turns into text. The
    judge is ``lenient``, the reference's own headline score, on the first answer as there.
    """
    documents = read_hotpot_pool(pool).documents if pool is not None else None
    for number, record in enumerate(json_file(path, list, "a list of questions, as in eval_200.json"), 1):
        where = f"{path}, question {number}"
        context = record.get("context") if isinstance(record, dict) else None
        if isinstance(context, list):
            context = _from_indices(context, documents, where)
        yield Example(
            id=f"hqa-{record.get('num_docs')}-{record.get('index', number - 1)}" if isinstance(record, dict) else where,
            task="hotpotqa",
            question=field_of(record, "input", str, where),
            document=field_of(record | {"context": context}, "context", str, where),
            answers=tuple(texts(record, "answers", where)[:1]),
            rule="lenient",
            metadata={"documents": record.get("num_docs"), "index": record.get("index")},
        )


def _from_indices(context: Sequence[int], documents: Sequence[str] | None, where: str) -> str:
    if documents is None:
        raise ValueError(
            f"{where}: 'context' lists {len(context):,} numbers of documents instead of their text; {_POOL_HINT}"
        )
    if bad := [i for i in context if not isinstance(i, int) or not 0 <= i < len(documents)]:
        raise ValueError(f"{where}: document {bad[0]!r} is not in the pool of {len(documents):,}; {_POOL_HINT}")
    return joined([documents[i] for i in context])


def write_memagent_eval(examples: Sequence[Example], path: str | Path) -> Path:
    """Write examples as MemAgent's evaluation JSON, so that its own scripts can read ours."""
    records = [
        {
            "context": e.document,
            "input": e.question,
            "answers": list(e.answers),
            "num_docs": e.metadata.get("documents"),
            "index": i,
        }
        for i, e in enumerate(examples)
    ]
    Path(path).write_text(json.dumps(records, ensure_ascii=False, indent=4), encoding="utf-8")
    return Path(path)


def _require_different(ids: Sequence[str], path: str | Path) -> None:
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise ValueError(f"{path}: two questions have the id {name!r}; ids must differ")
        seen.add(name)


Reader = Callable[..., Iterator[Example]]
FORMATS: dict[str, Reader] = {
    "babilong": read_babilong,
    "hotpot": read_hotpot,
    "infinitebench": read_infinitebench,
    "longbench": read_longbench,
    "memagent-eval": read_memagent_eval,
    "memagent-parquet": read_memagent_parquet,
    "ruler": read_ruler,
    "squad": read_squad,
}
"""Formats of other projects, and what reads each."""


def read_original(path: str | Path, form: str, **options: Any) -> Iterator[Example]:
    """The examples of a file in one of :data:`FORMATS`. Two examples with one id are an error."""
    if form not in FORMATS:
        raise ValueError(f"no format {form!r}; choose from {', '.join(sorted(FORMATS))}")
    if not Path(path).exists():
        raise FileNotFoundError(
            f"no file at {path}; these files are their projects' own and are not shipped with memagent"
        )
    return named_texts(FORMATS[form](path, **options), path)
