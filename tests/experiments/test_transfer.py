"""The transfer matrix, worked out by hand; and every committed sweep fits its notebooks' parameters."""

from pathlib import Path

import pandas as pd
import pytest

from experiments.studies.transfer.table import table, transfer
from memagent_lib.sweeps import SweepSpec
from memagent_lib.sweeps.runner import plan

ROOT = Path(__file__).parents[2]


def run(task: str, seed: int, before: float, after: dict[str, float]) -> pd.DataFrame:
    """Held-out scores before the first step and after step 3, and what else a curve holds."""
    rows = [(f"val-core/pocket_{name}/acc/mean@1", 0, before) for name in after]
    rows += [(f"val-core/pocket_{name}/acc/mean@1", 3, value) for name, value in after.items()]
    rows += [("rollout/reward", step, 0.9) for step in (1, 2, 3)] + [("val-aux/pocket_needle/turns/mean@1", 3, 5.0)]
    frame = pd.DataFrame(rows, columns=["metric", "step", "value"])
    return frame.assign(train_files=f'["runs/x/{task}/train_2.parquet"]', seed=seed)


def test_the_matrix_averages_final_scores_over_seeds():
    curves = pd.concat(
        [
            run("chain", 0, 0.25, {"needle": 0.5, "chain": 0.75}),
            run("needle", 0, 0.25, {"needle": 1.0, "chain": 0.0}),
            run("needle", 1, 0.25, {"needle": 0.5, "chain": 0.5}),
        ],
        ignore_index=True,
    )
    matrix = transfer(curves)
    assert matrix.loc["needle", "chain"] == pytest.approx(0.25)
    assert table(matrix).splitlines() == [
        "| trained on | needle | chain |",
        "|---|---|---|",
        "| nothing (warm start) | 25.0 | 25.0 |",
        "| needle | 75.0 | 25.0 |",
        "| chain | 50.0 | 75.0 |",
    ]


SHOWS = [ROOT / "experiments" / name for name in ("demo.toml", "studies/prose/show.toml")]
SWEEPS = [*SHOWS, *sorted((ROOT / "experiments/studies").glob("*/sweep.toml"))]


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_committed_sweeps_name_parameters_their_notebooks_have(sweep):
    assert len(SWEEPS) == 6
    assert all(plan(SweepSpec.load(sweep)))
