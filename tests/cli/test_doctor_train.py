"""``memagent doctor --train`` trains for real, and says so when what it finds is not as it should be."""

from __future__ import annotations

import json

import pytest

from memagent_lib.cli import main
from memagent_lib.findings import Health
from memagent_lib.rl.run.self_check import STEPS, check_run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_good_run_passes_every_check_and_a_spoiled_one_fails(tmp_path, capsys):
    pytest.importorskip("verl")
    pytest.importorskip("vllm")
    assert main(["doctor", "--train", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for what in (
        "log-probabilities",
        "rows trained",
        "weights moved",
        "rollout",
        "update",
        "peak memory",
        "checkpoint",
    ):
        assert what in shown
    from memagent_lib.rl import attach

    run = attach(tmp_path / "run")
    assert run.status().step == STEPS
    assert {finding.state for finding in check_run(run, "cpu", tmp_path / "policy", 1.0)} == {Health.GOOD}
    rows = [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]
    rows[-1]["metrics"] |= {"rollout/actor_difference": 1e-3, "rows/trained": 1.0}
    run.folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad = {finding.what for finding in check_run(run, "cpu", run.folder.model, 1.0) if finding.state is Health.FAILED}
    assert bad == {"log-probabilities of rollouts and actor", "rows trained of rows produced", "weights moved"}
