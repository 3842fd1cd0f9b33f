"""Plan a training run before a GPU is reserved: its tokens, arithmetic, hours and bytes, and whether they fit.

The numbers are upper bounds from budgets and model shapes, at the utilisations below. They are for refusing runs that
cannot fit and for comparing recipes, not for predicting speed. verl's own FLOP counter measures finished updates only;
a plan also needs prefill and decoding. Planning composes verl's configuration but starts no process.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.agent import run_sync
from memagent_lib.backends import ModelShape, Scripted, shape_of
from memagent_lib.data import count, stream, stream_records
from memagent_lib.driver import drive
from memagent_lib.errors import UserError
from memagent_lib.prompts import Encoder
from memagent_lib.readers import reader_named
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.cpu import CHECKPOINTING, MICRO_BATCH, CpuFit, machine_bytes, memory_of
from memagent_lib.rl.curriculum import numbered, shares_of
from memagent_lib.rl.run.checks import require_training, window_checked
from memagent_lib.rl.run.data_check import bad_examples, guessable, require_enough, unusable
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind

ASSUMED_CHUNKS = 7  # of the published 28K-token documents, where the data is not on this machine
SAMPLED_EXAMPLES = 64
# Shares of a GPU's dense bf16 peak.
UPDATE_SHARE = 0.35
PREFILL_SHARE = 0.4
DECODE_SHARE = 0.08
SAFETY = 0.95


class PlanError(UserError, ValueError):
    """The planned run does not fit. The message has the numbers."""


class Gpu(NamedTuple):
    """A GPU's memory in bytes, and its dense bf16 FLOP/s according to its data sheet."""

    memory: float
    flops: float


GPUS = {
    "RTX 4090 24 GB": Gpu(24e9, 165e12),
    "A100 80 GB": Gpu(80e9, 312e12),
    "H100 80 GB": Gpu(80e9, 989e12),
    "H200 141 GB": Gpu(141e9, 989e12),
}


@dataclass(frozen=True)
class Work:
    """The work of one step in the worst case: every memory is full and every reply reaches its limit."""

    rollouts: int
    turns: float
    prompt_tokens: float
    reply_tokens: float
    reply_share: float
    """The largest share of reply tokens in any kind of row, because a micro-batch may consist of that kind alone."""
    longest_row: int
    chunks_from: str

    @property
    def rows(self) -> float:
        return self.rollouts * self.turns

    @property
    def trained_tokens(self) -> float:
        return self.prompt_tokens + self.reply_tokens

    @classmethod
    def of(cls, recipe: Recipe, encoder: Encoder) -> Work:
        chunks, source = chunks_per_document(recipe, encoder)
        rollouts = recipe.prompts * recipe.rollouts
        turns = turns_by_kind(recipe, encoder, chunks)
        prompts = {kind: encoder.prompt_limit(kind, memories) for kind, memories in recipe.reading.shows.items()}
        replies = {kind: encoder.reply_limit(kind) for kind in prompts}
        return cls(
            rollouts=rollouts,
            turns=sum(turns.values()),
            prompt_tokens=rollouts * sum(n * prompts[kind] for kind, n in turns.items()),
            reply_tokens=rollouts * sum(n * replies[kind] for kind, n in turns.items()),
            reply_share=max(replies[kind] / (prompts[kind] + replies[kind]) for kind in turns),
            longest_row=encoder.window,
            chunks_from=source,
        )


def turns_by_kind(recipe: Recipe, encoder: Encoder, chunks: float) -> dict[Kind, float]:
    """Return how many turns of each kind the recipe's reader takes for a document of ``chunks`` chunks.

    The turns are counted by letting the reader read empty chunks with a scripted model.
    """
    whole = max(1, round(chunks))
    session = reader_named(recipe.reading.reader)("", [Chunk(i, "", i, i, 0) for i in range(whole)])
    trace = run_sync(drive(session, encoder, Scripted(lambda prompt: "-")))
    turns = Counter(turn.prompt.kind for turn in trace.turns)
    return {kind: n * chunks / whole if kind.reads else n for kind, n in turns.items()}


