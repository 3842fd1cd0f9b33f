"""The catalogue: every name works, one seed is one set of bytes, and wrong arguments are errors with the fix."""

from __future__ import annotations

import hashlib
import random

import pytest
from waiting import has_ended, wait_for

from memagent_lib.data import TASKS, ExampleKey, Length, configured, data_hash, load, make, save

OFFLINE = [name for name, preset in TASKS.items() if not preset.needs]
RULER = {  # haystack, kinds of key and value, and how many keys, values and queries, from RULER's synthetic.yaml
    "niah_single_1": ("noise", "words", "numbers", 1, 1, 1),
    "niah_single_2": ("essays", "words", "numbers", 1, 1, 1),
    "niah_single_3": ("essays", "words", "uuids", 1, 1, 1),
    "niah_multikey_1": ("essays", "words", "numbers", 4, 1, 1),
    "niah_multikey_2": ("needles", "words", "numbers", 1, 1, 1),
    "niah_multikey_3": ("needles", "uuids", "uuids", 1, 1, 1),
    "niah_multivalue": ("essays", "words", "numbers", 1, 4, 1),
    "niah_multiquery": ("essays", "words", "numbers", 4, 1, 4),
}


def test_rulers_thirteen_tasks_have_rulers_parameters():
    for name, expected in RULER.items():
        task = TASKS[name].task
        assert (task.haystack, task.key_kind, task.value_kind, task.keys, task.values, task.queries) == expected
    assert (TASKS["vt"].task.chains, TASKS["vt"].task.hops) == (1, 4)
    assert (TASKS["cwe"].task.common_repeats, TASKS["cwe"].task.other_repeats, TASKS["cwe"].task.common) == (30, 3, 10)
    assert (TASKS["fwe"].task.alpha, TASKS["fwe"].task.top) == (2.0, 3)
    assert (TASKS["qa_1"].task.kind, TASKS["qa_2"].task.kind) == ("squad", "hotpot")
    assert sum(preset.family == "RULER" for preset in TASKS.values()) == 13


def test_keys_and_values_are_of_rulers_kinds(tokenizer):
    (number,) = make("niah_single_1", 1, 1, tokenizer, length_tokens=900)
    assert len(number.answers[0]) == 7
    assert number.answers[0].isdigit()
    (pair,) = make("niah_multikey_3", 1, 1, tokenizer, length_tokens=900)
    assert [len(part) for part in pair.answers[0].split("-")] == [8, 4, 4, 4, 12]
    (chain,) = make("vt", 1, 1, tokenizer, length_tokens=900)
    assert [len(name) for name in chain.answers] == [5] * 5
    (words,) = make("cwe", 1, 1, tokenizer, length_tokens=20_000)
    counts = [words.document.split().count(word) for word in words.answers]
    assert counts == [30] * 10
    assert max(words.document.split().count(w) for w in set(words.document.split()) - set(words.answers)) == 3


def test_frequent_words_follow_zipfs_law(tokenizer):
    (example,) = make("fwe", 1, 1, tokenizer, length_tokens=9000)
    first, second, third = (example.document.split().count(word) for word in example.answers)
    assert [first, second, third] == example.metadata["counts"]
    assert first / second == pytest.approx(9 / 4, rel=0.05)
    assert first / third == pytest.approx(16 / 4, rel=0.08)


@pytest.mark.parametrize("name", OFFLINE)
def test_one_seed_is_one_set_of_bytes(name, tokenizer, tmp_path):
    size = {"chunks": 2, "chunk_tokens": 4200}
    files = [
        save(make(name, 3, seed, tokenizer, **size), tmp_path / f"{i}.parquet") for i, seed in enumerate((5, 5, 6))
    ]
    assert data_hash(files[0]) == data_hash(files[1])
    assert {e.document for e in load(files[0])}.isdisjoint({e.document for e in load(files[2])})


def test_any_number_of_workers_makes_the_same_bytes(tokenizer, tmp_path):
    def file(workers: int) -> str:
        examples = make("multihop_2", 7, 3, tokenizer, length_tokens=4500, workers=workers)
        return data_hash(save(examples, tmp_path / f"{workers}.parquet"))

    assert file(1) == file(2) == file(3)


def test_an_example_does_not_depend_on_how_many_are_made(tokenizer):
    few, many = (list(make("qa2", n, 4, tokenizer, length_tokens=1200)) for n in (2, 9))
    assert many[:2] == few
    assert len({e.id for e in many}) == 9


@pytest.mark.parametrize("name", ["niah_single_1", "multihop_2"])
def test_documents_do_not_depend_on_the_hash_seed_of_the_process(name, tokenizer):
    (example,) = make(name, 1, 1, tokenizer, length_tokens=4000)
    (again,) = make(name, 1, 1, tokenizer, length_tokens=4000, workers=2)  # another process, with another string hash
    assert hashlib.sha256(example.document.encode()).digest() == hashlib.sha256(again.document.encode()).digest()


