"""What every task promises; the pocket world's tasks are loaded by their path, as a user's are.

An oracle finds every answer in the document, and nobody finds it without: the two sides of an honest data set.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from oracles import box, oracle
from pocket import fair_task, pocket_task

from experiments.tasks import prose as prose_task
from memagent_lib.data import Example, configured, make, preset, presets
from memagent_lib.errors import MissingFile
from memagent_lib.scoring import score
from memagent_lib.settings import key_value
from memagent_lib.text import chunks

KINDS = ("needle", "multivalue", "multikey", "bridge", "update", "chain", "mix")
TASKS = presets()
EVERY = [*TASKS, *(task(kind) for task in (pocket_task, fair_task) for kind in KINDS)]
OFFLINE = [name for name, preset in TASKS.items() if not preset.needs]
MADE = [name for name in EVERY if not preset(name).needs]
ESSAYS = [name for name, preset in TASKS.items() if "haystack" in preset.needs]
SIZE = {
    "needle": {"chunks": 2, "chunk_tokens": 160},
    "fwe": {"length_tokens": 2000},
    "cwe": {"length_tokens": 1500},
    "multihop_2": {"length_tokens": 3200},
    "multihop_3": {"length_tokens": 5600},
    "multihop_4": {"length_tokens": 7600},
    "comparison": {"length_tokens": 3200},
    "comparison_4": {"length_tokens": 4600},
    "keychain": {"length_tokens": 6600},
    "prose_update": {"chunks": 2, "chunk_tokens": 500},
    "prose_unstated": {"chunks": 2, "chunk_tokens": 600},
}


def size(name: str) -> dict[str, int]:
    return SIZE.get(name, {"length_tokens": 1600})


def short(name: str) -> str:
    return name.rpartition(":")[2]


def examples(name: str, tokenizer, seed: int = 3, n: int = 2) -> list[Example]:
    own = preset(name).chunk_tokens
    return list(make(name, n, seed, tokenizer, chunks=2, chunk_tokens=4200 if own == 5000 else 2 * own))


@pytest.mark.parametrize("name", EVERY, ids=short)
def test_a_task_takes_the_parameters_that_it_prints(name):
    written = re.split(r", (?=\w+=)", preset(name).parameters)
    written = [part.replace("=None", "=''").replace("=False", "=false") for part in written]
    parameters = {key: value for key, value in map(key_value, written) if value not in ("", None)}
    assert configured(name, **parameters) == preset(name).task


@pytest.mark.parametrize("name", MADE, ids=short)
def test_an_example_is_whole_fills_its_chunks_and_depends_on_its_seed_alone(name, tokenizer):
    made = examples(name, tokenizer)
    for example in made:
        assert example.id.startswith(f"{short(name)}-2x")
        assert example.evidence or example.task == "prose_absent"
        assert Example.from_record(json.loads(json.dumps(example.to_record()))) == example
        assert len(chunks(example.document, tokenizer, example.metadata["chunk_tokens"])) == 2
    assert examples(name, tokenizer, n=1) == made[:1]
    other = examples(name, tokenizer, seed=4)
    assert {example.document for example in made}.isdisjoint(example.document for example in other)


@pytest.mark.parametrize("name", [*OFFLINE, *ESSAYS])
def test_an_oracle_answers_every_example_and_the_evidence_has_the_answer(name, tokenizer, essays):
    sized = {"length_tokens": 2500, "haystack_path": essays} if name in ESSAYS else size(name)
    for example in make(name, 12, 17, tokenizer, **sized):
        verdict = score(example.rule, oracle(example), example.answers)
        assert verdict.value == 1.0, (example.question, example.answers, oracle(example), verdict.reason)
        text = " ".join(example.document[start:end] for start, end in example.evidence)
        assert bool(text) == (example.task != "prose_absent")
        if text and not name.startswith("comparison"):
            assert all(answer in text for answer in example.answers)


@pytest.mark.parametrize("name", [n for n in OFFLINE if n not in ("keychain", "cwe", "fwe")])
@pytest.mark.parametrize("n", [60, pytest.param(500, marks=pytest.mark.long)])
def test_a_reader_without_the_document_scores_chance(name, n, tokenizer):
    small = {"chunks": 1, "chunk_tokens": 90} if name == "needle" else size(name)
    habit = Counter(a for e in make(name, n // 5, 99, tokenizer, **small) for a in e.answers).most_common(1)[0][0]
    right = Counter()
    for example in make(name, n, 1, tokenizer, **small):
        guesses = [habit, ""]
        if name.startswith("comparison"):
            a, b = re.search(r", (.+) or (.+)\?", example.question).groups()
            guesses = [a, b, min(a, b), max(a, b, key=len)]
            assert score(example.rule, box(f"{a} or {b}"), example.answers).value == 0
        for number, guess in enumerate(guesses):
            right[number] += score(example.rule, box(guess), example.answers).value
    assert max(right.values()) / n <= TASKS[name].chance + (0.02 if n == 500 else 0.17)


def test_counted_words_have_rulers_frequencies(tokenizer):
    (listed,) = make("cwe", 1, 1, tokenizer, length_tokens=20_000)
    counts = Counter(listed.document.split())
    assert [counts[word] for word in listed.answers] == [30] * 10
    assert max(counts[word] for word in counts.keys() - set(listed.answers)) == 3
    (few,) = make("cwe", 1, 1, tokenizer, length_tokens=2500)
    assert few.metadata["counts"] == [6] * 10
    (example,) = make("fwe", 1, 1, tokenizer, length_tokens=9000)
    first, second, third = example.metadata["counts"]
    assert (first / second, first / third) == (pytest.approx(9 / 4, rel=0.05), pytest.approx(4, rel=0.08))
    with pytest.raises(ValueError, match="fwe"):
        list(make("fwe", 1, 1, tokenizer, length_tokens=40))


WRONG = [
    ("nih", {}, "nih.*niah_single_1"),
    ("vt", {"hop": 3}, "hop"),
    ("multihop_2", {"hops": 3}, "hops"),
    ("ordering", {"events": 40}, "events"),
    ("vt", {"n": 0}, "n must"),
    ("vt", {"chunks": 2}, "length_tokens"),
    ("vt", {"rule": "strict"}, "strict"),
]


@pytest.mark.parametrize(("name", "arguments", "named"), WRONG)
def test_a_wrong_argument_is_refused_by_name_before_anything_is_made(name, arguments, named, tokenizer):
    with pytest.raises(ValueError, match=named):
        make(name, **{"n": 1, "seed": 1, "length_tokens": 900, "tokenizer": tokenizer} | arguments)


LATE = [
    ("niah_single_2", {"haystack_path": "{folder}/nowhere"}, MissingFile, "haystack_path"),
    ("niah_single_2", {"haystack_path": "{folder}/bad"}, ValueError, "line 3"),
    ("qa_1", {}, ValueError, "pool_path"),
    ("prose_needle", {"text": "{folder}/one.txt"}, ValueError, "at least 50"),
]


@pytest.mark.parametrize(("name", "parameters", "error", "named"), LATE)
def test_a_missing_or_short_text_names_its_setting(name, parameters, error, named, tokenizer, tmp_path):
    (tmp_path / "one.txt").write_text("A short essay. It has two sentences.", encoding="utf-8")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.txt").write_bytes(b"Fine.\nStill fine.\nCaf\xe9 here.\n")
    given = {key: value.format(folder=tmp_path) for key, value in parameters.items()}
    with pytest.raises(error, match=named):
        list(make(name, 1, 1, tokenizer, length_tokens=900, **given))


def test_essays_come_in_order_and_are_repeated(tokenizer, essays, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", essays)
    (example,) = make("niah_single_2", 1, 1, tokenizer, length_tokens=2000, haystack_path="~")
    ((start, end),) = example.evidence
    first = Path(essays, "0.txt").read_text(encoding="utf-8").split("\n\n")[:5]
    assert (example.document[:start] + example.document[end + 1 :]).startswith(" ".join(first))
    (tmp_path / "one.txt").write_text("A short essay. It has two sentences.", encoding="utf-8")
    own = {"haystack_path": str(tmp_path)}
    (example,) = make("niah_single_2", 1, 1, tokenizer, length_tokens=900, **own)
    assert example.document.count("A short essay.") > 10


def test_real_prose_is_read_as_whole_sentences(tmp_path, monkeypatch):
    found = prose_task.sentences("opticks")
    assert len(found) == 1721
    assert not any("_" in sentence or "\n" in sentence for sentence in found)
    prose = "It was by Mr. Hooke, and see Fig. 2. of his book. The light was white [see the note] and _faint_."
    (tmp_path / "a.txt").write_text("\n\n".join(["OF LIGHT.", "    1    2", *[prose] * 30]), encoding="utf-8")
    first = ("It was by Mr. Hooke, and see Fig. 2. of his book.", "The light was white and faint.")
    assert prose_task.sentences(str(tmp_path)) == first * 30
    monkeypatch.setattr(prose_task, "_SHA256", "0" * 64)
    prose_task.sentences.cache_clear()
    with pytest.raises(ValueError, match="another edition"):
        prose_task.sentences("opticks")
