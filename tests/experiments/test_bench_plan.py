"""The bench of plans: which measured number the plan bounds, with numbers by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from experiments.studies.speed.__main__ import main
from experiments.studies.speed.plan import beside, steps_of
from memagent_lib.rl import RunFolder

STEPS = [
    {"rollout/prompt_tokens": 500.0, "rollout/reply_tokens": 50.0, "rollout/count": 32.0, "timing_s/step": seconds}
    for seconds in (90.0, 20.0, 30.0)
]
NEEDED = {"weights": 1e9, "training process": 1.5e9, "2 rollout servers": 4e9, "Ray and trainer": 1e9}


def plan(device: str) -> SimpleNamespace:
    return SimpleNamespace(
        device=device,
        cpu_bytes=lambda: NEEDED,
        gpu=SimpleNamespace(
            training_bytes=lambda: {"weights": 10e9, "vLLM asleep": 3e9}, scoring_bytes=lambda: {"weights": 4e9}
        ),
        work=SimpleNamespace(prompt_tokens=20e3, reply_tokens=1500),
        flops={"prefill": 2e12, "update": 4e12},
        lines=lambda: ["model       0.8M parameters"],
    )


def test_a_plan_bounds_each_process_tokens_and_seconds():
    looks = [
        {"actor": 2000.0, "rollouts": 3900.0, "ray": 700.0, "trainer": 100.0},
        {"actor": 1600.0, "rollouts": 4500.0, "ray": 300.0, "trainer": 600.0},
    ]
    found = beside(plan("cpu"), STEPS, looks)
    rows = {ratio.what: (ratio.value, ratio.at_most, ratio.met) for ratio in found.ratios}
    assert rows["training process"] == (2.0, 2.5, True)
    assert rows["rollout servers"] == (4.5, 4.0, False)
    # 0.7 + 0.1 and 0.3 + 0.6; the peaks of both, 0.7 + 0.6, are of different moments.
    assert rows["Ray and trainer"] == (0.9, 1.0, True)
    assert rows["all together"] == (7.0, 7.5, True)
    assert rows["prompt tokens of a step"] == (16.0, 20.0, True)
    assert rows["reply tokens of a step"] == (1.6, 1.5, False)
    assert rows["a step"] == (25.0, None, None)  # of the second and third step
    assert rows["the planned arithmetic over a step's seconds"] == (250.0, None, None)


def test_a_finished_run_is_measured_by_what_verl_logged():
    logged = [step | {"actor/perf/cpu_memory_used_gb": 5.0} for step in STEPS]
    (memory, *_) = beside(plan("cpu"), logged, []).ratios
    assert (memory.value, memory.met) == (pytest.approx(5 * 1.073741824), None)  # other programs' memory is in it
    assert memory.what.endswith("planned for the run alone 7.5 GB")
    logged = [step | {"actor/perf/max_memory_allocated_gb": 8.0} for step in STEPS]
    (memory, *_) = beside(plan("cuda"), logged, []).ratios
    assert (memory.value, memory.at_most) == (pytest.approx(8 * 1.073741824), 10.0)  # vLLM is another process


def test_the_validation_before_the_first_step_is_no_step(tmp_path):
    logged = [{"val-core/needle/acc/mean@1": 0.5}, *(row | {"actor/perf/cpu_memory_used_gb": 5.0} for row in STEPS)]
    folder = RunFolder(tmp_path)
    rows = [json.dumps({"step": step, "time": 0.0, "metrics": metrics}) for step, metrics in enumerate(logged)]
    folder.metrics.write_text("\n".join(rows) + "\n")
    steps = steps_of(folder)
    assert steps == logged[1:]
    assert [ratio.value for ratio in beside(plan("cpu"), steps, []).ratios if ratio.what == "a step"] == [25.0]


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert main(["plan", f"run={tmp_path}"]) == 2
    assert f"bench plan: no training run at {tmp_path}; run must be" in capsys.readouterr().err


def test_a_run_without_a_step_is_refused():
    with pytest.raises(ValueError, match="the run has finished no step"):
        beside(plan("cpu"), [], [])


def test_a_folder_as_the_file_of_rows_is_refused_before_work(tmp_path, capsys):
    assert main(["plan", "--out", str(tmp_path)]) == 2
    assert f"bench plan: {tmp_path} is no file that could be replaced" in capsys.readouterr().err