def test_needles_fill_whole_chunks_of_their_own_length(tokenizer):
    (example,) = make("needle", 1, 9, tokenizer, chunks=2)
    assert example.metadata["chunk_tokens"] == 128
    with pytest.raises(ValueError, match="fills whole chunks; set chunks"):
        list(make("needle", 1, 9, tokenizer, length_tokens=500))


def test_an_unknown_task_names_the_known_ones(tokenizer):
    with pytest.raises(ValueError, match=r"no task 'nih'; choose from needle, .*niah_single_1, .*ordering"):
        make("nih", 1, 1, tokenizer, length_tokens=900)


def test_numbers_of_repeats_that_are_set_hold_at_any_length(tokenizer):
    (short,) = make("cwe", 1, 1, tokenizer, length_tokens=2500)
    (stated,) = make("cwe", 1, 1, tokenizer, length_tokens=2500, common_repeats=12, other_repeats=2)
    assert short.metadata["counts"] == [6] * 10
    assert stated.metadata["counts"] == [12] * 10


@pytest.mark.parametrize(
    ("name", "parameters"),
    [(name, {"decoys": 64}) for name in ("multihop_2", "multihop_4", "comparison_4")]
    + [(name, {"events": 80}) for name in ("qa2", "qa3")],
)
def test_the_largest_numbers_of_a_task_can_be_made(name, parameters):
    plan = configured(name, **parameters).plan(ExampleKey(name, 1, 0, Length(tokens=60_000)))
    assert len(plan.statements) >= 64


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("needle", {"half_alike": 1.5}, "half_alike must be at most 1, got 1.5"),
        ("vt", {"hop": 3}, r"task 'vt' has no key hop; it has chains, hops"),
        ("vt", {"hops": 0}, "hops must be at least 1, got 0"),
        ("niah_single_1", {"haystack": "hay"}, "haystack must be 'noise', 'needles', 'essays' or 'prose', got 'hay'"),
        ("niah_single_1", {"queries": 2}, "queries must be at most keys, as each names one; got 2 and 1"),
        ("niah_single_1", {"depth": 7}, "depth must be at most 1, got 7"),
        ("multihop_2", {"hops": 3}, "a bridge question has 2 hops, got 3"),
        ("multihop_3", {"hops": 2}, "a chain question has 3 or 4 hops, got 2"),
        ("multihop_2", {"shape": "loop"}, "shape must be 'bridge', 'chain' or 'comparison', got 'loop'"),
        ("cwe", {"common_repeats": 2}, "common words must come more often"),
        ("fwe", {"alpha": 1.0}, "alpha must be above 1"),
        ("qa1", {"number": 9}, "number must be at most 5, got 9"),
        ("qa1", {"events": 2}, "events must be at least 8, got 2"),
        ("qa3", {"events": 81}, "events must be at most 80 for tasks 2 and 3, got 81"),
        ("multihop_2", {"decoys": 65}, "decoys must be at most 64, got 65"),
        ("updates", {"times": 0}, "times must be at least 1, got 0"),
        ("ordering", {"events": 40}, "events must be at most 12, got 40"),
        ("keychain", {"links": 0}, "links must be at least 1"),
        ("qa_1", {"first": -1}, "first must be at least 0, got -1"),
        ("keychain", {"task": "cwe"}, "task must be 'multihop_2', .* got 'cwe'"),
        ("vt", {"hops": "four"}, "task 'vt': hops must be a valid integer, got 'four'"),
        ("qa_1", {"kind": "trivia"}, "kind must be 'squad' or 'hotpot', got 'trivia'"),
    ],
)
def test_a_wrong_parameter_is_an_error_before_anything_is_made(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        configured(name, **parameters)


@pytest.mark.parametrize("numbers", [{"n": 0}, {"workers": 0}])
def test_less_than_one_example_or_worker_is_an_error(numbers, tokenizer):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        make("vt", **{"n": 1, "seed": 1, "length_tokens": 900} | numbers, tokenizer=tokenizer)


def test_chunks_of_no_tokens_are_an_error(tokenizer):
    with pytest.raises(ValueError, match="chunk_tokens must be at least 1, got 0"):
        make("needle", 1, 1, tokenizer, chunks=2, chunk_tokens=0)


def test_the_judge_can_be_changed_and_a_wrong_one_is_an_error(tokenizer):
    (example,) = make("multihop_2", 1, 1, tokenizer, length_tokens=3500, rule="boxed")
    assert example.rule == "boxed"
    with pytest.raises(ValueError, match="no judge 'strict'"):
        make("multihop_2", 1, 1, tokenizer, length_tokens=3500, rule="strict")


def test_an_error_in_a_worker_reaches_the_caller(tokenizer):
    with pytest.raises(ValueError, match="statements alone need"):
        list(make("vt", 3, 1, tokenizer, length_tokens=30, workers=2))


def test_essays_come_from_the_folder_in_order(tokenizer, essays, tmp_path):
    (example,) = make("niah_single_2", 1, 1, tokenizer, length_tokens=2000, haystack_path=essays)
    text = (tmp_path.__class__(essays) / "0.txt").read_text().split("\n\n")
    assert example.document.replace(example.document[slice(*example.evidence[0])] + " ", "").startswith(
        " ".join(text[:5])
    )


def test_the_files_of_tasks_may_be_in_the_home_folder(tokenizer, essays, squad_file, monkeypatch):
    for path, task, option in ((essays, "niah_single_2", "haystack_path"), (squad_file, "qa_1", "pool_path")):
        folder, _, name = path.rpartition("/")
        monkeypatch.setenv("HOME", folder)
        assert len(list(make(task, 1, 1, tokenizer, length_tokens=400, **{option: f"~/{name}"}))) == 1


def test_a_haystack_that_is_too_short_is_an_error_or_repeated(tokenizer, tmp_path):
    (tmp_path / "one.txt").write_text("A short essay. It has two sentences.", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"the haystack .*one.txt has \d+ tokens and [\d,]+ are needed; add files to it"
    ):
        list(make("niah_single_2", 1, 1, tokenizer, length_tokens=900, haystack_path=str(tmp_path / "one.txt")))
    (example,) = make(
        "niah_single_2", 1, 1, tokenizer, length_tokens=900, haystack_path=str(tmp_path), repeat_haystack=True
    )
    assert example.document.count("A short essay.") > 10


def test_a_missing_haystack_or_pool_is_an_error_with_its_source(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"no file is named; set haystack_path.*github.com/NVIDIA/RULER"):
        list(make("niah_single_2", 1, 1, tokenizer, length_tokens=900))
    with pytest.raises(FileNotFoundError, match=r"no haystack at .*nowhere; set haystack_path"):
        list(make("niah_single_2", 1, 1, tokenizer, length_tokens=900, haystack_path=str(tmp_path / "nowhere")))
    with pytest.raises(ValueError, match=r"has no .txt file"):
        list(make("niah_single_2", 1, 1, tokenizer, length_tokens=900, haystack_path=str(tmp_path)))
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "empty.txt").write_text(" \n", encoding="utf-8")
    with pytest.raises(ValueError, match="has no text"):
        list(make("niah_single_2", 1, 1, tokenizer, length_tokens=900, haystack_path=str(tmp_path)))
    for unset in ({}, {"pool_path": ""}):
        with pytest.raises(ValueError, match=r"set pool_path to SQuAD v2's dev-v2.0.json from rajpurkar.github.io"):
            list(make("qa_1", 1, 1, tokenizer, length_tokens=900, **unset))
    with pytest.raises(FileNotFoundError, match=r"no file at nowhere.json; these files are their projects' own"):
        list(make("qa_1", 1, 1, tokenizer, length_tokens=900, pool_path="nowhere.json"))
    with pytest.raises(IsADirectoryError, match="is a folder; name the files in it"):
        list(make("qa_1", 1, 1, tokenizer, length_tokens=900, pool_path=str(tmp_path)))


