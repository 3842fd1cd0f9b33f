"""InfiniteBench's jsonl (Zhang et al. 2024, arXiv 2402.13718): ``id``, ``context``, ``input``, ``answer``, ``options``.

    memagent data --from infinitebench passkey.jsonl --out passkey.parquet

The judges score the same parts of a reply as InfiniteBench's own metrics (the first number, a word, a letter); a box
counts as the reply. One metric differs: summaries are scored by ROUGE-L instead of ROUGE-Lsum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks.longbench_v2 import multiple_choice
from memagent_lib.data import Example, Format, texts
from memagent_lib.scoring import AnyAnswer, Score, box_or_all, overlap_f1, score

RULES = {
    "code_debug": "infinitebench/choice",
    "code_run": "infinitebench/last_number",
    "kv_retrieval": "infinitebench/word",
    "longbook_choice_eng": "infinitebench/choice",
    "longbook_qa_chn": "infinitebench/characters",
    "longbook_qa_eng": "f1",
    "longbook_sum_eng": "longbench/rouge_l",
    "longdialogue_qa_eng": "infinitebench/word",
    "math_calc": "infinitebench/sequence",
    "math_find": "infinitebench/first_number",
    "number_string": "infinitebench/first_number",
    "passkey": "infinitebench/first_number",
}
"""The judge of each task. A file is named after its task."""
_QUESTIONS = {
    "code_debug": "Which of these functions has a deliberate error?",
    "longbook_sum_eng": "Summarise the book.",
    "longdialogue_qa_eng": "Which character's name was replaced by $$MASK$$?",
    "math_calc": "What are the intermediate results, one after each operation?",
}
_NUMBER = r"\d+(?:\.\d+)?"


def examples(record: Mapping[str, Any], number: int, path: Path, task: str = "") -> Iterator[Example]:
    """Yield the example of a record. By default, ``task`` is the file's name without its suffix."""
    name = task or path.stem
    if name not in RULES:
        raise ValueError(f"no InfiniteBench task {name!r}; set task= to one of {', '.join(RULES)}")
    question = f"{_QUESTIONS.get(name, '')}\n{(record.get('input') or '').strip()}".strip()
    answers = (str(record["answer"]),) if name == "math_calc" else texts(record["answer"])
    if record.get("options"):
        question, answers = multiple_choice(question, record["options"], answers[0])
    yield Example(
        id=f"{name}-{record.get('id', number - 1)}",
        task=f"infinitebench/{name}",
        question=question,
        document=record["context"] if "context" in record else record["content"],
        answers=answers,
        rule=RULES[name],
        metadata={"line": number},
    )


def choice(reply: str, answers: Sequence[str]) -> Score:
    """Score 1 if the answer chooses an accepted letter from A to D, at its beginning or after ``answer`` or ``option``.

    A reply without such a letter is scored as by this library's ``choice``.
    """
    found = box_or_all(reply).strip()
    letter = re.match(r"\(?([A-D])\b", found) or re.search(r"(?:answer|option)(?: is)?:? *\(?([A-D])\b", found)
    if letter is None:
        return score("choice", reply, answers)
    return Score(float(letter[1] in answers), letter[1], f"chose {letter[1]}, accepted: {answers!r:.80}")


def same_number(found: str, answer: str) -> bool:
    """Return whether two numbers are equal as text, or equal in value if either has a decimal point."""
    decimal = "." in found + answer and re.fullmatch(f"-?{_NUMBER}", answer)
    return found == answer or bool(decimal and float(found) == float(answer))


def is_word(found: str, answer: str) -> bool:
    """Return whether the accepted answer is one of the reply's words in any case."""
    return answer.lower() in re.sub(r"[\n:\"'.,?!{}]", " ", found).lower().split()


def character_f1(found: str, answer: str) -> float:
    """Return F1 over letters and digits, for languages that do not put spaces between words."""
    return overlap_f1(*([character for character in text.lower() if character.isalnum()] for text in (found, answer)))


def right_before_error(found: str, answer: str) -> float:
    """Return the share of the accepted numbers before the reply's first wrong one."""
    accepted = re.findall(r"-?\d+", answer)
    numbers = re.findall(r"-?\d+", found)
    right = 0
    while right < min(len(accepted), len(numbers)) and accepted[right] == numbers[right]:
        right += 1
    return right / max(1, len(accepted))


FORMAT = Format(files="InfiniteBench's JSON lines", examples=examples)
JUDGES = {
    "infinitebench/choice": choice,
    "infinitebench/word": AnyAnswer(str, is_word),
    "infinitebench/characters": AnyAnswer(box_or_all, character_f1),
    "infinitebench/sequence": AnyAnswer(box_or_all, right_before_error),
    "infinitebench/first_number": AnyAnswer(
        lambda reply: next(iter(re.findall(_NUMBER, box_or_all(reply))), None), same_number
    ),
    "infinitebench/last_number": AnyAnswer(
        lambda reply: next(reversed(re.findall(f"-?{_NUMBER}", box_or_all(reply))), None), same_number
    ),
}
