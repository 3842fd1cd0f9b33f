"""Plan a training run before a GPU is reserved: its tokens, arithmetic, hours and bytes, and whether they fit.

The numbers are upper bounds from budgets and model shapes, at the utilisations below. They are for refusing runs that
cannot fit and for comparing recipes, not for predicting speed. verl's own FLOP counter measures finished updates only;
a plan also needs prefill and decoding. Planning composes verl's configuration but starts no process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.backends import ModelShape, config_of, shape_of
from memagent_lib.data import count
from memagent_lib.errors import UserError
from memagent_lib.paths import absolute, bytes_of, free_disk
from memagent_lib.prompts import Encoder
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.cpu import FIT_SETTINGS, CpuFit, fit_of, memory_of
from memagent_lib.rl.run.checks import check_leftovers, models_checked, require_training, resolved
from memagent_lib.rl.run.data_check import bad_examples, guessable, require_enough, unusable
from memagent_lib.rl.run.gpu_memory import FP32, GpuMemory
from memagent_lib.rl.run.step_work import Work, stage_lines
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.rl.verl.verl_keys import CHECKPOINTING, EXTERNAL_LIB, MICRO_BATCH
from memagent_lib.system import machine_bytes

# Shares of a GPU's dense bf16 peak.
UPDATE_SHARE = 0.35
PREFILL_SHARE = 0.4
# Decoding waits for memory: each byte of weights that is read serves about as many FLOP as rows are decoded at once.
DECODE_FLOP_PER_BYTE = 24
# What a GPU takes beside arithmetic: an H200 needed this much with SmolLM2-135M (experiments/studies/speed/README.md).
LAYER_SECONDS = 3e-3  # a layer's pass over a micro-batch: launches, and adapters
TURN_SECONDS = 1.6  # a turn of all rollouts: requests, scheduling, and launches of layers for one token after another
LOG_BYTES = 1 << 30  # logs, traces, Ray's session files


class PlanError(UserError, ValueError):
    """The planned run does not fit. The message has the numbers."""


class Gpu(NamedTuple):
    """A GPU's memory in bytes, its dense bf16 FLOP/s and its memory's bytes/s according to its data sheet."""

    memory: float
    flops: float
    bandwidth: float


GPUS = {
    "RTX 4090 24 GB": Gpu(24e9, 165e12, 1.01e12),
    "A100 80 GB": Gpu(80e9, 312e12, 2.04e12),
    "H100 80 GB": Gpu(80e9, 989e12, 3.35e12),
    "H200 141 GB": Gpu(141e9, 989e12, 4.8e12),
}


@dataclass(frozen=True)
class TrainingPlan:
    """The needs of a recipe. :meth:`lines` reports them; :meth:`check` raises an error if they cannot be met.

    ``free_disk`` counts the bytes of the run's own checkpoints as free, because new ones replace them.
    """

    recipe: Recipe
    device: str
    shape: ModelShape
    work: Work
    verl: Any
    free_disk: float
    machine_bytes: float
    unusable: tuple[str, ...] = ()
    """One sentence for each file on this machine with examples that cannot be trained on."""
    full_attention: bool = True
    """Whether every layer of the model attends to all earlier tokens, which rows laid out as trees require."""

    @classmethod
    def of(cls, recipe: Recipe, folder: RunFolder, device: str, encoder: Encoder) -> TrainingPlan:
        """Compose and validate verl's whole configuration for a recipe, and return the plan of the run.

        No process is started. The examples are only counted, not checked.
        """
        from memagent_lib.rl.cpu import answer_for_vllm
        from memagent_lib.rl.verl.prefix_trees import attends_to_everything
        from memagent_lib.rl.verl.verl_checks import require_valid
        from memagent_lib.rl.verl.verl_settings import compose, verl_settings

        answer_for_vllm()  # verl's validation looks up the version of "vllm", and the CPU build has another name
        verl = compose(verl_settings(recipe, folder, device))
        model = config_of(recipe.model.path).get_text_config()
        require_valid(verl, model.num_attention_heads, encoder.window, rehearse=EXTERNAL_LIB not in recipe.verl)
        free = free_disk(folder.path) + bytes_of(folder.checkpoints)
        shape = shape_of(recipe.model.path)
        whole = attends_to_everything(model)
        work = Work.of(recipe, encoder)
        return cls(recipe, device, shape, work, verl, free, machine_bytes(), full_attention=whole)

    @property
    def workers(self) -> int:
        return self.recipe.nodes * self.recipe.workers

    @property
    def flops(self) -> dict[str, float]:
        """The maximum FLOP of each part of a step: no prefix is shared."""
        actor = self.verl.actor_rollout_ref.actor
        rollout = self.verl.actor_rollout_ref.rollout
        once = self._pass_flops(rollout.log_prob_max_token_len_per_gpu)
        update = self._update_passes * self._pass_flops(actor.ppo_max_token_len_per_gpu)
        if self.in_trees:  # whose attention is recomputed once more, within the backward pass
            update += once - self.shape.forward_flops(self.work.trained_tokens, 0)
        parts = {
            "prefill": self.shape.forward_flops(self.work.prompt_tokens, self.work.longest_row),
            "decode": self.shape.forward_flops(self.work.reply_tokens, self.work.longest_row),
            "old log-probabilities": 0.0 if self.verl.algorithm.rollout_correction.bypass_mode else once,
            "reference": once if actor.use_kl_loss else 0.0,
            "update": update,
        }
        return {name: value for name, value in parts.items() if value}

    @property
    def _update_passes(self) -> int:
        """Forward passes that cost as much as an update: its own, two for the backward pass, and one to recompute."""
        return 4 if self.gpu.recomputes else 3

    @property
    def in_trees(self) -> bool:
        """Whether passes over rows share common prefixes (:mod:`memagent_lib.rl.verl.prefix_trees`)."""
        model = self.verl.actor_rollout_ref.model
        own = self._implementation != "sdpa" or model.use_remove_padding or model.use_fused_kernels
        return self.full_attention and not own

    @property
    def attention(self) -> str:
        """The implementation of attention in passes over rows, by the name under which transformers has it."""
        from memagent_lib.rl.verl.tree_attention import NAME

        return NAME if self.in_trees else self._implementation

    @property
    def _implementation(self) -> str:
        """The implementation that verl's configuration names."""
        return self.verl.actor_rollout_ref.model.override_config.get("attn_implementation", "flash_attention_2")

    def _pass_flops(self, micro_batch: float) -> float:
        """Return the FLOPs of a forward pass over a step's rows in micro-batches of ``micro_batch`` tokens."""
        from memagent_lib.rl.verl.tree_attention import PADDING

        tokens = self.work.trained_tokens
        if self.in_trees:  # a node and its whole row, in padded blocks, which compute what their masks hide too
            return self.shape.forward_flops(tokens, PADDING * self.work.longest_row, dense=True)
        if self.attention == "sdpa":  # a micro-batch is one packed row, whose mask hides most of the pairs it computes
            return self.shape.forward_flops(tokens, min(micro_batch, tokens), dense=True)
        return self.shape.forward_flops(tokens, self.work.longest_row)

    @property
    def gpu(self) -> GpuMemory:
        """What each GPU of the run needs."""
        return GpuMemory(
            self.shape, self.work, self.verl, self.workers, self.recipe.rollouts, self.attention, self.in_trees
        )

    def hours(self, gpu: Gpu) -> float:
        """Return how many hours one step takes with every worker on ``gpu``."""
        rates = {"prefill": gpu.flops * PREFILL_SHARE, "decode": gpu.bandwidth * DECODE_FLOP_PER_BYTE}
        seconds = sum(value / rates.get(name, gpu.flops * UPDATE_SHARE) for name, value in self.flops.items())
        seconds += self._layer_passes * LAYER_SECONDS
        return (seconds / self.workers + self.work.turns * TURN_SECONDS) / 3600

    @property
    def _layer_passes(self) -> float:
        """How often a step passes a micro-batch through a layer."""
        roles = self.verl.actor_rollout_ref
        scoring = (1, roles.rollout.log_prob_max_token_len_per_gpu)
        update = (self._update_passes, roles.actor.ppo_max_token_len_per_gpu)
        limits = {"old log-probabilities": scoring, "reference": scoring, "update": update}
        passes = (limits[name] for name in self.flops if name in limits)
        return self.shape.layers * sum(n * max(1, self.work.trained_tokens / limit) for n, limit in passes)

    def checkpoint_bytes(self) -> float:
        """Return the size of a checkpoint in bytes: fp32 weights and Adam's two moments.

        On a CPU the weights are there twice, once in shards and once as a model. With LoRA only adapters have moments.
        """
        copies = 1 + ("hf_model" in self.verl.actor_rollout_ref.actor.checkpoint.save_contents)
        adapters = self.shape.adapter_parameters(self.verl.actor_rollout_ref.model.lora_rank)
        trained = adapters or self.shape.parameters
        return FP32 * (copies * (self.shape.parameters + adapters) + 2 * trained)

    def export_bytes(self) -> float:
        """Return the size of the exported policy in bytes, in fp32."""
        return 4 * self.shape.parameters

    def check(self) -> None:
        """Raise :class:`PlanError` if a device, the disk or the examples do not suffice.

        Raises :class:`SettingsError` if there are too few examples for one step.
        """
        if self.unusable and self.recipe.data.bad_examples == "refuse":
            raise PlanError(f'{self.unusable[0]}. Mend them, or set data.bad_examples = "leave_out"')
        if all(Path(path).is_file() for path in self.recipe.data.files):
            require_enough(self.recipe, sum(map(count, self.recipe.data.files)))
        self.check_room()

    def check_room(self, gpu_memory: float | None = None) -> None:
        """Raise :class:`PlanError` if the disk or a device is too small.

        ``gpu_memory`` is the size of each GPU of the run in bytes. If it is ``None``, one of :data:`GPUS` has to do.
        """
        checkpoints = self.recipe.retained_checkpoints + 2  # the best one, and one that is being written
        needed = checkpoints * self.checkpoint_bytes() + self.export_bytes() + LOG_BYTES
        if needed > self.free_disk:
            sizes = (
                f"{checkpoints} checkpoints of {self.checkpoint_bytes() / 1e9:.1f} GB, "
                f"{self.export_bytes() / 1e9:.1f} GB of the policy at the end, {LOG_BYTES / 1e9:.1f} GB of logs and "
                f"traces, and {self.free_disk / 1e9:.1f} GB free"
            )
            fix = "free some, lower keep_checkpoints, or give another folder"
            raise PlanError(f"the disk is too small by {(needed - self.free_disk) / 1e9:.1f} GB: {sizes}; {fix}")
        if self.device == "cpu":
            self._check_memory()
            return
        sizes = [gpu_memory] if gpu_memory else [gpu.memory for gpu in GPUS.values()]
        if not any(map(self.gpu.fits, sizes)):
            training = max(sum(self.gpu.training_bytes().values()), sum(self.gpu.scoring_bytes().values())) / 1e9
            rollout = sum(self.gpu.rollout_bytes().values()) / 1e9
            resident = self.gpu.resident_bytes() / 1e9
            which = f"a GPU of {gpu_memory / 1e9:.0f} GB does not hold" if gpu_memory else "no GPU holds"
            needs = f"{training:.0f} GB of training, or {rollout:.0f} GB of sampling beside {resident:.0f}"
            advice = (
                "add workers, offload more, lower ppo_max_token_len_per_gpu and log_prob_max_token_len_per_gpu, or "
                "raise tensor parallelism"
            )
            raise PlanError(f"{which} {needs} that stay; {advice}")

    @property
    def cpu_fit(self) -> CpuFit:
        """How the run uses the memory of one node, without a GPU."""
        from omegaconf import OmegaConf

        return fit_of({name: OmegaConf.select(self.verl, name) for name in FIT_SETTINGS}, self.recipe.nodes)

    def cpu_bytes(self) -> dict[str, float]:
        """Return the bytes that one node without a GPU needs at the peak of an update, by use, in the worst case."""
        return memory_of(self.shape, self.cpu_fit, self.recipe.workers)

    def _check_memory(self) -> None:
        needed = self.cpu_bytes()
        total = sum(needed.values())
        if total > self.machine_bytes:
            largest = max(needed, key=lambda name: needed[name])
            sizes = f"{total / 1e9:.1f} GB, most of it {largest} ({needed[largest] / 1e9:.1f})"
            fix = f"lower verl.{MICRO_BATCH}, set verl.{CHECKPOINTING} = true, or train a smaller model"
            raise PlanError(
                f"this machine has {self.machine_bytes / 1e9:.1f} GB of memory and the run can need {sizes}; {fix}"
            )

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report that ``memagent train --dry-run`` prints."""
        recipe = self.recipe
        work = self.work
        yield f"model       {_in_letters(self.shape.parameters)} parameters on {self.workers} x {self.device}"
        yield (
            f"a step      {recipe.prompts} prompts x {recipe.rollouts} rollouts x {work.turns:.1f} turns = "
            f"{work.rows:,.0f} rows, {recipe.mini_batches} optimizer steps ({work.chunks_from})"
        )
        yield from stage_lines(recipe)
        yield from (f"data        {sentence}" for sentence in self.unusable)
        yield from (f"judge       {warning}" for warning in guessable(recipe))
        yield (
            f"tokens      at most {work.prompt_tokens / 1e6:,.2f}M of prompts and {work.reply_tokens / 1e6:,.2f}M "
            f"of replies a step; window {work.longest_row:,}"
        )
        yield "arithmetic  " + ", ".join(f"{name} {value:.1e}" for name, value in self.flops.items()) + " FLOP a step"
        if self.device == "cpu":
            yield self._cpu_line()
        else:
            yield from self._gpu_lines()
        size, policy, free = (n / 1e9 for n in (self.checkpoint_bytes(), self.export_bytes(), self.free_disk))
        needed = f"{recipe.retained_checkpoints + 2} checkpoints of {size:.2f} GB, the policy of {policy:.2f} GB"
        yield f"disk        {needed}, logs and traces of {LOG_BYTES / 1e9:.1f} GB; {free:,.0f} GB free here"

    def _cpu_line(self) -> str:
        needed = self.cpu_bytes()
        parts = ", ".join(f"{part} {size / 1e9:.1f}" for part, size in needed.items() if size >= 5e7)
        again = ", activations computed twice" if self.cpu_fit.checkpointing else ""
        sizes = f"{sum(needed.values()) / 1e9:.1f} of {self.machine_bytes / 1e9:.1f} GB"
        precision = " in bf16" if self.cpu_fit.half else ""
        micro_batch = f"micro-batches of {self.cpu_fit.micro_batch_tokens:,} tokens{precision}{again}"
        return f"memory      at most {sizes}, with {micro_batch}: {parts}"

    def _gpu_lines(self) -> Iterator[str]:
        phases = {
            "update": self.gpu.training_bytes(),
            "log-probs": self.gpu.scoring_bytes(),
            "sampling": self.gpu.rollout_bytes(),
        }
        for name, uses in phases.items():
            parts = ", ".join(f"{part} {size / 1e9:.1f}" for part, size in uses.items())
            beside = ""
            if name == "sampling":
                beside = f"; beside {self.gpu.resident_bytes() / 1e9:.1f} that stay"
            yield f"{name:<11} {sum(uses.values()) / 1e9:.1f} GB a GPU: {parts}{beside}"
        yield f"attention   {self.attention}"
        for name, gpu in GPUS.items():
            hours = self.hours(gpu)
            fits = "fits" if self.gpu.fits(gpu.memory) else "does not fit"
            yield f"{name:<15} {fits}; {_duration(hours)} a step, {_duration(hours * self.recipe.steps)} in all"
        yield (
            f"assumed     {UPDATE_SHARE:.0%} of peak in passes over rows, {PREFILL_SHARE:.0%} in prefill, "
            f"{DECODE_FLOP_PER_BYTE} FLOP per byte of the memory's bandwidth in decoding, "
            f"{1e3 * LAYER_SECONDS:.0f} ms for a layer and micro-batch, {TURN_SECONDS} s for a turn"
        )


def dry_run(recipe: Recipe, run_folder: str | Path, resume: bool = False) -> TrainingPlan:
    """Return the plan of a run, with every example of its files checked.

    This works on any machine and starts no process; the device ``auto`` is planned as CUDA. Call
    :meth:`TrainingPlan.check` to learn whether the run fits.
    """
    require_training()
    folder = RunFolder(absolute(run_folder))
    recipe = resolved(recipe, folder)
    check_leftovers(folder, resume)
    encoder = models_checked(recipe)
    plan = TrainingPlan.of(recipe, folder, "cpu" if recipe.model.device == "cpu" else "cuda", encoder)
    there = [path for path in (*recipe.data.files, *recipe.data.eval) if Path(path).is_file()]
    found = ((path, dict(bad_examples(path, encoder, recipe.needing_evidence(path)))) for path in there)
    return replace(plan, unusable=tuple(unusable(path, reasons) for path, reasons in found if reasons))


def _duration(hours: float) -> str:
    """Format a time in hours, or in seconds or minutes if it is short."""
    if hours < 1 / 60:
        return f"{hours * 3600:.1f} s"
    if hours < 2:
        return f"{hours * 60:.0f} min"
    return f"{hours:,.0f} h"


def _in_letters(count: int) -> str:
    """Format a number of parameters as is usual: 0.8M, 7.62B."""
    if count >= 1e9:
        return f"{count / 1e9:.2f}B"
    return f"{count / 1e6:.1f}M"
