"""The study of readers: its recipes load for every reader, its plan stays in budget, its tables count what was read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from experiments.readers.gated import GATE
from experiments.studies.readers.__main__ import print_tables
from experiments.studies.readers.study import HERE, missing, objectives, plan, results_of, steps
from experiments.studies.readers.table import (
    NO_BOX,
    OTHER_WORDS,
    RIGHT,
    cost_table,
    difference_table,
    form,
    form_table,
    forms,
    score_table,
    tables,
    task_table,
)
from memagent_lib.evaluation import gather_rows
from memagent_lib.prompts import Template
from memagent_lib.readers import READERS, reader_named
from memagent_lib.rl import Recipe, RunFolder, TrainingState, TrainingStatus
from memagent_lib.sft import SftRecipe
from memagent_lib.trace import BadMemory, Kind, Prompt, Reply, Trace, Turn


def arguments(folder: Path, name: str, **options) -> tuple[str, ...]:
    (step,) = [step for step in steps(folder, **options) if step.name == name]
    return step.arguments


def settings(command: tuple[str, ...]) -> list[str]:
    return [each for each in command[2:] if "=" in each]


def test_every_reader_with_a_memory_is_studied():
    shipped = {path.stem for path in Path("experiments/readers").glob("[a-z]*.py")}
    assert set(objectives()) == shipped | {name for name, reader in READERS.items() if reader.has_memory}


@pytest.mark.parametrize("reader", objectives())
def test_the_recipes_of_every_reader_load(reader, tmp_path):
    command = arguments(tmp_path, f"train {reader} 1")
    recipe = Recipe.load(command[1], settings(command))
    assert (recipe.reading.reader, recipe.train.seed, recipe.steps) == (reader, 1, 120)
    assert [len(stage.files) for stage in recipe.stages] == [1, 3]
    assert recipe.rewards == objectives()[reader]
    command = arguments(tmp_path, f"warm {reader}")
    assert SftRecipe.load(command[1], settings(command)).reading.reader == reader


def test_half_of_a_shorter_training_is_on_sparse_documents(tmp_path):
    command = arguments(tmp_path, "train gated 0", readers=["gated"], train_steps=10)
    recipe = Recipe.load(command[1], settings(command))
    assert [(stage.steps, len(stage.files)) for stage in recipe.stages] == [(5, 1), (5, 3)]


def test_the_wording_of_the_study_is_that_of_short():
    own = Template.load(str(HERE / "wording.toml"))
    short = Template.load("short")
    for name in ("read", "answer", "direct", "blind", "empty_memory"):
        assert getattr(own, name) == getattr(short, name)
    for reader in objectives():
        own.require(reader_named(reader).prompts)
        assert {own.words(kind) for kind in reader_named(reader).prompts} == {short.read, short.answer}


def test_the_plan_states_hours_and_leaves_out_what_is_done(tmp_path):
    todo = steps(tmp_path, ["overwrite", "gated"])
    assert plan(todo)[-1].endswith("hours; the study's budget is 20")
    of_training = [line for line in plan(todo) if line.startswith("train")]
    assert of_training == ["train        4 of 4 to do,  2.67 hours of two idle cores"]
    for step in todo:
        if step.name.startswith("train"):
            step.mark.parent.mkdir(exist_ok=True)
            step.mark.touch()
    assert "train        0 of 4 to do,  0.00 hours of two idle cores" in plan(todo)
    with pytest.raises(ValueError, match=r"the budget is 20; choose fewer --readers"):
        plan([replace(step, hours=9.0) for step in todo])


def test_a_table_names_what_is_missing_and_how_far_it_came(tmp_path):
    todo = steps(tmp_path, ["gated", "recall"], lengths=[4])
    for step in todo:
        if step.name.split()[0] in ("data", "warm", "form", "before") or step.name == "train gated 0":
            step.mark.parent.mkdir(exist_ok=True)
            step.mark.touch()
    assert missing(todo) == ["missing: train, 3 of 4: recall 0, gated 1, recall 1", "missing: evaluate, 4 of 4: all"]
    folder = RunFolder(tmp_path / "train" / "recall_0")
    folder.path.mkdir(parents=True)
    folder.write_status(TrainingStatus(state=TrainingState.STOPPED, step=40, steps=120))
    assert missing(todo)[0] == "missing: train, 3 of 4: recall 0 (stopped at step 40 of 120), gated 1, recall 1"


def test_the_whole_study_is_in_budget_and_names_its_readers(tmp_path):
    assert plan(steps(tmp_path))
    with pytest.raises(ValueError, match=r"objectives\.toml has no reader 'skim'; choose from overwrite, gated"):
        steps(tmp_path, ["skim"])


def read_turn(text: str, **more) -> Turn:
    return Turn(Prompt(GATE, "q"), Reply(text), **more)


def test_forms_of_replies_are_counted_by_kind():
    statement = "The code of the amber owl is acorn."
    assert form(read_turn(f"{statement} The friend of Ada is Adam.")) == RIGHT
    assert form(read_turn("nothing yet")) == form(read_turn("")) == RIGHT
    assert form(read_turn(f"{statement} owl")) == OTHER_WORDS
    assert form(read_turn(statement, bad_memory=BadMemory("malformed command", "take"))) == "malformed command"
    assert form(Turn(Prompt(Kind.ANSWER, "q"), Reply(statement))) == NO_BOX
    assert form(Turn(Prompt(Kind.ANSWER, "q"), Reply(rf"{statement} \boxed{{ acorn}}"))) == RIGHT


def test_the_form_table_has_the_share_of_right_forms(kept):
    turns = (read_turn("nothing yet"), read_turn("owl owl"), Turn(Prompt(Kind.ANSWER, "q"), Reply(r"\boxed{ x}")))
    counts = forms([replace(kept, trace=Trace("q", turns, "gated"))])
    line = form_table({"gated": counts}).splitlines()[-1]
    assert line.startswith("| gated | 3 | 66.7 % [")
    assert line.endswith("| 1 a memory with other words than statements |")


def rows_of(reader: str, scores: list[int], chunks: int = 16, policy: str = "trained, seed 0") -> pd.DataFrame:
    named = {"policy": policy, "reader": reader, "chunks": chunks, "task": "fair_needle", "error": None}
    frame = pd.DataFrame({"score": scores, "example": range(len(scores))})
    costs = {"turns": 5.0, "seconds": 0.5, "prompt_tokens": 400.0, "reply_tokens": 100.0, "flops": None}
    return frame.assign(document="d", capture=0.5, retention=1.0, **named, **costs)


def line_of(table: str, *names: str) -> str:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {' | '.join(names)} |")]
    return line


def test_scores_are_paired_with_overwrite_on_the_same_documents():
    rows = pd.concat([rows_of("overwrite", [0, 0, 1, 1]), rows_of("gated", [1, 0, 1, 1])], ignore_index=True)
    assert line_of(score_table(rows), "trained, seed 0", "overwrite").startswith(
        "| trained, seed 0 | overwrite | 50.0 ["
    )
    differences = difference_table(rows)
    assert line_of(differences, "trained, seed 0", "gated").startswith("| trained, seed 0 | gated | +25.0 [")
    assert "overwrite" not in differences
    assert line_of(task_table(rows), "trained, seed 0", "gated") == "| trained, seed 0 | gated | 75.0 |"
    assert task_table(rows).startswith("| policy | reader | needle, 16 |")
    costs = line_of(cost_table(rows), "trained, seed 0", "gated")
    assert costs == "| trained, seed 0 | gated | 50.0 | 100.0 | 5.0 | 500 | 0.50, 0.50 |"


def test_lengths_ascend_and_a_length_that_was_not_read_is_empty():
    parts = [rows_of("overwrite", [1], 16), rows_of("overwrite", [1], 2), rows_of("gated", [0], 2)]
    made = score_table(pd.concat(parts, ignore_index=True))
    assert made.startswith("| policy | reader | 2 | 16 |\n")
    assert line_of(made, "trained, seed 0", "gated").endswith("] |  |")


def test_the_tables_are_made_from_the_folders_of_the_evaluations(tmp_path, capsys):
    for reader, scores, seed in (("overwrite", [0, 1], 0), ("gated", [1, 1], 0), ("gated", [0, 0], None)):
        folder = results_of(tmp_path, reader, seed)
        folder.mkdir(parents=True)
        policy = "warm start" if seed is None else f"trained, seed {seed}"
        rows_of(reader, scores, policy=policy).to_parquet(folder / f"{policy}.parquet")
    print_tables(tmp_path)
    printed = capsys.readouterr().out
    assert "| trained, seed 0 | gated | +50.0 [" in printed
    assert "| warm start | gated | 0.0 [" in printed


def test_a_plan_reads_test_documents_before_and_after_training(tmp_path):
    todo = {step.name: step for step in steps(tmp_path, ["gated"], [0])}
    before, after = todo["before gated"].arguments, todo["evaluate gated 0"].arguments
    assert {argument for argument in before if argument.endswith("_4.parquet")} <= set(after)
    assert not any(argument.endswith("_64.parquet") for argument in before)
    assert before[before.index("--out") + 1] != after[after.index("--out") + 1]


def test_the_readme_has_the_tables_of_the_saved_scores():
    assert tables(gather_rows(HERE / "scores")) in (HERE / "README.md").read_text(encoding="utf-8")
