"""The table of what the keys of training change: arithmetic by hand."""

from pathlib import Path

import pandas as pd
import pytest

from experiments.studies.keys.table import outcomes, table
from memagent_lib.sweeps import SweepSpec

ROOT = Path(__file__).parents[2]
CHANGED = '["train.credit=final"]'


def curve(settings: str, seed: int, rewards: list[float], held_out: dict[str, float]) -> pd.DataFrame:
    rows = [(name, step, value) for step, reward in enumerate(rewards, 1) for name, value in steps(reward).items()]
    rows += [(f"val-core/{task}/acc/mean@1", 4, value) for task, value in held_out.items()]
    frame = pd.DataFrame(rows, columns=["metric", "step", "value"])
    return frame.assign(settings=settings, seed=seed)


def steps(reward: float) -> dict[str, float]:
    return {"rollout/reward": reward, "rollout/count": 8.0, "rows/trained": 24.0, "timing_s/step": 2.5}


@pytest.fixture
def curves() -> pd.DataFrame:
    return pd.concat(
        [
            curve("[]", 0, [0.0, 0.3, 0.6, 0.9], {"a": 0.5, "b": 0.7}),
            curve("[]", 1, [0.0, 0.0, 0.0, 0.3], {"a": 0.2, "b": 0.2}),
            curve(CHANGED, 0, [0.9, 0.0, 0.0, 0.0], {"a": 0.1, "b": 0.3}),
            curve(CHANGED, 1, [0.9, 0.3, 0.3, 0.3], {"a": 0.3, "b": 0.3}),
        ],
        ignore_index=True,
    )


def test_the_last_steps_and_all_tasks_count_alike(curves):
    first = outcomes(curves).iloc[0]
    assert (first["settings"], first["seed"]) == ("[]", 0)
    assert first["reward"] == pytest.approx(0.6)
    assert first["held_out"] == pytest.approx(0.6)
    assert (first["rollouts"], first["rows"], first["seconds"]) == (32, 96, 10)


def test_differences_are_paired_by_seed(curves):
    lines = table(outcomes(curves)).splitlines()[2:]
    assert lines == [
        "| as the recipe is | 35.0 | 40.0 | a 35.0, b 45.0 |  | 32 | 96 | 10 |",
        "| `train.credit=final` | 15.0 | 25.0 | a 20.0, b 30.0 | -40.0, +10.0 | 32 | 96 | 10 |",
    ]


def test_every_training_of_the_sweep_varies_what_the_table_shows():
    sweep = SweepSpec.load(ROOT / "experiments/studies/keys/sweep.toml")
    trainings = [stage for stage in sweep.stage if stage.notebook.endswith("04_train.ipynb")]
    assert [stage.name for stage in trainings] == ["train", "without-effect"]
    assert all({"settings", "seed"} <= point.keys() for stage in trainings for point in stage.varied())
