"""HotpotQA (Yang et al. 2018), distractor setting: the project's JSON, and Hugging Face's parquet or JSON lines.

2WikiMultihopQA (Ho et al. 2020) has the same records. In its parquet (xanhho/2WikiMultihopQA), lists are JSON texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.answers import written_value
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, records, refuse_empty, unique
from memagent_lib.data.pools import Pool, PoolQuestion, PoolSpan, read_once

_EXPECTED = "HotpotQA's questions, as in hotpot_dev_distractor_v1.json or the Hub's parquet"


class _Paragraph(NamedTuple):
    """A title and its sentences. ``text`` joins them in MemAgent's format."""

    title: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.title}\n{''.join(self.sentences)}"

    def span(self, number: int) -> tuple[int, int] | None:
        """Return the span of a sentence, without the white space around it; ``None`` if there is no such sentence."""
        if not 0 <= number < len(self.sentences) or not self.sentences[number].strip():
            return None
        start = len(self.title) + 1 + sum(map(len, self.sentences[:number]))
        sentence = self.sentences[number]
        return start + len(sentence) - len(sentence.lstrip()), start + len(sentence)


def read_hotpot(path: str | Path) -> Iterator[Example]:
    """Yield one example per question. The document has the question's paragraphs; supporting sentences are evidence."""
    pool = read_hotpot_pool(path)
    return (pool.own_example(question, "hotpotqa") for question in pool.questions)


@read_once
def read_hotpot_pool(path: str | Path) -> Pool:
    """Return a file's questions and its distinct paragraphs, which are in MemAgent's order."""
    found = list(records(path, _EXPECTED))
    own = [_paragraphs(record) for record in found]
    # MemAgent's evaluation files point into this order by number.
    documents = tuple(sorted({paragraph.text for paragraphs in own for paragraph in paragraphs}))
    number_of = {text: i for i, text in enumerate(documents)}
    questions = (_question(record, paragraphs, number_of) for record, paragraphs in zip(found, own, strict=True))
    incomplete = sum(map(_is_incomplete, found, own))
    return Pool(documents, tuple(unique(questions, path)), str(path), incomplete)


def _paragraphs(record: Record) -> list[_Paragraph]:
    context = _unpacked(record.get("context", object))
    if isinstance(context, Mapping):  # the Hub has a column of titles and one of sentences
        context = _pairs(context, "title", "sentences", record.where)
    if not isinstance(context, list):
        raise ValueError(f"{record.where}: expected a list of paragraphs as 'context', found {str(context)[:60]!r}")
    for entry in context:
        is_pair = isinstance(entry, list | tuple) and len(entry) == 2
        if not is_pair or not isinstance(entry[0], str) or not isinstance(entry[1], list):
            raise ValueError(
                f"{record.where}: a paragraph of 'context' is [title, [sentence, ...]], found {str(entry)[:80]!r}"
            )
    paragraphs = [_Paragraph(title, tuple(sentences)) for title, sentences in context]
    refuse_empty("".join(paragraph.text for paragraph in paragraphs), "'context'", record.where)
    return paragraphs


def _pairs(columns: Mapping[str, Any], first: str, second: str, where: str) -> list[tuple[Any, Any]]:
    lefts = columns.get(first, ())
    rights = columns.get(second, ())
    if len(lefts) != len(rights):
        raise ValueError(f"{where}: {len(lefts)} entries in {first!r} and {len(rights)} in {second!r}; expected pairs")
    return list(zip(lefts, rights, strict=True))


def _unpacked(value: Any) -> Any:
    """Return the list or object that is written in a text, and any other value as it is."""
    found = written_value(value) if isinstance(value, str) else None
    return value if found is None else found


def _supporting(record: Record) -> list[tuple[str, int]]:
    entries: Any = _unpacked(record.fields.get("supporting_facts")) or ()
    if isinstance(entries, Mapping):
        entries = _pairs(entries, "title", "sent_id", record.where)
    return [(title, number) for title, number in entries]


def _question(record: Record, own: list[_Paragraph], number_of: Mapping[str, int]) -> PoolQuestion:
    question = record.get("question", str)
    answer = record.get("answer", str)
    gold: dict[int, None] = {}  # in order, without repeats
    evidence: list[PoolSpan] = []
    for title, sentence in _supporting(record):
        # The source may name a paragraph that the question lacks, or a title that several paragraphs have.
        for paragraph in own:
            if paragraph.title != title:
                continue
            document = number_of[paragraph.text]
            gold[document] = None
            span = paragraph.span(sentence)
            if span:
                evidence.append(PoolSpan(document, *span))
    context = dict.fromkeys(number_of[paragraph.text] for paragraph in own)
    return PoolQuestion(
        id=record.id("_id", "id") or str(record.number),
        question=question,
        answers=(answer,),
        gold=tuple(gold or context),  # without supporting sentences, any paragraph may have the answer
        own=tuple(context),
        evidence=tuple(evidence),
        metadata={"type": record.fields.get("type")},
    )


def _is_incomplete(record: Record, own: list[_Paragraph]) -> bool:
    titles = {paragraph.title for paragraph in own}
    return any(title not in titles for title, _ in _supporting(record))


def _note(path: str | Path) -> str:
    """Return a note if questions lack a supporting paragraph, so that their document does not answer them."""
    pool = read_hotpot_pool(path)
    if not pool.incomplete:
        return ""
    return (
        f"{path}: {pool.incomplete:,} of {len(pool.questions):,} questions lack a paragraph that their answer needs, "
        "as in HotpotQA's fullwiki files; use the distractor files, such as hotpot_dev_distractor_v1.json"
    )


def _has_paragraphs(fields: Mapping[str, Any]) -> bool:
    """Return whether ``context`` has titled paragraphs, because in many data sets ``context`` is a single text."""
    try:
        _paragraphs(Record(dict(fields), 1, "record 1"))
    except (ValueError, TypeError):
        return False
    return True


FORMAT = Format(
    name="hotpot",
    files="HotpotQA's distractor JSON or 2WikiMultihopQA's, or the Hub's parquet of them",
    fields=("question", "answer", "context"),
    fits=_has_paragraphs,
    read=read_hotpot,
    pool=read_hotpot_pool,
    note=_note,
)
