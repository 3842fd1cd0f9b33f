from __future__ import annotations

import pytest

from experiments.studies.speed.sweep import SweepBench, bench_sweep


def test_a_real_sweep_and_real_traces_lose_no_row() -> None:
    lines: list[str] = []
    found = bench_sweep(SweepBench(points=1, logging_points=2, workers=2, traces=3, turns=4), lines.append)
    assert list(found) == [line.partition(":")[0] for line in lines] == ["overhead", "rows", "traces"]
    assert found["rows"].ratios[0].rounds == (0,)
    assert found["traces"].note.startswith("3 traces of 4 turns are in the store")
    assert [row["what"] for row in found["overhead"].rows] == ["papermill alone", "sweep"]


def test_sizes_without_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="turns must be at least 2, got 1"):
        SweepBench(turns=1)
