"""A training run as a recipe: a TOML file of a few small tables, checked before anything heavy starts.

A recipe names what verl has no word for: reader, budgets, curriculum, credit, and when to give up. Whatever verl has a
word for stands in ``[verl]`` under verl's own dotted name. Knows no verl: ``rl/verl/verl_settings.py`` turns a
:class:`Recipe` into verl's configuration.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from memagent_lib.prompts import Budget, Template
from memagent_lib.readers import reader_named
from memagent_lib.rl.advantages import Credit, Overlong
from memagent_lib.rl.verl import verl_keys
from memagent_lib.settings import SettingsError, key_value, parse, read_toml, require_at_least
from memagent_lib.trace import Kind

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The policy to train, as a folder or hub name, and the device: ``auto`` takes CUDA where there is one.

    With ``average_with``, the folder of a model of the same shape, the exported policy is ``(1 - average_share)`` of
    the trained weights plus ``average_share`` of that model's. Averaging with the model from before training brings
    back skills that training wore out (WiSE-FT, arXiv 2109.01903; on RL, WARP, arXiv 2406.16768). Rollouts, validation
    and checkpoints use the trained weights alone.
    """

    path: str
    device: str = "auto"
    average_with: str = ""
    average_share: float = 0.3

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"no device {self.device!r}; choose from {', '.join(DEVICES)}")
        if not 0 < self.average_share < 1:
            raise ValueError(f"average_share must be between 0 and 1, got {self.average_share}")

    def with_paths(self, locate: Callable[[str], str]) -> ModelConfig:
        """Return the same model with ``locate`` applied to everything that may be a folder."""
        average_with = locate(self.average_with) if self.average_with else ""
        return dataclasses.replace(self, path=locate(self.path), average_with=average_with)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of the curriculum: ``steps`` on the examples of ``files``. Only the last stage may have 0, which lasts to
    the end of the run.
    """

    files: tuple[str, ...]
    steps: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, 0, "steps")
        if not self.files or not all(self.files):
            raise ValueError("files must be a path or a list of paths, got none")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Parquet files of examples to train on (``train`` or ``stages``) and to validate on (``eval``, read greedily).

    ``train`` is shuffled and used up before it is shuffled again. ``[[data.stages]]``, tables of ``files`` and
    ``steps``, are a curriculum instead: short documents first where long ones are never answered, so that groups have
    spread.

    ``mix`` says how a stage's examples are drawn: ``examples`` draws each equally often; ``tasks`` draws equally many
    of every task, so that no task drowns the others; ``files`` draws equally many of every file, so that a few examples
    are seen often (a file listed twice has two shares).

    ``bad_examples`` says what happens to examples that do not fit budget, template or judge: ``refuse`` stops the run
    before it starts, ``leave_out`` leaves them out and counts them.
    """

    train: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    mix: Literal["tasks", "files", "examples"] = "examples"
    eval: tuple[str, ...]
    bad_examples: Literal["refuse", "leave_out"] = "refuse"

    def __post_init__(self) -> None:
        if not self.eval or not all(self.eval):
            raise ValueError("eval must be a path or a list of paths, got none")
        if self.train and self.stages:
            raise ValueError("train and [[data.stages]] are both set; choose one")
        if not all(self.train) or not (self.train or self.stages):
            found = "an empty path" if self.train else "nothing"
            raise ValueError(f"train must be a path or a list of paths, or [[data.stages]] must be set; got {found}")
        if any(not stage.steps for stage in self.stages[:-1]):
            raise ValueError("every stage but the last needs steps")

    @property
    def files(self) -> tuple[str, ...]:
        """All training files, each once."""
        of_stages = tuple(file for stage in self.stages for file in stage.files)
        return tuple(dict.fromkeys(self.train + of_stages))

    def with_paths(self, locate: Callable[[str], str]) -> DataConfig:
        """Return the same data with ``locate`` applied to every path."""
        stages = tuple(dataclasses.replace(stage, files=tuple(map(locate, stage.files))) for stage in self.stages)
        train = tuple(map(locate, self.train))
        held_out = tuple(map(locate, self.eval))
        return dataclasses.replace(self, train=train, stages=stages, eval=held_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingConfig:
    """The reader that is trained, its prompt template, and how much it may read and remember at once."""

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
        """How many memories each kind of the reader's prompts shows; prompt sizes follow from it."""
        return reader_named(self.reader).prompts

    @property
    def budget(self) -> Budget:
        return Budget(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Budget)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """What multi-conversation training adds to verl's objective, which :mod:`memagent_lib.rl` states whole.

    *Credit.* ``credit``: see :class:`~memagent_lib.rl.advantages.Credit`. ``evidence_reward`` ``e`` adds ``e S_ij``
    (:func:`~memagent_lib.rl.advantages.step_advantages`) to the advantage of turn ``j``: how well it noted and retained
    the evidence, compared with the same turn of the other rollouts. For documents whose question is never answered at
    first. The memory is then trained towards the evidence, not the answer. Examples without evidence use their accepted
    answers as evidence.

    *Groups without spread.* ``skip_equal_groups`` leaves them out of log-probabilities and update, because their
    advantages are 0. ``dynamic_sampling`` replaces them by fresh prompts, round by round, until the batch is full
    (DAPO, arXiv 2503.14476, equation 11), for at most 10 rounds; for data that is mostly too easy or too hard, at the
    price of more rollouts. The reward curve then shows only the prompts that remain.

    *Overlong replies.* ``overlong``: see :class:`~memagent_lib.rl.advantages.Overlong`. ``penalty`` starts in the last
    ``overlong_buffer`` of a limit and has the weight ``overlong_weight``.

    *Safety.* A rollout that fails twice removes its prompt from the step. More than ``failed_share`` of a step's
    prompts, rounded up, stop the run; so do ``hang_minutes`` without a finished turn. The newest ``keep_checkpoints``
    are retained, and the best of those that were validated, which verl's own count would delete. ``traces_per_step``
    rollouts a step are saved as traces.

    ``seed`` fixes the order of examples and every sampled reply.
    """

    credit: Credit = Credit.SHARED
    evidence_reward: float = 0.0
    skip_equal_groups: bool = False
    dynamic_sampling: bool = False
    overlong: Overlong = Overlong.KEEP
    overlong_buffer: float = 0.25
    overlong_weight: float = 0.5
    failed_share: float = 0.02
    hang_minutes: float = 60.0
    keep_checkpoints: int = 2
    traces_per_step: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, 1, "keep_checkpoints")
        require_at_least(self, 0, "seed", "evidence_reward", "overlong_weight", "failed_share", "traces_per_step")
        if not self.hang_minutes > 0:
            raise ValueError(f"hang_minutes must be above 0, got {self.hang_minutes}")
        if not 0 < self.overlong_buffer <= 1:
            raise ValueError(f"overlong_buffer must be above 0 and at most 1, got {self.overlong_buffer}")
        if self.failed_share > 1:
            raise ValueError(f"failed_share must be at most 1, a share of the prompts, got {self.failed_share}")


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
    """The MLflow store, experiment and run. An empty ``uri`` is a SQLite file beside the run's folder.

    ``run_id`` names an existing MLflow run to log to, such as a sweep's.
    """

    uri: str = ""
    experiment: str = "memagent"
    run_name: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole training run. ``verl`` holds settings of verl by dotted name, which override everything else.

    Published values fill in what ``verl`` leaves out (:data:`~memagent_lib.rl.verl.verl_keys.DEFAULTS`); a name that
    starts with ``+`` adds a setting that verl's configuration does not have.
    """

    model: ModelConfig
    data: DataConfig
    reading: ReadingConfig
    train: TrainingConfig = field(default_factory=TrainingConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    verl: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "verl", verl_keys.completed(self.verl))
        planned = sum(stage.steps for stage in self.data.stages)
        if self.data.stages and self.data.stages[-1].steps and planned < self.steps:
            advice = "leave steps out of the last stage, and it lasts to the end"
            raise ValueError(
                f"verl.{verl_keys.STEPS} is {self.steps} and the stages have {planned} steps in all; {advice}"
            )

    @property
    def steps(self) -> int:
        return self.verl[verl_keys.STEPS]

    @property
    def prompts(self) -> int:
        """The prompts of one step."""
        return self.verl[verl_keys.PROMPTS]

    @property
    def rollouts(self) -> int:
        """The rollouts of one prompt."""
        return self.verl[verl_keys.ROLLOUTS]

    @property
    def mini_batches(self) -> int:
        """The optimizer steps of one batch of prompts."""
        return verl_keys.mini_batches(self.verl)

    @property
    def nodes(self) -> int:
        return self.verl[verl_keys.NODES]

    @property
    def workers(self) -> int:
        """The devices of one node: GPUs, or training processes on a CPU."""
        return self.verl[verl_keys.WORKERS]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that the run reaches, each with its number of steps."""
        reached = []
        left = self.steps
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
        _refuse_renamed(tables)
        tables = dict(tables)
        data = tables.get("data")
        if isinstance(data, Mapping):
            data = _lists(data, "train", "eval")
            stages = data.get("stages")
            if isinstance(stages, list):
                data["stages"] = [_lists(stage, "files") if isinstance(stage, Mapping) else stage for stage in stages]
            tables["data"] = data
        verl = tables.get("verl", {})
        if isinstance(verl, Mapping):
            tables["verl"] = flatten(verl)
        return parse(cls, tables, "the recipe")

    def to_tables(self) -> dict[str, Any]:
        """Return nested dicts of plain JSON types; :meth:`from_tables` turns them back into the recipe."""
        return json.loads(json.dumps(dataclasses.asdict(self) | {"verl": dict(self.verl)}))


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}, "c.d": 2}`` as ``{"a.b": 1, "c.d": 2}``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _refuse_renamed(tables: Mapping[str, Any]) -> None:
    for name, now in verl_keys.RENAMED.items():
        table, _, key = name.partition(".")
        found = tables.get(table)
        if isinstance(found, Mapping) and key in found:
            raise SettingsError(f"the recipe: {name} has verl's own name now; write {now}")


def _lists(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return ``table`` with a list of one in place of a string, where a list of paths is meant."""
    return {key: [value] if key in names and isinstance(value, str) else value for key, value in table.items()}


def _apply(tables: dict[str, Any], override: str) -> None:
    name, value = key_value(override)
    table, _, key = name.partition(".")
    if not key:
        raise SettingsError(f"an override is table.key=value, got {override!r}")
    if table == "verl":
        tables["verl"] = flatten(tables.get("verl", {})) | flatten({key: value})
    else:
        tables.setdefault(table, {})[key] = value
