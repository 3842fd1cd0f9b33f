"""The trainer and verl's own code for checkpoints, with a worker that writes real files instead of a process group."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

pytest.importorskip("verl")

import torch

from memagent_lib.paths import root
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run_folder import CheckpointError, RunFolder


class Worker:
    """Writes what a rank writes, and records the last path that it loaded."""

    numbers, loaded = 1000, ""

    def save_checkpoint(self, path: str, remote: None, step: int, max_ckpt_to_keep: None) -> None:
        assert max_ckpt_to_keep is None  # verl deletes nothing
        Path(path).mkdir(parents=True)
        torch.save(torch.full((self.numbers,), float(step)), Path(path) / "model_world_size_1_rank_0.pt")

    def load_checkpoint(self, local_path: str, del_local_after_load: bool) -> None:
        self.loaded = local_path


class Data:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


@pytest.fixture(scope="module")
def composed():
    from memagent_lib.rl.verl.verl_settings import compose, verl_settings

    recipe = Recipe.load(root() / "experiments/pocket/recipes/pocket_demo.toml", ["train.keep_checkpoints=1"])
    recipe = Recipe.from_tables(recipe.to_tables() | {"model": {"path": str(root() / recipe.model.path)}})
    return recipe, lambda folder: compose(verl_settings(recipe, folder, "cpu"))


@pytest.fixture
def trainer(composed, tmp_path: Path):
    from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

    from memagent_lib.rl.trainer import MemAgentTrainer

    made = object.__new__(MemAgentTrainer)
    made.recipe, config = composed
    made.config = config(RunFolder(tmp_path))
    made.actor_rollout_wg, made.train_dataloader = Worker(), Data()
    made.checkpoint_callback, made.use_critic, made.trainer_mode = CheckpointCallback(), False, "sync"
    return made


def save(trainer, step: int) -> None:
    """Stop the run after ``step``, which writes its checkpoint."""
    from memagent_lib.rl.trainer import StopRequested

    trainer.folder.stop_request.touch()
    trainer.global_steps = step + 1
    with pytest.raises(StopRequested):
        trainer.on_step_begin()


def steps(trainer) -> list[int]:
    return [checkpoint.step for checkpoint in trainer.folder.whole_checkpoints()]


def test_verl_writes_aside_and_reads_the_renamed_checkpoint(trainer, tmp_path) -> None:
    save(trainer, 3)
    assert steps(trainer) == [3]
    assert trainer.config.trainer.default_local_dir == str(tmp_path / "checkpoints")
    trainer.folder.checkpoint_note.write_text("3")  # as the launcher does
    trainer._load_checkpoint()
    assert trainer.global_steps == 3
    assert trainer.actor_rollout_wg.loaded == str(tmp_path / "checkpoints" / "global_step_3" / "actor")


def test_a_full_disk_leaves_the_previous_checkpoint(trainer) -> None:
    save(trainer, 1)
    trainer.actor_rollout_wg.numbers = 100_000
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(CheckpointError, match=r"step 2 .* GB are free"):
            save(trainer, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert steps(trainer) == [1]


def test_a_reading_that_failed_in_any_batch_ends_a_validation(trainer, monkeypatch) -> None:
    """verl samples a validation in batches, and forgets the failures of one when it samples the next."""
    from types import SimpleNamespace

    from verl.trainer.ppo.v1 import PPOTrainerSync

    from memagent_lib.rl.agent_loop import RolloutError

    trainer.global_steps = 3
    trainer.replay_buffer = SimpleNamespace(failure_keys={"val": set()})

    def validate(self) -> dict[str, float]:
        for failed in ({"a reading"}, set()):
            trainer.replay_buffer.failure_keys["val"] = failed
            trainer.sample(lambda **_: (None, {}), 3, "val", 1)
        return {"val-core/needle/acc/mean@1": 0.5}

    monkeypatch.setattr(PPOTrainerSync, "_validate", validate)
    with pytest.raises(RolloutError, match="1 prompts failed in step 3"):
        trainer._validate()
