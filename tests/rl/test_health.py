"""Signs of collapse in a run's metrics, and a run that stops at its last healthy checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memagent_lib.rl import Recipe, RunFolder, TrainingState, TrainingStatus, signs
from memagent_lib.rl.health import BOUNDS, points_of
from memagent_lib.rl.run.supervisor import Supervisor
from memagent_lib.rl.verl.verl_keys import OWNED
from memagent_lib.settings import SettingsError

TABLES = {
    "model": {"path": "policy"},
    "data": {"train": "a.parquet", "eval": "b.parquet"},
    "reading": {},
    "train": {"stop_unhealthy": True},
    "verl": {"trainer.total_training_steps": 20, "trainer.save_freq": 5},
}


def points(**metrics: list[float]) -> dict[str, list[tuple[int, float]]]:
    """Return the points of metrics from step 1 on; a double underscore in a name stands for a slash."""
    return {name.replace("__", "/"): list(enumerate(values, start=1)) for name, values in metrics.items()}


@pytest.mark.parametrize(
    ("metric", "values", "name", "since", "value", "limit"),
    [
        ("rollout__entropy", [1.0] * 7 + [0.01] * 6, "entropy", 12, 0.01, 0.1),
        ("rollout__entropy", [1.0] * 7 + [9.0] * 3, "entropy", 10, 5.8, 3.0),
        ("actor__grad_norm", [1.0] * 10 + [40.0], "gradient norm", 11, 8.8, 5.0),
        ("response_length__mean", [10.0] * 8 + [50.0] * 2, "reply length", 10, 26.0, 20.0),
        ("rollout__equal_groups", [0.2, 0.9, 1.0, 1.0, 1.0, 1.0], "share of groups without spread", 5, 0.98, 0.75),
        ("rollout__cut_share", [0.0] * 5 + [0.6], "share of memories cut at their limit", 6, 0.12, 0.1),
        ("critic__score__mean", [0.8] * 8 + [0.0] * 4, "reward", 11, 0.16, 0.4),
    ],
)
def test_a_crossed_bound_has_its_step_value_and_limit(metric, values, name, since, value, limit) -> None:
    (sign,) = signs(points(**{metric: values}))
    assert (sign.bound.name, sign.step) == (name, since)
    assert (sign.value, sign.limit) == (pytest.approx(value), pytest.approx(limit))
    assert sign.text.startswith(f"{name} {sign.value:.3g} is ") and sign.bound.change in sign.text


def test_a_healthy_run_and_one_odd_step_are_no_sign() -> None:
    healthy = points(
        rollout__entropy=[1.0 - step / 25 for step in range(20)],
        actor__grad_norm=[1.0] * 12 + [15.0] + [1.0] * 7,
        response_length__mean=[30.0 + step for step in range(20)],
        rollout__equal_groups=[0.9, 0.9] + [0.4] * 18,
        critic__score__mean=[0.1 + step / 25 for step in range(20)],
    )
    assert signs(healthy) == []
    assert signs(points(actor__grad_norm=[0.0] * 10 + [1.0] * 3)) == []  # compared with nothing
    assert signs(points(critic__score__mean=[0.05] * 5 + [0.0] * 10)) == []
    assert signs(points(rollout__entropy=[1.0] * 4 + [0.0])) == []  # too few steps to compare


def test_a_bound_that_is_no_longer_crossed_is_no_sign() -> None:
    assert signs(points(rollout__cut_share=[1.0] * 6 + [0.0] * 6)) == []
    assert signs(points(rollout__cut_share=[1.0] * 6 + [0.0] * 6 + [1.0] * 5))[0].step == 13


def test_every_bound_names_a_meaning_a_change_and_a_source() -> None:
    assert all(bound.means and bound.change and bound.source for bound in BOUNDS)
    owned = [name.removeprefix("actor_rollout_ref.") for name in OWNED]
    assert not [name for name in owned for bound in BOUNDS if name in bound.change]
    assert all((bound.least is None) != (bound.most is None) for bound in BOUNDS)


def test_stopping_when_unhealthy_needs_earlier_checkpoints() -> None:
    with pytest.raises(SettingsError, match=r"set verl\.trainer\.save_freq"):
        Recipe.from_tables(TABLES | {"verl": {"trainer.total_training_steps": 20}})
    recipe = Recipe.from_tables(TABLES)
    assert (recipe.train.keep_checkpoints, recipe.retained_checkpoints) == (2, 2)
    often = TABLES | {"verl": {"trainer.total_training_steps": 20, "trainer.save_freq": 1}}
    assert Recipe.from_tables(often).retained_checkpoints == 6


def test_an_unhealthy_run_stops_at_its_last_healthy_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (5, 10, 15):
        (folder.checkpoints / f"global_step_{step}").mkdir(parents=True)
    supervisor = Supervisor(folder, Recipe.from_tables(TABLES), "cpu")
    supervisor.write(TrainingStatus(state=TrainingState.RUNNING, steps=20))
    for step, entropy in enumerate([1.0] * 7 + [0.01] * 6, start=1):
        supervisor.progress(step, {"rollout/entropy": entropy})
    assert supervisor.status.warnings[0].startswith("entropy 0.01 is below 0.1, a tenth of its first 5 steps, since")

    class Killed:
        returncode = -9

    state, why = supervisor.end(Killed())
    assert state is TrainingState.STOPPED
    assert "step 5 is the last checkpoint before those 5 steps; `memagent export" in why
    assert "unhealthy_step_10 and on" in why
    assert [checkpoint.step for checkpoint in folder.whole_checkpoints()] == [5]
    assert (folder.checkpoints / "unhealthy_step_15").is_dir() and folder.stays_stopped
    assert len(points_of(folder.rows())["rollout/entropy"]) == 13
    assert TrainingStatus.from_record(json.loads(json.dumps(supervisor.status.to_record()))) == supervisor.status
