"""The bench of several engines, very small: both sides give the same readings before a ratio is reported."""

import json

import pytest

from experiments.studies.speed.__main__ import main


@pytest.mark.slow
def test_one_engine_and_a_pool_are_measured_on_one_task(tmp_path):
    pytest.importorskip("ray")
    pytest.importorskip("torch")
    sizes = ["backend=transformers", "engines=1", "readings=2", "chunks=2", "rounds=2"]
    assert main(["engines", *sizes, "--out", str(tmp_path / "rows.json")]) == 0
    measured = json.loads((tmp_path / "rows.json").read_text())["measures"]["engines"]
    assert [len(ratio["rounds"]) for ratio in measured["ratios"]] == [2]
    assert [row["side"] for row in measured["rows"]] == ["one", "several", "several", "one"]
