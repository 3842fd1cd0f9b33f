"""What a recipe would load is listed before any of it is loaded."""

from __future__ import annotations

import pytest

from memagent_lib.cli import main
from memagent_lib.data import Example, save
from memagent_lib.rl import Recipe, loaded_by, recipe_tables

OURS = "experiments/recipes/7b_8gpu.toml"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("verl.actor_rollout_ref.model.external_lib", "os"),
        ("verl.+actor_rollout_ref.actor._target_", "subprocess.Popen"),
        ("verl.data.custom_cls.path", "pkg://theirs"),
        ("verl.reward.custom_reward_function.path", "theirs.py"),
        ("verl.actor_rollout_ref.rollout.multi_turn.function_tool_path", "tools.py"),
        ("verl.actor_rollout_ref.rollout.custom_async_server.path", "server"),
        ("verl.trainer.checkpoint_callback_class", "theirs.Callback"),
        ("verl.trainer.resume_from_path", "checkpoints/step_9"),  # pickles
        ("verl.data.trust_remote_code", "true"),
        ("verl.ray_kwargs.ray_init.runtime_env.env_vars.PYTHONSTARTUP", "x"),
        ("verl.algorithm.unheard_of", "theirs.py"),
        ("reading.reader", "theirs.py:Reader"),
        ("reading.template", "theirs.toml"),
        ("model.average_with", "theirs"),
    ],
)
def test_whatever_a_setting_loads_is_listed(setting, value):
    tables = recipe_tables(OURS, [f"{setting}={value}"])
    assert (setting, value.capitalize() if value == "true" else value) in loaded_by(tables)


def test_our_recipes_load_nothing_but_their_model():
    assert [name for name, _ in loaded_by(recipe_tables(OURS))] == ["model.path"]


def test_tables_nested_in_the_file_have_the_same_names(tmp_path):
    path = tmp_path / "theirs.toml"
    path.write_text('[verl.data.custom_cls]\npath = "theirs.py"\n[[data.stages]]\nfiles = ["x.parquet"]\n')
    assert loaded_by(recipe_tables(path)) == [("verl.data.custom_cls.path", "theirs.py")]


def test_the_judges_that_examples_name_are_listed(tmp_path):
    judge = tmp_path / "judge.py"
    judge.write_text("def exact(reply, answers):\n    return 1.0\n")
    example = Example(id="1", task="t", question="q", document="d", answers=("a",), rule=f"{judge}:exact")
    path = save([example], tmp_path / "x.parquet")
    assert loaded_by({"data": {"train": str(path)}}) == [("the judge of x.parquet", f"{judge}:exact")]


def test_a_dry_run_lists_a_readers_file_before_it_runs(tmp_path, capsys):
    reader = tmp_path / "theirs.py"
    reader.write_text("raise SystemError('this ran')\n")
    assert main(["train", OURS, f"reading.reader={reader}:Reader", "--dry-run"]) == 2
    printed = capsys.readouterr()
    assert f"loads       reading.reader = {reader}:Reader" in printed.out
    assert "this ran" in printed.err
    with pytest.raises(ValueError, match="this ran"):
        Recipe.load(OURS, [f"reading.reader={reader}:Reader"])
