"""What a run leaves on disk can be trusted, whatever killed it."""

import json

import pytest

from memagent_lib.paths import read_lines_from
from memagent_lib.rl.run_folder import RunFolder, TrainingState, TrainingStatus


def test_a_running_run_without_a_process_has_died(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_status(TrainingStatus(state=TrainingState.RUNNING, step=3))
    assert folder.status().state is TrainingState.DIED
    folder.write_status(TrainingStatus(state=TrainingState.FINISHED, step=3))
    assert folder.status().state is TrainingState.FINISHED


def test_half_a_line_is_not_read_until_it_is_whole(tmp_path):
    file = tmp_path / "lines"
    file.write_text('{"step": 1}\n{"st')
    rows, end = read_lines_from(file, 0)
    assert rows == [{"step": 1}]
    file.write_text('{"step": 1}\n{"step": 2}\n')
    assert read_lines_from(file, end) == ([{"step": 2}], 24)
    file.write_text('{"step": 1}\n{"step"\n')
    with pytest.raises(ValueError, match=r"lines has a damaged line, .*; remove that line$"):
        read_lines_from(file, 0)


def test_a_step_whose_metrics_a_kill_has_taken_is_done_again(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        (folder.checkpoints / f"global_step_{step}").mkdir(parents=True)
    assert folder.resumable_checkpoint().step == 2  # better than none
    folder.metrics.write_text(json.dumps({"step": 1, "metrics": {}}) + "\n")
    assert folder.resumable_checkpoint().step == 1
