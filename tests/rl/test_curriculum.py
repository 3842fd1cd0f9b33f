"""Which examples a step trains on: stages in order, tasks in equal shares, nothing that depends on what came before."""

from __future__ import annotations

from collections import Counter

import pytest

from memagent_lib.rl import Recipe
from memagent_lib.rl.curriculum import Curriculum, shares_of
from memagent_lib.settings import SettingsError

FILES = [[(0, "needle"), (1, "hops"), (2, "needle"), (3, "needle")], [(4, "hops"), (5, "update"), (6, "needle")]]
TABLES = {
    "model": {"path": "policy"},
    "data": {"eval": "e.parquet"},
    "reading": {"template": "short"},
    "verl": {"trainer.total_training_steps": 10, "data.train_batch_size": 4},
}


def drawn(curriculum: Curriculum, *steps: int) -> list[int]:
    return [curriculum.row(step, number) for step in steps for number in range(curriculum.prompts)]


def test_shares_are_by_task_by_file_or_one_for_all():
    assert shares_of(FILES, "tasks") == ((1, 4), (0, 2, 3, 6), (5,))
    assert shares_of([FILES[0], [], FILES[1]], "files") == ((0, 1, 2, 3), (4, 5, 6))
    assert shares_of([FILES[0], FILES[0]], "files") == ((0, 1, 2, 3), (0, 1, 2, 3))
    assert shares_of(FILES, "examples") == ((0, 1, 2, 3, 4, 5, 6),)


def test_tasks_have_equal_shares_however_many_examples_they_have():
    curriculum = Curriculum(((6, ((1, 4), (0, 2, 3, 6), (5,))),), prompts=4, seed=0)
    task = {row: name for file in FILES for row, name in file}
    for steps in range(1, 7):
        seen = Counter(task[row] for row in drawn(curriculum, *range(1, steps + 1)))
        assert max(seen.values()) - min(seen.values()) <= 1
    rows = Counter(drawn(curriculum, *range(1, 7)))  # 24 prompts, 8 of each task
    assert rows == {1: 4, 4: 4, 0: 2, 2: 2, 3: 2, 6: 2, 5: 8}


def test_a_share_is_used_up_before_it_is_shuffled_anew():
    curriculum = Curriculum(((100, (tuple(range(12)),)),), prompts=4, seed=3)
    epochs = [drawn(curriculum, *range(first, first + 3)) for first in (1, 4, 7)]
    assert [sorted(rows) for rows in epochs] == [list(range(12))] * 3
    assert len(set(map(tuple, [*epochs, range(12)]))) == 4


def test_a_steps_rows_follow_from_seed_and_step_alone():
    stages = ((5, (tuple(range(40)), tuple(range(40, 60)))), (5, (tuple(range(60, 90)),)))
    whole = [drawn(Curriculum(stages, 8, 0), step) for step in range(1, 11)]
    assert [drawn(Curriculum(stages, 8, 0), step) for step in (7, 3, 10)] == [whole[6], whole[2], whole[9]]
    assert [drawn(Curriculum(stages, 8, 1), step) for step in range(1, 11)] != whole


def test_replaced_prompts_do_not_move_the_next_step():
    curriculum = Curriculum(((2, (tuple(range(40)),)), (2, (tuple(range(40, 80)),))), prompts=8, seed=0)
    fresh = {step: [curriculum.row(step, number) for number in range(8, 16)] for step in (1, 2, 3)}
    assert len(set(fresh[1])) == 8
    assert fresh[1] != fresh[2]
    assert fresh[1] != drawn(curriculum, 2)
    assert set(fresh[3]) <= set(range(40, 80))


def recipe(**data: object) -> Recipe:
    return Recipe.from_tables(TABLES | {"data": TABLES["data"] | data})


