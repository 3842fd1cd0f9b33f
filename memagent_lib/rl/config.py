"""What a training run is: a TOML file of a few small tables, checked before anything heavy starts.

Knows no verl: :mod:`memagent_lib.rl.verl.verl_settings` turns a :class:`Recipe` into verl's own settings.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from memagent_lib.prompts import Budget, Template
from memagent_lib.readers import reader_named
from memagent_lib.rl.advantages import Credit, Overlong
from memagent_lib.settings import SettingsError, key_value, parse, read_toml, require_at_least
from memagent_lib.trace import Kind

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The policy to train, as a folder or hub name, and where it trains: ``auto`` takes CUDA where there is one.

    With ``average_with``, the folder of a model of the same shape, usually the one before all reinforcement, the run
    leaves ``(1 - average_share)`` of the trained weights plus ``average_share`` of that model's, which brings back
    skills that training wore out (WiSE-FT, arXiv 2109.01903; on RL, WARP, arXiv 2406.16768). Rollouts, validation and
    checkpoints are of the trained weights alone.
    """

    path: str
    device: str = "auto"
    workers: int = 1
    nodes: int = 1
    average_with: str = ""
    average_share: float = 0.3

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"no device {self.device!r}; choose from {', '.join(DEVICES)}")
        require_at_least(self, 1, "workers", "nodes")
        if not 0 < self.average_share < 1:
            raise ValueError(f"average_share must be between 0 and 1, got {self.average_share}")

    def with_paths(self, place: Callable[[str], str]) -> ModelConfig:
        """The same with ``place`` applied to what may be a folder."""
        average_with = place(self.average_with) if self.average_with else ""
        return dataclasses.replace(self, path=place(self.path), average_with=average_with)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """So many ``steps`` on examples of ``files``; 0, which only the last stage may say, is the rest of the run."""

    files: tuple[str, ...]
    steps: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, 0, "steps")
        if not self.files or not all(self.files):
            raise ValueError("files must be a path or a list of paths, got none")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Parquet files of examples. ``eval_examples`` of ``eval`` are read greedily every ``eval_every`` steps.

    ``train`` is shuffled and used up before it is shuffled again. ``[[data.stages]]`` in its place, tables of ``files``
    and ``steps``, are a curriculum: short documents first where long ones are never answered, so that groups have
    spread. ``mix = "tasks"`` draws equally many examples of every task in the files of a stage, for tasks of which one
    would drown the others, and ``mix = "files"`` as many of every file, for a few examples that are to be met often
    (a file that is named twice has two shares); ``"examples"`` draws every example equally often, as the files have
    them.
    ``bad_examples``: what becomes of those that do not fit budget, template or judge; left out, they are counted.
    """

    train: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    mix: Literal["tasks", "files", "examples"] = "examples"
    eval: tuple[str, ...]
    eval_examples: int = -1
    bad_examples: Literal["refuse", "leave_out"] = "refuse"

    def __post_init__(self) -> None:
        if not self.eval or not all(self.eval):
            raise ValueError("eval must be a path or a list of paths, got none")
        if self.eval_examples < 1 and self.eval_examples != -1:
            raise ValueError(f"eval_examples must be at least 1, or -1 for all, got {self.eval_examples}")
        if not all(self.train) or bool(self.train) == bool(self.stages):
            got = "both" if self.stages and self.train else "an empty one" if self.train else "neither"
            raise ValueError(f"train must be a path or a list of paths, or [[data.stages]] be given; got {got}")
        if any(not stage.steps for stage in self.stages[:-1]):
            raise ValueError("every stage but the last needs steps")

    @property
    def files(self) -> tuple[str, ...]:
        """All training files, each once."""
        return tuple(dict.fromkeys(self.train + tuple(file for stage in self.stages for file in stage.files)))

    def with_paths(self, place: Callable[[str], str]) -> DataConfig:
        """The same with ``place`` applied to every path."""
        stages = tuple(dataclasses.replace(stage, files=tuple(map(place, stage.files))) for stage in self.stages)
        train, tests = tuple(map(place, self.train)), tuple(map(place, self.eval))
        return dataclasses.replace(self, train=train, stages=stages, eval=tests)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingConfig:
    """Which reader is trained, with which words, and how much it may read and remember at once."""

    reader: str = "overwrite"
    template: str = "chunk_first"
    chunk_tokens: int = 5000
    memory_tokens: int = 1024
    answer_tokens: int = 1024
    question_tokens: int = 1024

    def __post_init__(self) -> None:
        reader_named(self.reader)
        Template.load(self.template)

    @property
    def shows(self) -> Mapping[Kind, int]:
        """What the reader's prompts show: their sizes follow from it."""
        return reader_named(self.reader).prompts

    @property
    def budget(self) -> Budget:
        return Budget(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Budget)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Multi-conversation policy optimisation. Defaults are the published objective (arXiv 2507.02259, equations 4 and
    5).

    With ``r`` the ratio of new to old probability of token ``t`` of turn ``j`` of rollout ``i``, ``A`` from
    :func:`~memagent_lib.rl.advantages.row_advantages` (``advantage``, ``credit``) and ``N`` the number of tokens of all
    turns of all rollouts of a mini-batch, over all workers::

        J = 1/N sum_ijt  w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - kl_loss k3(ijt) + entropy_bonus H(ijt)
        k3 = q - log q - 1  with  q = p_reference / p_new;  for A < 0 the first term is at least 3 A (dual clip)
        w = min(p_actor / p_sampler, importance_cap), of the policies before the update

    *Aggregation.* Every token weighs alike (DAPO, arXiv 2503.14476, equation 12), so long replies weigh more; it has no
    key. GRPO as published first averages each reply: ``actor_rollout_ref.actor.loss_agg_mode = "seq-mean-token-mean"``
    in ``[verl]``, where rows of padding count as replies; for replies whose length should not matter.

    *Batch.* ``mini_batches`` optimizer steps per batch of ``prompts_per_step`` x ``rollouts``. ``warmup_steps`` raise
    the rate in a line from ``lr / warmup_steps`` to ``lr``. It then falls along a cosine,
    ``lr (f + (1 - f) (1 + cos(pi x)) / 2)`` with ``f = final_lr`` and ``x`` the share of the other steps that are done,
    this one included; ``final_lr = 1`` stays at ``lr``, as published. Lower it for a run with a planned end, whose last
    steps should not undo each other.

    *Advantage.* ``mean``: ``A_i = R_i - mean(R)``, as published; for questions that should count by how much their
    rollouts differ. ``deviation``: divided by the group's deviation, GRPO as published; for data where those that are
    nearly always or never answered should weigh as much as others.

    *Staying close.* ``kl_loss`` holds the policy to the one it began as; for models whose other abilities must stay, at
    the price of a forward pass. ``entropy_bonus`` is for replies that become all alike before they are right.

    *Evidence.* ``evidence_reward`` ``e`` adds ``e S_ij`` (:func:`~memagent_lib.rl.advantages.step_advantages`) to the
    advantage of turn ``j``: what it noted and kept of the evidence, against the same turn of the other rollouts. For
    documents whose question is never answered at first; the memory is then trained towards the evidence, not the
    answer. Without evidence in the examples, the accepted answers count as it.

    *Clipping.* DAPO raises ``clip_high`` to 0.28, so that rare tokens may become likelier; for entropy that collapses.
    A lower ``clip_low`` bounds how fast tokens are given up; for replies that lose their form.

    *Groups without spread.* ``skip_equal_groups`` leaves them out of log-probabilities and update: their advantages are
    0, and ``N`` counts the rest only; less work wherever there is no KL to keep. ``dynamic_sampling`` replaces them by
    as many fresh prompts, round by round, until the batch is full (DAPO, equation 11) or has taken 10 rounds; for data
    that is mostly too easy or too hard, at the price of more rollouts. The reward curve is then of the prompts that
    stay.

    *Replies cut at their limit.* ``overlong``: see :class:`~memagent_lib.rl.advantages.Overlong`; ``penalty`` begins in
    the last ``overlong_buffer`` of a limit and counts ``overlong_weight``.

    *Old policy.* ``reuse_logprobs`` takes the sampler's log-probabilities as those of the old policy, which saves a
    forward pass and is right where both agree: in fp32. Where they are computed, ``w`` corrects for the difference of
    bf16 engines (truncated importance sampling); ``importance_cap = 0`` is ``w = 1``, as published.

    *Shared beginnings.* ``share_prefixes`` computes once what the rollouts of a group have in common, with PyTorch's
    attention in place of flash-attention, which takes no tree's mask; for templates that show the chunk before the
    memory, whose rollouts share most of a prompt. The gradients are the same. On a CPU it is always so.

    *Safety.* A rollout that fails twice takes its prompt out of the step. More than ``failed_share`` of a step's
    prompts, rounded up, stop the run, and so do ``hang_minutes`` in which nothing was finished. The newest
    ``keep_checkpoints`` are kept, and of those that were validated the best.
    """

    steps: int
    prompts_per_step: int = 128
    rollouts: int = 16
    mini_batches: int = 1
    lr: float = 1e-6
    warmup_steps: int = 0
    final_lr: float = 1.0
    weight_decay: float = 0.01
    temperature: float = 1.0
    advantage: Literal["mean", "deviation"] = "mean"
    credit: Credit = Credit.SHARED
    evidence_reward: float = 0.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_loss: float = 1e-3
    entropy_bonus: float = 0.0
    skip_equal_groups: bool = False
    dynamic_sampling: bool = False
    overlong: Overlong = Overlong.KEEP
    overlong_buffer: float = 0.25
    overlong_weight: float = 0.5
    reuse_logprobs: bool = False
    importance_cap: float = 2.0
    share_prefixes: bool = False
    eval_every: int = 0
    eval_first: bool = True
    save_every: int = 0
    keep_checkpoints: int = 2
    failed_share: float = 0.02
    traces_per_step: int = 2
    hang_minutes: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, 1, "steps", "prompts_per_step", "mini_batches", "keep_checkpoints")
        require_at_least(
            self, 0, "lr", "kl_loss", "eval_every", "save_every", "traces_per_step", "warmup_steps", "seed"
        )
        require_at_least(self, 0, "importance_cap", "overlong_weight", "evidence_reward", "clip_low", "clip_high")
        require_at_least(self, 0, "failed_share", "weight_decay", "entropy_bonus")
        if not self.hang_minutes > 0:
            raise ValueError(f"hang_minutes must be above 0, got {self.hang_minutes}")
        if self.rollouts < 2:
            reason = "a rollout is compared with the others of its group"
            raise ValueError(f"rollouts must be at least 2, got {self.rollouts}: {reason}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be above 0, got {self.temperature}: equal rollouts teach nothing")
        for name in ("final_lr", "overlong_buffer"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, got {value}")
        if self.failed_share > 1:
            raise ValueError(f"failed_share must be at most 1, a share of the prompts, got {self.failed_share}")
        if self.mini_batches > (rows := self.prompts_per_step * self.rollouts):  # of rows; the others are padding
            raise ValueError(
                f"mini_batches must be at most prompts_per_step x rollouts = {rows}, got {self.mini_batches}"
            )
        if self.reuse_logprobs and self.mini_batches > 1:
            reason = "only then is nothing updated between sampling and the update"
            raise ValueError(f"reuse_logprobs needs mini_batches = 1: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Which Ray a run uses: ``local`` starts one of its own and joins no other, ``auto`` or ``HOST:PORT`` joins."""

    address: str = "local"

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if self.address not in ("local", "auto") and not (host and port.isdigit()):
            raise ValueError(
                f'address must be "local", "auto" or an address such as 10.0.0.1:6379, got {self.address!r}'
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingConfig:
    """The MLflow store and experiment; an empty ``uri`` is a SQLite file beside the run's folder. ``run_id``: a run
    that there is already, a sweep's, to log to.
    """

    uri: str = ""
    experiment: str = "memagent"
    run_name: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole run. ``verl`` holds raw settings of verl's own, by dotted name; they are applied last and win."""

    model: ModelConfig
    data: DataConfig
    reading: ReadingConfig
    train: TrainingConfig
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    verl: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        planned = sum(stage.steps for stage in self.data.stages)
        if self.data.stages and self.data.stages[-1].steps and planned < self.train.steps:
            advice = "leave steps out of the last stage, and it lasts to the end"
            raise ValueError(f"train.steps is {self.train.steps} and the stages have {planned} in all; {advice}")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that the run reaches, each with its number of steps."""
        left, reached = self.train.steps, []
        for stage in self.data.stages or (Stage(files=self.data.train),):
            steps = min(stage.steps or left, left)
            if steps:
                reached.append(dataclasses.replace(stage, steps=steps))
            left -= steps
        return tuple(reached)

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
        """Read a TOML file; each override is ``table.key=value`` with a TOML value, or a bare word for a string.

        Paths in the file are relative to the working directory.
        """
        tables = read_toml(path, "recipe")
        for override in overrides:
            _apply(tables, override)
        return cls.from_tables(tables)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Recipe:
        """Build from nested dicts, as a TOML file holds them; :class:`SettingsError` names what is wrong in them."""
        tables = dict(tables)
        if isinstance(data := tables.get("data"), Mapping):
            data = _lists(data, "train", "eval")
            if isinstance(stages := data.get("stages"), list):
                data["stages"] = [_lists(stage, "files") if isinstance(stage, Mapping) else stage for stage in stages]
            tables["data"] = data
        if isinstance(verl := tables.get("verl"), Mapping):
            tables["verl"] = flatten(verl)
        return parse(cls, tables, "the recipe")

    def to_tables(self) -> dict[str, Any]:
        """Nested dicts of plain JSON types; :meth:`from_tables` gives the recipe back."""
        return json.loads(json.dumps(dataclasses.asdict(self) | {"verl": dict(self.verl)}))


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}, "c.d": 2}`` as ``{"a.b": 1, "c.d": 2}``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return flat


def _lists(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """``table`` with a list of one in place of a string, where a list of paths is meant."""
    return {key: [value] if key in names and isinstance(value, str) else value for key, value in table.items()}


def _apply(tables: dict[str, Any], override: str) -> None:
    name, value = key_value(override)
    table, _, key = name.partition(".")
    if not key:
        raise SettingsError(f"an override is table.key=value, got {override!r}")
    if table == "verl":
        tables["verl"] = flatten(tables.get("verl", {})) | {key: value}
    else:
        tables.setdefault(table, {})[key] = value
