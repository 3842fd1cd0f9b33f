"""Every committed sweep fits its notebooks' parameters."""

from pathlib import Path

import pytest

from memagent_lib.sweeps import SweepSpec
from memagent_lib.sweeps.specification import plan

ROOT = Path(__file__).parents[2]


SHOWS = [ROOT / "experiments" / name for name in ("demo.toml", "studies/prose/show.toml")]
SWEEPS = [*SHOWS, *sorted((ROOT / "experiments/studies").glob("*/sweep.toml"))]


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_committed_sweeps_name_parameters_their_notebooks_have(sweep):
    assert len(SWEEPS) == 6
    assert all(plan(SweepSpec.load(sweep)))


def test_every_training_of_the_sweep_varies_what_the_table_shows():
    sweep = SweepSpec.load(ROOT / "experiments/studies/keys/sweep.toml")
    trainings = [stage for stage in sweep.stage if stage.notebook.endswith("04_train.ipynb")]
    assert [stage.name for stage in trainings] == ["train", "without-effect"]
    assert all({"settings", "seed"} <= point.keys() for stage in trainings for point in stage.varied())