def chunks_per_document(recipe: Recipe, encoder: Encoder) -> tuple[float, str]:
    """Return the mean number of chunks per document over a run's steps, and a note on the source of the number.

    The first examples of each file are counted. If a file is missing, the published number is assumed.
    """
    missing = [path for path in recipe.data.files if not Path(path).is_file()]
    if missing:
        return ASSUMED_CHUNKS, f"assumed: no data at {missing[0]}"
    size = recipe.reading.chunk_tokens
    weighted = 0.0
    seen = 0
    for stage in recipe.stages:
        each = max(1, SAMPLED_EXAMPLES // len(stage.files))
        documents = [example.document for path in stage.files for example in islice(stream(path), each)]
        counts = [-(-len(encoder.tokenizer.encode(document)) // size) for document in documents]
        weighted += stage.steps * sum(counts) / len(counts)
        seen += len(counts)
    return weighted / recipe.steps, f"from the first {seen} examples"


def stage_lines(recipe: Recipe) -> Iterator[str]:
    """Yield a line per stage: its steps, its files, and, if the files exist here, how often each example is drawn.

    A last line counts the stages that the run does not reach, if there are any.
    """
    first = 1
    for stage in recipe.stages:
        prompts = stage.steps * recipe.prompts
        last = first + stage.steps - 1
        where = f"steps {first:,} to {last:,}: {prompts:,} prompts of {', '.join(map(_short, stage.files))}"
        if all(Path(path).is_file() for path in stage.files):
            uses = uses_of(stage.files, recipe.data.mix, prompts)
            least = f"{min(uses):.1f}"
            most = f"{max(uses):.1f}"
            often = least if least == most else f"{least} to {most}"
            where += f", {len(uses):,} examples, {often} each"
        yield f"stage       {where}"
        first = last + 1
    unreached = recipe.data.stages[len(recipe.stages) :]
    if unreached:
        yield f"stage       {len(unreached)} not reached: the run has {recipe.steps:,} steps"


def uses_of(files: Sequence[str], mix: str, prompts: int) -> list[float]:
    """Return how often each example of ``files`` is drawn on average. A file listed twice counts twice."""
    counts = {file: count(file) for file in files}
    rows = numbered(counts, (record["data_source"] for file in counts for record in stream_records(file)))
    shares = shares_of([rows[file] for file in files], mix)
    uses: dict[int, float] = defaultdict(float)
    for share in shares:
        for row in share:
            uses[row] += prompts / len(shares) / len(share)
    return list(uses.values())


def _short(path: str) -> str:
    return "/".join(Path(path).parts[-2:])


@dataclass(frozen=True)
class TrainingPlan:
    """The needs of a recipe. :meth:`lines` reports them; :meth:`check` raises an error if they cannot be met."""

    recipe: Recipe
    device: str
    shape: ModelShape
    work: Work
    verl: Any
    free_disk: float
    machine_bytes: float
    unusable: tuple[str, ...] = ()
    """One sentence for each file on this machine with examples that cannot be trained on."""

    @classmethod
    def of(cls, recipe: Recipe, folder: RunFolder, device: str, verl: Any, encoder: Encoder) -> TrainingPlan:
        shape = shape_of(recipe.model.path)
        existing = next(p for p in (folder.path, *folder.path.parents) if p.exists())
        there = [path for path in (*recipe.data.files, *recipe.data.eval) if Path(path).is_file()]
        found = ((path, dict(bad_examples(path, encoder))) for path in there)
        bad = tuple(unusable(path, reasons) for path, reasons in found if reasons)
        return cls(
            recipe,
            device,
            shape,
            Work.of(recipe, encoder),
            verl,
            shutil.disk_usage(existing).free,
            machine_bytes(),
            bad,
        )

    @property
    def workers(self) -> int:
        return self.recipe.nodes * self.recipe.workers

    @property
    def flops(self) -> dict[str, float]:
        """The maximum FLOP of each part of a step: no prefix is shared, and the update recomputes its forward pass."""
        actor = self.verl.actor_rollout_ref.actor
        rollout = self.verl.actor_rollout_ref.rollout
        once = self._pass_flops(rollout.log_prob_max_token_len_per_gpu)
        parts = {
            "prefill": self.shape.forward_flops(self.work.prompt_tokens, self.work.longest_row),
            "decode": self.shape.forward_flops(self.work.reply_tokens, self.work.longest_row),
            "old log-probabilities": 0.0 if self.verl.algorithm.rollout_correction.bypass_mode else once,
            "reference": once if actor.use_kl_loss else 0.0,
            "update": 4
            * self._pass_flops(
                actor.ppo_max_token_len_per_gpu
            ),  # forward, the same recomputed, and a backward pass of twice the cost
        }
        return {name: value for name, value in parts.items() if value}

    @property
    def attention(self) -> str:
        """The implementation of attention in passes over rows, by transformers' name."""
        return self.verl.actor_rollout_ref.model.override_config.get("attn_implementation", "flash_attention_2")

    def _pass_flops(self, micro_batch: float) -> float:
        """Return the FLOPs of a forward pass over a step's rows in micro-batches of ``micro_batch`` tokens."""
        tokens = self.work.trained_tokens
        if self.attention == "sdpa":  # a micro-batch is one packed row, whose mask hides most of the pairs it computes
            return self.shape.forward_flops(tokens, min(micro_batch, tokens), dense=True)
        return self.shape.forward_flops(tokens, self.work.longest_row)

    def hours(self, gpu: Gpu) -> float:
        """Return how many hours one step takes with every worker on ``gpu``."""
        share = {"prefill": PREFILL_SHARE, "decode": DECODE_SHARE}
        seconds = sum(value / (gpu.flops * share.get(name, UPDATE_SHARE)) for name, value in self.flops.items())
        return seconds / self.workers / 3600

    def training_bytes(self) -> dict[str, float]:
        """Return how many bytes one GPU needs during the update, by use.

        verl's ``param_offload`` and ``optimizer_offload`` bring weights and moments back for the update, so they count.
        With ``offload_policy`` they stay on the host and are loaded layer by layer.
        """
        actor = self.verl.actor_rollout_ref.actor
        parameters = self.shape.parameters
        tokens = min(actor.ppo_max_token_len_per_gpu, self.work.trained_tokens)
        whole_rows = not self.verl.actor_rollout_ref.model.use_remove_padding  # a tree may be mostly replies
        state = dict.fromkeys(self._state, 0.0) if actor.fsdp_config.offload_policy else self._state
        scored = tokens * (1 if whole_rows else self.work.reply_share)
        # A mask of all pairs, in bf16 and as the booleans that it is made from.
        mask = {"attention mask": 3 * tokens**2} if self.attention == "sdpa" else {}
        return (
            state
            | mask
            | {
                "activations": tokens * self.shape.hidden * self.shape.layers * 2,
                # In bf16, then in fp32: a copy, its softmax, and the gradient of the backward pass.
                "logits": scored * self.shape.vocabulary * (2 + 4 + 4 + 4),
                "one layer gathered": 2 * 2 * parameters / self.shape.layers,
            }
        )

    @property
    def _state(self) -> dict[str, float]:
        """Each GPU's bytes of weights, gradients and moments."""
        actor = self.verl.actor_rollout_ref.actor
        parameters = self.shape.parameters
        shards = actor.fsdp_config.fsdp_size if actor.fsdp_config.fsdp_size > 0 else self.workers
        if self.verl.actor_rollout_ref.model.lora_rank > 0:
            # verl loads the frozen base in fp32, unless the engine's model_dtype is another.
            size = 2 if actor.fsdp_config.get("model_dtype") in ("bf16", "bfloat16", "fp16", "float16") else 4
            return {"weights": size * parameters / shards, "gradients": 0, "optimizer": 0}
        moments = 2 if "8bit" in actor.optim.optimizer else 8  # bytes of both moments per parameter
        return {name: n * parameters / shards for name, n in (("weights", 4), ("gradients", 4), ("optimizer", moments))}

    def rollout_bytes(self) -> dict[str, float]:
        """Return the least memory that vLLM needs on one GPU, in bytes by use: weights and one row's cache."""
        parallel = self.verl.actor_rollout_ref.rollout.tensor_model_parallel_size
        weights = 2 * self.shape.parameters / parallel
        return {"weights": weights, "one row's cache": self.work.longest_row * self.shape.kv_bytes / parallel}

    def resident_bytes(self) -> float:
        """Return how many bytes of weights and moments stay on one GPU while vLLM samples there."""
        where = self.verl.actor_rollout_ref.actor.fsdp_config
        resident = 0.0
        if not (where.param_offload or where.offload_policy):
            resident += self._state["weights"]
        if not (where.optimizer_offload or where.offload_policy):
            resident += self._state["optimizer"]
        return resident

    def checkpoint_bytes(self) -> float:
        """Return the size of a checkpoint in bytes: fp32 weights and Adam's two moments.

        With LoRA the moments are left out, because those of adapters are small.
        """
        lora = self.verl.actor_rollout_ref.model.lora_rank > 0
        return (4 if lora else 12) * self.shape.parameters

    def export_bytes(self) -> float:
        """Return the size of the exported policy in bytes, in fp32."""
        return 4 * self.shape.parameters

    def fits(self, gpu: Gpu) -> bool:
        sampling = self.verl.actor_rollout_ref.rollout.gpu_memory_utilization * gpu.memory
        return (
            sum(self.training_bytes().values()) <= SAFETY * gpu.memory
            and sum(self.rollout_bytes().values()) <= sampling
            and sampling + self.resident_bytes() <= SAFETY * gpu.memory
        )

    def check(self) -> None:
        """Raise :class:`PlanError` if a device, the disk or the examples do not suffice.

        Raises :class:`SettingsError` if there are too few examples for one step.
        """
        if self.unusable and self.recipe.data.bad_examples == "refuse":
            raise PlanError(f'{self.unusable[0]}. Mend them, or set data.bad_examples = "leave_out"')
        if all(Path(path).is_file() for path in self.recipe.data.files):
            require_enough(self.recipe, sum(map(count, self.recipe.data.files)))
        checkpoints = self.recipe.retained_checkpoints + 2  # the best one, and one that is being written
        needed = checkpoints * self.checkpoint_bytes() + self.export_bytes()
        if needed > self.free_disk:
            sizes = (
                f"{checkpoints} checkpoints of {self.checkpoint_bytes() / 1e9:.0f} GB, "
                f"{self.export_bytes() / 1e9:.0f} GB of the policy at the end, and {self.free_disk / 1e9:.0f} GB free"
            )
            raise PlanError(f"the disk is too small by {(needed - self.free_disk) / 1e9:.0f} GB: {sizes}")
        if self.device == "cpu":
            self._check_memory()
        elif not any(map(self.fits, GPUS.values())):
            training = sum(self.training_bytes().values()) / 1e9
            rollout = sum(self.rollout_bytes().values()) / 1e9
            resident = self.resident_bytes() / 1e9
            sizes = f"{training:.0f} GB of training, or {rollout:.0f} GB of sampling beside {resident:.0f}"
            advice = "add workers, offload more, lower ppo_max_token_len_per_gpu or raise tensor parallelism"
            raise PlanError(f"no GPU holds {sizes} that stay; {advice}")

    @property
    def cpu_fit(self) -> CpuFit:
        """How the run uses the memory of one node, without a GPU."""
        verl = self.verl.actor_rollout_ref
        return CpuFit(
            micro_batch_tokens=verl.actor.ppo_max_token_len_per_gpu,
            servers=max(1, verl.rollout.agent.num_workers // self.recipe.nodes),
            checkpointing=verl.model.enable_gradient_checkpointing,
        )

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
        yield f"disk        {needed}; {free:,.0f} GB free here"

    def _cpu_line(self) -> str:
        needed = self.cpu_bytes()
        parts = ", ".join(f"{part} {size / 1e9:.1f}" for part, size in needed.items() if size >= 5e7)
        again = ", activations computed twice" if self.cpu_fit.checkpointing else ""
        sizes = f"{sum(needed.values()) / 1e9:.1f} of {self.machine_bytes / 1e9:.1f} GB"
        micro_batch = f"micro-batches of {self.cpu_fit.micro_batch_tokens:,} tokens{again}"
        return f"memory      at most {sizes}, with {micro_batch}: {parts}"

    def _gpu_lines(self) -> Iterator[str]:
        for name, uses in (("update", self.training_bytes()), ("sampling", self.rollout_bytes())):
            parts = ", ".join(f"{part} {size / 1e9:.1f}" for part, size in uses.items())
            beside = ""
            if name == "sampling":
                beside = f"; beside {self.resident_bytes() / 1e9:.1f} that stay"
            yield f"{name:<11} {sum(uses.values()) / 1e9:.1f} GB a GPU: {parts}{beside}"
        yield f"attention   {self.attention}"
        for name, gpu in GPUS.items():
            hours = self.hours(gpu)
            fits = "fits" if self.fits(gpu) else "does not fit"
            yield f"{name:<15} {fits}; {hours:.2f} h a step, {hours * self.recipe.steps:,.0f} h in all"
        yield (
            f"assumed     {UPDATE_SHARE:.0%} of peak in passes over rows, {PREFILL_SHARE:.0%} in prefill, "
            f"{DECODE_SHARE:.0%} in decoding"
        )


def dry_run(recipe: Recipe, run_folder: str | Path) -> TrainingPlan:
    """Compose and validate verl's whole configuration for a recipe, and return the plan of the run.

    This works on any machine and starts no process; the device ``auto`` is planned as CUDA. Call
    :meth:`TrainingPlan.check` to learn whether the run fits.
    """
    require_training()
    from verl.utils.config import validate_config

    from memagent_lib.rl.cpu import answer_for_vllm
    from memagent_lib.rl.run.launcher import resolved
    from memagent_lib.rl.verl.verl_settings import compose, verl_settings

    folder = RunFolder(Path(run_folder).absolute())
    recipe = resolved(recipe, folder)
    encoder = window_checked(recipe)
    device = "cpu" if recipe.model.device == "cpu" else "cuda"
    answer_for_vllm()  # verl's validation looks up the version of "vllm", and the CPU build has another name
    verl = compose(verl_settings(recipe, folder, device))
    validate_config(config=verl, use_reference_policy=verl.actor_rollout_ref.actor.use_kl_loss, use_critic=False)
    return TrainingPlan.of(recipe, folder, device, verl, encoder)


def _in_letters(count: int) -> str:
    """Format a number of parameters as is usual: 0.8M, 7.62B."""
    if count >= 1e9:
        return f"{count / 1e9:.2f}B"
    return f"{count / 1e6:.1f}M"