def test_a_haystack_that_is_not_utf8_is_an_error_with_the_line(tokenizer, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"Fine.\nStill fine.\nCaf\xe9 here.\n")
    with pytest.raises(ValueError, match=r"bad.txt, line 3: byte 0xe9 at offset 21 is not UTF-8"):
        list(make("niah_single_2", 1, 1, tokenizer, length_tokens=900, haystack_path=str(tmp_path)))


@pytest.mark.slow
def test_workers_end_with_their_parent(tokenizer_folder):
    """A maker that is killed while its workers work leaves none behind."""
    import subprocess
    import sys

    import psutil

    code = (
        "from memagent_lib.data import make; from memagent_lib.text import Tokenizer\n"
        "if __name__ == '__main__':\n"
        f"    counter = Tokenizer.load({tokenizer_folder!r})\n"
        "    made = make('multihop_2', 500, 1, counter, length_tokens=400_000, workers=2)\n"
        "    print(next(made).id, flush=True); next(made); import time; time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout.readline().startswith("multihop_2-")
        workers = psutil.Process(maker.pid).children(recursive=True)
        assert len(workers) >= 2
        maker.kill()
    wait_for(lambda: all(map(has_ended, workers)))


def test_more_different_words_than_there_are_is_an_error() -> None:
    from memagent_lib.data.tasks.words import distinct

    with pytest.raises(ValueError, match="4 different words were requested and only 3 like"):
        distinct(lambda rng: rng.choice("abc"), 4, random.Random(0))