def test_a_recipe_has_the_files_of_its_stages():
    staged = recipe(stages=[{"files": "a.parquet", "steps": 4}, {"files": ["b.parquet", "a.parquet"]}])
    assert staged.data.files == ("a.parquet", "b.parquet")
    assert Recipe.from_tables(staged.to_tables()) == staged


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "must be set, but not both"),
        ({"stages": [{"files": "a.parquet"}, {"files": "b.parquet"}]}, "needs steps"),
        ({"stages": [{"files": [], "steps": 2}]}, "files"),
        ({"stages": [{"files": "a.parquet", "steps": 3}]}, "trainer.total_training_steps"),
        ({"train": "a.parquet", "mix": "lengths"}, "data.mix"),
    ],
)
def test_stages_that_cannot_be_meant_are_refused(data, words):
    with pytest.raises(SettingsError) as refused:
        recipe(**data)
    assert words in str(refused.value)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's loader asks torch for it
def test_the_trainer_draws_each_stages_rows_from_its_files(tmp_path, tokenizer):
    pytest.importorskip("verl")
    pytest.importorskip("vllm")
    from types import SimpleNamespace

    from verl.utils import tensordict_utils as tu

    from memagent_lib.data import Example, save
    from memagent_lib.rl.trainer import MemAgentTrainer
    from memagent_lib.rl.verl.verl_settings import compose

    def saved(name: str, tasks: dict[str, int]) -> str:
        fields = {"question": "q?", "document": "d", "answers": ("x",), "rule": "exact"}
        examples = [Example(id=f"{name}-{task}-{n}", task=task, **fields) for task in tasks for n in range(tasks[task])]
        return str(save(examples, tmp_path / f"{name}.parquet"))

    one, two = saved("one", {"needle": 9, "hops": 3}), saved("two", {"needle": 4, "update": 2})
    config = compose(
        {
            "data.train_files": [one, two],
            "data.val_files": [two],
            "data.train_batch_size": 4,
            "data.dataloader_num_workers": 0,
            "trainer.total_training_steps": 9,
        }
    )
    stages = [{"files": [two], "steps": 2}, {"files": [one, two], "steps": 7}]
    verl = {"trainer.total_training_steps": 9, "data.train_batch_size": 4}
    drawing = Recipe.from_tables(
        TABLES | {"data": {"eval": "e.parquet", "mix": "tasks", "stages": stages}, "verl": verl}
    )

    def resumed(step: int) -> MemAgentTrainer:
        trainer = object.__new__(MemAgentTrainer)
        trainer.config, trainer.recipe, trainer.tokenizer = config, drawing, tokenizer.hf
        trainer.processor, trainer.trainer_mode, trainer.parameter_sync_step = None, "sync", 1
        trainer.global_steps, trainer.replay_buffer = step, SimpleNamespace(sample=None)
        trainer._init_dataloader()
        return trainer

    def fetched(trainer: MemAgentTrainer) -> list[tuple[str, str]]:
        batch = trainer._fetch_one_gen_batch()
        ids = [row["id"] for row in tu.get(batch, "extra_info")]
        return list(zip(tu.get(batch, "uid"), ids, strict=True))

    trainer, seen = resumed(1), []
    for trainer.global_steps in range(1, 9):
        seen.append(fetched(trainer))
    assert [name for name, _ in seen[1]] == [f"s000002p{number:05d}" for number in range(4)]
    assert {id.split("-")[0] for _, id in seen[0] + seen[1]} == {"two"}
    assert Counter(id.split("-")[1] for _, id in seen[0] + seen[1]) == {"needle": 4, "update": 4}
    later = Counter(id.split("-")[1] for step in seen[2:8] for _, id in step)
    assert later == {"needle": 8, "hops": 8, "update": 8}
    again = resumed(5)
    assert fetched(again) == seen[4]
    assert [name for name, _ in fetched(again)] == [f"s000005p{number:05d}" for number in range(4, 8)]
    config.data.train_batch_size = 32  # more than all 18 examples; verl divides by the steps of an epoch
    assert resumed(5).steps_per_epoch == 1
