"""A loss with KL computes the reference policy by turning the adapters off, before the first update too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port

pytest.importorskip("verl")
pytest.importorskip("peft")

STEP = Path(__file__).parents[1] / "support" / "reference_step.py"


@pytest.mark.slow
@pytest.mark.parametrize("reshard", ["1", "0"], ids=["resharded", "kept whole"])
def test_adapters_train_after_a_pass_without_them(reshard):
    variables = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "memagent_lib.rl.verl.cpu_platform"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "1", "RANK": "0"}
    variables |= {"RESHARD": reshard, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, str(STEP)], env=os.environ | variables, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    first, second = (json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{"))
    assert first["gradients"] == second["gradients"] == ["torch.float32"]
    assert first["policy"] == first["reference"] == second["reference"]  # adapters begin as zero
    assert second["policy"] < first["policy"]
