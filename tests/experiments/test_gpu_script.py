"""The script for the first minutes on a GPU, with commands that only record how they were called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "studies" / "speed" / "gpu.sh"


@pytest.fixture
def stub(tmp_path) -> dict[str, str]:
    """An environment whose memagent fails, and whose python succeeds; both print what they were called with."""
    for name, status in (("memagent", 3), ("python", 0)):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\necho "{name} $@"\nexit {status}\n')
        command.chmod(0o755)
    return os.environ | {"BIN": str(tmp_path / "bin"), "STEPS": "7", "DEVICE": "cpu", "MODEL": "owl"}


def run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([SCRIPT, *arguments], env=env, capture_output=True, text=True)


def test_a_part_that_fails_does_not_stop_the_next(stub, tmp_path):
    assert run(stub, f"{tmp_path}/out", "recipe", "step", "order").returncode == 0
    lines = (tmp_path / "out" / "summary.txt").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "recipe: status 3",
        "step: status 0",
        "order: status 0",
    ]
    assert lines[0].endswith("model.device=cpu verl.trainer.total_training_steps=7")
    assert (tmp_path / "out" / "machine.txt").read_text()


def test_a_missing_adapter_is_refused_before_any_part_runs(stub, tmp_path):
    script = tmp_path / "experiments" / "studies" / "speed" / SCRIPT.name
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)  # it looks for the adapter beside itself
    del stub["MODEL"]
    refused = subprocess.run([script, "out", "recipe", "step"], env=stub, capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stderr == (
        "experiments/studies/prose/warm_start is missing; MODEL names another model or adapter to train\n"
    )
    assert not (tmp_path / "out").exists()


def test_an_unknown_part_is_refused_before_any_runs(stub, tmp_path):
    refused = run(stub, f"{tmp_path}/out", "order", "prefetch")
    assert (refused.returncode, refused.stderr) == (
        2,
        "no part prefetch; choose from prepare, recipe, step, order\n",
    )
    assert not (tmp_path / "out").exists()
