"""The recipe of a training run: a TOML file of a few small tables, validated when it is loaded.

A recipe adds only the settings that verl lacks: reader, budgets, curriculum, credit, and when to give up. Every setting
of verl keeps verl's dotted name, in the table ``[verl]``. This module does not load verl: ``rl/verl/verl_settings.py``
turns a :class:`Recipe` into verl's configuration.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval, MinLen
from pydantic import BeforeValidator

from memagent_lib.agent import AgentSettings, tokenizer_to_train
from memagent_lib.bad_memory import OnBadMemory
from memagent_lib.journal import digest
from memagent_lib.plugins import plugin_hash
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.rl.advantages import Credit, Overlong
from memagent_lib.rl.rewards import reward_named
from memagent_lib.rl.verl import verl_keys
from memagent_lib.settings import SettingsError, flatten, key_value, parse, read_toml
from memagent_lib.trace import Kind


def _listed(value: Any) -> Any:
    """Return the list of one path for a path."""
    return tuple([value] if isinstance(value, str) else value) if isinstance(value, str | list) else value


Files = Annotated[tuple[Annotated[str, MinLen(1)], ...], BeforeValidator(_listed)]
"""A setting of paths; a single one needs no list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model to train (``path``: a folder or hub name) and its device; ``auto`` is CUDA if a GPU is present.

    With ``average_with``, the folder of a model of the same shape, the exported policy is ``(1 - average_share)`` times
    the trained weights plus ``average_share`` times that model's. Averaging with the model from before training
    restores skills that were lost in training (WiSE-FT, arXiv 2109.01903; on RL, WARP, arXiv 2406.16768). Rollouts,
    validation and checkpoints use the trained weights alone.
    """

    path: str
    device: Literal["auto", "cpu", "cuda"] = "auto"
    average_with: str = ""
    average_share: Annotated[float, Interval(gt=0, lt=1)] = 0.3

    def with_paths(self, locate: Callable[[str], str]) -> ModelConfig:
        """Return a copy with ``locate`` applied to ``path`` and ``average_with``."""
        average_with = locate(self.average_with) if self.average_with else ""
        return dataclasses.replace(self, path=locate(self.path), average_with=average_with)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of the curriculum: ``steps`` training steps on the examples of ``files``.

    Only the last stage may have 0 steps; it then lasts to the end of the run.
    """

    files: Annotated[Files, MinLen(1)]
    steps: Annotated[int, Ge(0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Parquet files of examples to train on (``train`` or ``stages``) and to validate on (``eval``, read greedily).

    ``train`` is shuffled, used up, and shuffled again. ``[[data.stages]]``, tables of ``files`` and ``steps``, replace
    it by a curriculum. Use one if the policy never answers long documents at first: on short ones, the rewards of a
    group differ, so there is something to learn.

    ``mix`` states how a stage's examples are drawn: ``examples`` draws each equally often; ``tasks`` draws equally many
    of every task, so that no task dominates; ``files`` draws equally many of every file, so that a few examples
    are seen often (a file listed twice has two shares).
    """

    train: Files = ()
    stages: tuple[Stage, ...] = ()
    mix: Literal["tasks", "files", "examples"] = "examples"
    eval: Annotated[Files, MinLen(1)]

    def __post_init__(self) -> None:
        if bool(self.train) == bool(self.stages):
            raise ValueError("train must be a path or a list of paths, or [[data.stages]] must be set, but not both")
        if any(not stage.steps for stage in self.stages[:-1]):
            raise ValueError("every stage but the last needs steps")

    @property
    def files(self) -> tuple[str, ...]:
        """The training files of ``train`` or of the stages, without repeats."""
        of_stages = tuple(file for stage in self.stages for file in stage.files)
        return tuple(dict.fromkeys(self.train + of_stages))

    def with_paths(self, locate: Callable[[str], str]) -> DataConfig:
        """Return a copy with ``locate`` applied to every path."""
        stages = tuple(dataclasses.replace(stage, files=tuple(map(locate, stage.files))) for stage in self.stages)
        train = tuple(map(locate, self.train))
        held_out = tuple(map(locate, self.eval))
        return dataclasses.replace(self, train=train, stages=stages, eval=held_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingConfig:
    """The reader to train, its prompt template, and its budgets in tokens. Reader and budgets default to MemAgent's.

    ``on_bad_memory`` is what happens to a reply that is not a memory (:mod:`memagent_lib.bad_memory`). The default
    ``take`` makes every reply the memory, as in the paper, so that the policy is trained by the consequences.
    """

    reader: str = "overwrite"
    template: str = "chunk_first"
    chunk_tokens: int = 5000
    memory_tokens: int = 1024
    answer_tokens: int = 1024
    question_tokens: int = 1024
    thinking_tokens: int = 0
    on_bad_memory: OnBadMemory = OnBadMemory.TAKE

    def __post_init__(self) -> None:
        # Validated where it is declared, like any other setting, so a wrong name fails before a process starts.
        reader_named(self.reader)
        Template.load(self.template)

    @property
    def shows(self) -> Mapping[Kind, int]:
        """The number of memories in each kind of the reader's prompts, which determines how long the prompts are."""
        return reader_named(self.reader).prompts

    @property
    def hashes(self) -> dict[str, str]:
        """Hashes of the template's texts, and of the file of a reader that has one."""
        texts = json.dumps(dataclasses.asdict(Template.load(self.template)), sort_keys=True)
        hashes = {"template": digest(texts)[:16]}
        file = reader_named(self.reader).file
        if file:
            hashes["reader"] = plugin_hash(file)
        return hashes

    @property
    def budget(self) -> Budget:
        return Budget(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Budget)})

    def encoder(self, model: str, chat_template: Mapping[str, Any]) -> Encoder:
        """Return the encoder of a model's prompts, which also counts their tokens.

        ``chat_template`` has the recipe's arguments of the model's chat template.
        """
        tokenizer = tokenizer_to_train(model, chat_template)
        return Encoder(tokenizer, Template.load(self.template), self.budget, self.shows)

    def agent_settings(self, chat_template: dict[str, Any]) -> AgentSettings:
        """Return the settings with which a model is trained, for its ``memagent.json``.

        ``chat_template`` has all arguments of the model's chat template.
        """
        return AgentSettings(
            template=Template.load(self.template).saved,
            budget=self.budget,
            reader=self.reader,
            chat_template=chat_template,
            on_bad_memory=self.on_bad_memory,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The settings that training over several conversations adds to verl's; :mod:`memagent_lib.rl` has the objective.

    *Credit.* ``credit``: see :class:`~memagent_lib.rl.advantages.Credit`. Rewards besides the score of the answer are
    in the table ``rewards`` (:mod:`memagent_lib.rl.rewards`).

    *Groups without spread.* The rollouts of such a group have equal rewards (and evidence scores), so their advantages
    are 0. ``skip_equal_groups`` leaves them out of the log-probabilities and the update. ``dynamic_sampling`` replaces
    them with fresh prompts until the batch is full (DAPO, arXiv 2503.14476, equation 11), for at most 10 rounds
    (:data:`memagent_lib.rl.trainer.MOST_ROUNDS`). Use it for data that is mostly too easy or too hard; it costs more
    rollouts, and the reward curve shows only the prompts that remain.

    *Overlong replies.* ``overlong``: see :class:`~memagent_lib.rl.advantages.Overlong`. ``penalty`` applies in the last
    ``overlong_buffer`` (a share) of a reply's limit and has the weight ``overlong_weight``.

    *Safety.* A reading that fails twice stops the run, which can then be resumed. The newest ``keep_checkpoints`` are
    retained.

    ``seed`` fixes the order of examples and every sampled reply.
    """

    credit: Credit = Credit.SHARED
    skip_equal_groups: bool = False
    dynamic_sampling: bool = False
    overlong: Overlong = Overlong.KEEP
    overlong_buffer: Annotated[float, Interval(gt=0, le=1)] = 0.25
    overlong_weight: Annotated[float, Interval(ge=0, lt=math.inf)] = 0.5
    keep_checkpoints: Annotated[int, Ge(1)] = 2
    seed: Annotated[int, Ge(0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The Ray cluster of a run: ``local`` starts a private one, ``auto`` or ``HOST:PORT`` joins a running cluster."""

    address: str = "local"


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
    """All settings of a training run. ``verl`` maps verl's dotted names to values, which override everything else.

    A setting of :data:`~memagent_lib.rl.verl.verl_keys.DEFAULTS` that ``verl`` leaves out gets its published value, and
    one of :data:`~memagent_lib.rl.verl.verl_keys.OWNED` is refused. A name that starts with ``+`` adds a setting that
    verl's configuration does not have.
    """

    model: ModelConfig
    data: DataConfig
    reading: ReadingConfig
    train: TrainingConfig = field(default_factory=TrainingConfig)
    rewards: Mapping[str, float] = field(default_factory=dict)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    verl: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "verl", verl_keys.completed(self.verl))  # the class is frozen
        for name in self.reward_weights:
            reward_named(name, self.reading.reader)
        if self.nodes > 1 and self.cluster.address == "local":
            raise ValueError(f'verl.{verl_keys.NODES} is {self.nodes}; set cluster.address to "auto" or HOST:PORT')
        planned = sum(stage.steps for stage in self.data.stages)
        if self.data.stages and self.data.stages[-1].steps and planned < self.steps:
            raise ValueError(f"verl.{verl_keys.STEPS} is {self.steps} and the stages have {planned} steps in all")

    @property
    def steps(self) -> int:
        return self.verl[verl_keys.STEPS]

    @property
    def adapter(self) -> str:
        """The folder of the adapter that training continues, or "" if there is none."""
        return self.verl.get(verl_keys.ADAPTER) or ""

    @property
    def reward_weights(self) -> dict[str, float]:
        """The weights of the rewards besides the score of the answer, by name (:mod:`memagent_lib.rl.rewards`)."""
        return {name: weight for name, weight in self.rewards.items() if name != "rollout_weight"}

    @property
    def rollout_weight(self) -> float:
        """The weight of the advantage of the answer."""
        return self.rewards.get("rollout_weight", 1.0)

    @property
    def prompts(self) -> int:
        """The number of prompts that a step draws."""
        return self.verl[verl_keys.PROMPTS]

    @property
    def rollouts(self) -> int:
        """The number of rollouts per prompt."""
        return self.verl[verl_keys.ROLLOUTS]

    @property
    def mini_batches(self) -> int:
        """The number of optimizer steps per batch of prompts."""
        return self.prompts // self.verl.get(verl_keys.MINI_BATCH, self.prompts)

    @property
    def nodes(self) -> int:
        return self.verl[verl_keys.NODES]

    @property
    def workers(self) -> int:
        """The number of devices per node: GPUs, or training processes on a CPU."""
        return self.verl[verl_keys.WORKERS]

    @property
    def chat_template(self) -> dict[str, Any]:
        """The arguments of the policy's chat template, from the settings in ``verl``."""
        table = f"{verl_keys.CHAT_TEMPLATE}."
        # verl's own table is empty, so a recipe may mark its entries as added ones.
        names = {name.removeprefix("+"): value for name, value in self.verl.items()}
        return {name.removeprefix(table): value for name, value in names.items() if name.startswith(table)}

    def encoder(self) -> Encoder:
        """Return the encoder of the recipe's prompts."""
        return self.reading.encoder(self.model.path, self.chat_template)

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
        """Read a recipe from a TOML file, and replace the settings named in ``overrides``.

        An override is ``table.key=value``, with a TOML value or a bare word for a string. Paths of models and data are
        not resolved here; a run resolves them against the working directory. The files of a reader and of a template
        are found by :func:`~memagent_lib.paths.input_path`, the latter after a look into the working directory.
        """
        return cls.from_tables(recipe_tables(path, overrides))

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Recipe:
        """Build a recipe from nested dicts laid out as in the TOML file. Raises :class:`SettingsError` for a fault."""
        verl = tables.get("verl", {})
        if isinstance(verl, Mapping):
            tables = {**tables, "verl": flatten(verl)}
        return parse(cls, tables, "the recipe")

    def to_tables(self) -> dict[str, Any]:
        """Return nested dicts of plain JSON types; :meth:`from_tables` turns them back into the recipe."""
        # The round trip turns tuples into lists and enums into plain strings.
        return json.loads(json.dumps(dataclasses.asdict(self) | {"verl": dict(self.verl)}))


def differences(before: Mapping[str, Any], now: Mapping[str, Any], may_differ: Callable[[str], bool]) -> list[str]:
    """Return a sentence for each setting of two flat tables that differs and may not, in order of their names."""
    return [
        f"{name} was {before.get(name)} and is {now.get(name)}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and not may_differ(name)
    ]


def recipe_tables(path: str | Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return a recipe's tables with ``overrides`` applied. Unlike :meth:`Recipe.load`, load nothing that they name."""
    tables = read_toml(path, "recipe")
    for override in overrides:
        _apply(tables, override)
    return tables


def _apply(tables: dict[str, Any], override: str) -> None:
    name, value = key_value(override)
    table, _, key = name.partition(".")
    if not key:
        if isinstance(value, Mapping):
            tables[table] = dict(value)
            return
        raise SettingsError(f"an override is table.key=value, or table={{key=value, ...}}, got {override!r}")
    settings = tables.get(table, {})
    if not isinstance(settings, Mapping):
        raise SettingsError(f"{table} must be a table for the override {override!r}, and the recipe has {settings!r}")
    # Flat, so that a dotted name in an override replaces the same setting in a nested table.
    tables[table] = flatten(settings) | flatten({key: value}) if table == "verl" else settings | {key: value}
