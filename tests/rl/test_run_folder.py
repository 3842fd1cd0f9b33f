"""What a run leaves on disk can be trusted, whatever killed it."""

import json
import os

import pytest

from memagent_lib.paths import read_lines_from
from memagent_lib.rl.run_folder import RunFolder, TrainingState, TrainingStatus, rollout_files


def test_a_status_comes_back_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path)
    lock = folder.lock()
    folder.write_status(
        TrainingStatus(state=TrainingState.RUNNING, step=3, steps=9, reward=0.25, seconds_left=12.0, pid=7)
    )
    status = folder.status()
    assert (status.state, status.step, status.steps, status.reward, status.pid) == (
        TrainingState.RUNNING,
        3,
        9,
        0.25,
        7,
    )
    assert status.updated > 0
    os.close(lock)


def test_a_running_run_without_a_process_has_died(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_status(TrainingStatus(state=TrainingState.RUNNING, step=3))
    assert folder.status().state is TrainingState.DIED
    folder.write_status(TrainingStatus(state=TrainingState.FINISHED, step=3))
    assert folder.status().state is TrainingState.FINISHED


def test_only_one_process_can_hold_a_run(tmp_path):
    folder = RunFolder(tmp_path)
    lock = folder.lock()
    with pytest.raises(BlockingIOError):
        folder.lock()
    os.close(lock)
    os.close(folder.lock())


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


def test_a_resumed_run_forgets_the_steps_it_will_do_again(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text("".join(json.dumps({"step": s, "metrics": {}}) + "\n" for s in (1, 2, 3)))
    folder.forget_after(2)
    assert [row["step"] for row in folder.rows()] == [1, 2]


def test_copies_that_a_person_made_in_a_run_do_not_count(tmp_path):
    folder = RunFolder(tmp_path)
    for name in ("global_step_9", "global_step_10", "global_step_9 (copy)", "global_step_10.tar.gz", "global_step_old"):
        (folder.checkpoints / name).mkdir(parents=True)
    folder.traces.mkdir()
    for name in ("step_000010.jsonl", "step_000009.jsonl", "step_000010 (copy).jsonl", "step_mine.jsonl"):
        (folder.traces / name).touch()
    assert [checkpoint.step for checkpoint in folder.whole_checkpoints()] == [9, 10]
    assert [file.name for file in rollout_files(folder.traces)] == ["step_000009.jsonl", "step_000010.jsonl"]
    folder.forget_after(9)
    assert [file.name for file in rollout_files(folder.traces)] == ["step_000009.jsonl"]


def test_a_second_unhealthy_checkpoint_replaces_the_first(tmp_path):
    folder = RunFolder(tmp_path)
    for attempt in ("first", "second"):
        made = folder.checkpoints / "global_step_20"
        made.mkdir(parents=True)
        (made / "model.pt").write_text(attempt)
        assert folder.set_aside_from(18) == [20]
    assert folder.latest_checkpoint() is None
    assert (folder.checkpoints / "unhealthy_step_20" / "model.pt").read_text() == "second"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_exported_policy_says_what_its_weights_are_stored_in(tmp_path, dtype):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    from memagent_lib.rl.run.export import export_model

    trained = tmp_path / "trained"
    trained.mkdir()
    save_file({"w": torch.zeros(2, dtype=getattr(torch, dtype))}, trained / "model.safetensors")
    (trained / "config.json").write_text('{"dtype": "float16", "hidden_size": 8}')
    export_model(trained, trained, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text()) == {"dtype": dtype, "hidden_size": 8}


def test_an_exported_model_is_never_deleted_in_its_place(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    from memagent_lib.rl.run import export

    trained = tmp_path / "trained"
    trained.mkdir()
    (trained / "config.json").write_text("{}")
    deleted = []
    rmtree = export.shutil.rmtree
    monkeypatch.setattr(export.shutil, "rmtree", lambda path, **how: (deleted.append(path.name), rmtree(path, **how)))
    for value in (1.0, 2.0):
        save_file({"w": torch.full((2,), value)}, trained / "model.safetensors")
        export.export_model(trained, trained, tmp_path / "model")
        assert load_file(tmp_path / "model" / "model.safetensors")["w"].tolist() == [value, value]
    assert "model" not in deleted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "trained"]
