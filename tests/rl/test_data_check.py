"""Data is checked before anything is started: bad examples are named, refused, or left out and counted."""

from __future__ import annotations

import dataclasses
import json

import pyarrow.parquet as pq
import pytest

pytest.importorskip("transformers")

from memagent_lib.data import Example, load, save
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run.data_check import bad_examples, checked_data
from memagent_lib.rl.run.step_work import chunks_per_document
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.settings import SettingsError


def example(name: str, **fields) -> Example:
    usual = {"task": "t", "question": "q?", "document": f"doc {name}", "answers": ("4821",), "rule": "boxed"} | fields
    return Example(id=name, **usual)


EXAMPLES = [
    example("good"),
    example("list", rule="items", answers=("a", "b")),
    example("long question", question="code " * 60),
    example("long answer", answers=("otter boat mill " * 9,)),
    example("long, and a part of it counts", rule="rouge_l", answers=("otter boat mill " * 9,)),
    example("one fits", answers=("otter boat mill " * 9, "mill")),
    example("no judge can", rule="first_number", answers=("otter",)),
]


def recipe(tmp_path, examples=EXAMPLES, bad: str = "refuse", prompts: int = 1) -> Recipe:
    save(examples, tmp_path / "train.parquet")
    save([example("e")], tmp_path / "eval.parquet")
    files = {"train": str(tmp_path / "train.parquet"), "eval": str(tmp_path / "eval.parquet"), "bad_examples": bad}
    verl = {"trainer.total_training_steps": 1, "data.train_batch_size": prompts}
    return Recipe.from_tables({"model": {"path": "x"}, "data": files, "reading": {}, "verl": verl})


def test_bad_examples_are_named_with_what_is_wrong(tmp_path, encoder) -> None:
    found = dict(bad_examples(recipe(tmp_path).data.train[0], encoder))
    assert set(found) == {"long question", "long answer", "no judge can"}
    assert "question_tokens allows 32" in found["long question"]
    assert found["long answer"].startswith(
        "its judge 'boxed' gives nothing to a reply of at most 12 tokens (answer_tok"
    )
    assert found["no judge can"].endswith("(answer_tokens) that states its answer 'otter'")


def test_bad_examples_are_refused_by_default(tmp_path, encoder) -> None:
    with pytest.raises(SettingsError, match=r"3 of 7 examples of .*train.parquet cannot be used: 'long question': "):
        checked_data(recipe(tmp_path), encoder, RunFolder(tmp_path / "run"))


def test_a_training_judge_that_guesses_satisfy_is_named(tmp_path, encoder, capsys) -> None:
    """Liuziyu77/Visual-RFT#79: training found that a list of guesses was always right."""
    guessed = recipe(tmp_path, [example("a"), example("b", rule="match_part"), example("c", rule="match_part")])
    checked_data(guessed, encoder, RunFolder(tmp_path / "run"))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "guesses" in line]
    assert line.startswith(f"warning: {tmp_path / 'train.parquet'}: a list of guesses satisfies the judge 'match_part'")
    assert "--rule contains" in line
    checked_data(recipe(tmp_path, [example("a")]), encoder, RunFolder(tmp_path / "run"))
    assert "guesses" not in capsys.readouterr().out


def test_examples_left_out_are_counted_and_others_unchanged(tmp_path, encoder, capsys) -> None:
    folder = RunFolder(tmp_path / "run")
    good = checked_data(recipe(tmp_path, bad="leave_out"), encoder, folder)
    assert load(good.data.train[0]) == [
        e for e in EXAMPLES if e.id not in ("long question", "long answer", "no judge can")
    ]
    assert good.data.eval == (str(tmp_path / "eval.parquet"),)
    assert "left out: 3 of 7 examples" in capsys.readouterr().out
    assert set(json.loads((folder.path / "data" / "0_train.left_out.json").read_text())) == {
        "long question",
        "long answer",
        "no judge can",
    }


def test_a_row_that_is_no_example_is_left_out_too(tmp_path, encoder) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    requested = recipe(tmp_path, [example("a"), example("b")], bad="leave_out")
    table = pq.read_table(requested.data.train[0])
    rows = table.to_pylist()
    rows[1]["reward_model"]["ground_truth"] = []
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), requested.data.train[0])
    good = checked_data(requested, encoder, RunFolder(tmp_path / "run"))
    assert [e.id for e in load(good.data.train[0])] == ["a"]
    refusing = dataclasses.replace(requested, data=dataclasses.replace(requested.data, bad_examples="refuse"))
    with pytest.raises(SettingsError, match="'b': example 'b' has no accepted answer"):
        checked_data(refusing, encoder, RunFolder(tmp_path / "run"))


def test_a_file_rewritten_by_pandas_is_loaded_beside_another(tmp_path, encoder) -> None:
    import datasets
    import pandas as pd

    requested = recipe(tmp_path, [example("a"), example("b"), example("c")])
    again = pd.read_parquet(requested.data.train[0])
    again[again["document"] != "doc b"].to_parquet(requested.data.train[0])
    good = checked_data(requested, encoder, RunFolder(tmp_path / "run"))
    assert [e.id for e in load(good.data.train[0])] == ["a", "c"]
    assert good.data.eval == requested.data.eval
    alike = [datasets.Dataset.from_parquet(f, cache_dir=str(tmp_path)) for f in (*good.data.train, *good.data.eval)]
    assert len(datasets.concatenate_datasets(alike)) == 3


def test_too_few_examples_for_one_step_are_refused(tmp_path, encoder) -> None:
    with pytest.raises(
        SettingsError, match=r"2 examples can be trained on and a step takes data\.train_batch_size = 3"
    ):
        checked_data(recipe(tmp_path, [example("a"), example("b")], prompts=3), encoder, RunFolder(tmp_path / "run"))


def test_a_file_without_examples_is_refused(tmp_path, encoder) -> None:
    empty = recipe(tmp_path)
    file = tmp_path / "train.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)
    with pytest.raises(SettingsError, match=r"has no examples; make some, or leave the file out"):
        checked_data(empty, encoder, RunFolder(tmp_path / "run"))
    with pytest.raises(SettingsError, match=r"has no examples; make some, or leave the file out"):
        chunks_per_document(empty, encoder)
