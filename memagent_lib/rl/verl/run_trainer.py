"""verl's synchronous trainer, changed to stop on request and to write only complete checkpoints.

The run also fails if a validation reading or too many rollouts fail. The algorithm is in
:mod:`memagent_lib.rl.trainer`; this module adds only what concerns the run's folder.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync

from memagent_lib.rl.agent_loop import RolloutError, last_failure
from memagent_lib.rl.run_folder import RunFolder, validation_score
from memagent_lib.rl.verl.checkpoints import delete_old, note_score, whole_checkpoint


class StopRequested(Exception):
    """The run has stopped on request, with a checkpoint of its last step."""


class RunTrainer(PPOTrainerSync):
    """verl's trainer with our own settings, which are in ``trainer.v1.memagent`` of verl's configuration."""

    def __init__(self, config: Any):
        self.settings = config.trainer.v1.memagent
        super().__init__(config)

    @property
    def folder(self) -> RunFolder:
        return RunFolder(Path(self.settings.trace_folder).parent)

    def on_step_begin(self) -> None:
        """If a stop was requested, save a checkpoint and raise :class:`StopRequested`.

        This is done between two steps, while nothing else is running.
        """
        self.folder.beat()
        if not Path(self.settings.stop_file).exists():
            return
        self.global_steps -= 1  # verl has already counted the step that now does not begin
        if self.global_steps and not (self.folder.checkpoints / f"global_step_{self.global_steps}").is_dir():
            self._save_checkpoint()
        raise StopRequested(f"stopped on request after step {self.global_steps}")

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> KVBatchMeta:
        try:
            return super()._step_once(metrics, timing_raw, sample_batch_size)
        except RuntimeError:  # verl's error for a batch without any result does not name a reason
            self._require_few_failures(len(self.replay_buffer.failure_keys["train"]))
            raise

    def _require_few_failures(self, failed: int) -> None:
        """Raise :class:`RolloutError` if all of a step's prompts failed, or more than ``failed_share`` of them.

        The number that may fail is rounded up.
        """
        prompts = self.config.data.train_batch_size
        share = self.settings.failed_share
        most = min(math.ceil(share * prompts), prompts - 1)
        if failed > most:
            raise RolloutError(
                f"rollouts of {failed} prompts failed in step {self.global_steps}, and train.failed_share = {share} "
                f"allows {most} of {prompts}; the last one:\n{last_failure(self.folder.traces)}"
            )

    def _validate(self) -> dict[str, float]:
        """Validate as verl does, and save the mean score in the step's checkpoint.

        A failed reading stops the run, because a mean over fewer documents could not be compared with the others.
        """
        self.failed_readings: set[str] = set()
        metrics = super()._validate()
        failed = len(self.failed_readings)
        if failed:
            raise RolloutError(
                f"{failed} validation readings failed after step {self.global_steps}; the last one:\n"
                f"{last_failure(self.folder.traces)}"
            )
        score = validation_score(metrics)
        if score is not None:
            note_score(self.folder, self.global_steps, float(score))
        return metrics

    def _save_checkpoint(self) -> None:
        """Let verl write the checkpoint to a temporary folder, check and rename it, and then delete older ones."""
        trainer = self.config.trainer
        with whole_checkpoint(self.folder, self.global_steps) as unfinished:
            trainer.default_local_dir = str(unfinished)
            try:
                super()._save_checkpoint()
            finally:
                trainer.default_local_dir = str(self.folder.checkpoints)
        delete_old(self.folder, self.settings.keep_checkpoints)
        self.folder.beat()
