"""``memagent doctor --train`` trains for real, and says so when what it finds is not as it should be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from memagent_lib.cli import main
from memagent_lib.findings import Finding, Health
from memagent_lib.models import PUBLISHED
from memagent_lib.rl.run import self_check
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


class Started(Exception):
    """In place of a run."""


def test_a_model_has_the_names_that_other_commands_take(tmp_path, model_folder, monkeypatch):
    pytest.importorskip("verl")

    def launch(recipe, folder):
        raise Started(recipe.model.path)

    monkeypatch.setattr(self_check, "launch", launch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = PUBLISHED["smollm2"].folder
    shutil.copytree(model_folder, folder)
    with pytest.raises(Started) as started:
        self_check.check_training(tmp_path, model_folder, "smollm2")
    assert str(started.value) == str(folder)


def test_the_weights_of_a_hub_model_are_compared(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit = "c" * 40
    snapshot = tmp_path / "models--me--tiny/snapshots" / commit
    after = tmp_path / "after"
    for folder in (snapshot, snapshot.parents[1] / "refs", after):
        folder.mkdir(parents=True)
    (snapshot.parents[1] / "refs/main").write_text(commit)
    save_file({"w": torch.ones(2, 2)}, snapshot / "model.safetensors")
    save_file({"w": torch.zeros(2, 2)}, after / "model.safetensors")
    moved = self_check.weights_moved(Path("me/tiny"), after)
    assert moved == Finding("weights moved", "1 of 1 matrices, by at most 1.0e+00")
    missing = self_check.weights_moved(Path("me/other"), after)
    assert (missing.state, missing.found) == (
        Health.NOTE,
        "not measured: no safetensors of me/other on this machine",
    )
