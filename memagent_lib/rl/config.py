"""What a training run is: a TOML file of a few small tables, checked before anything heavy starts.

Knows no verl: :mod:`memagent_lib.rl.verl_config` turns a :class:`Recipe` into verl's own settings.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memagent_lib.prompts import Budget, Template
from memagent_lib.readers import reader_named, shows
from memagent_lib.settings import SettingsError, parse
from memagent_lib.trace import Kind

DEVICES = ("auto", "cpu", "cuda")


def _at_least(table: Any, least: float, *names: str) -> None:
    for name in names:
        if (value := getattr(table, name)) < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The policy to train, as a folder or hub name, and where it trains: ``auto`` takes CUDA where there is one."""

    path: str
    device: str = "auto"
    workers: int = 1
    nodes: int = 1

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"no device {self.device!r}; choose from {', '.join(DEVICES)}")
        _at_least(self, 1, "workers", "nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Parquet files of examples; ``eval_examples`` of ``eval`` are read greedily every ``eval_every`` steps."""

    train: tuple[str, ...]
    eval: tuple[str, ...]
    eval_examples: int = -1

    def __post_init__(self) -> None:
        for name in ("train", "eval"):
            if not getattr(self, name):
                raise ValueError(f"{name} must be a path or a list of paths, got none")


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
        return shows(reader_named(self.reader))

    @property
    def budget(self) -> Budget:
        return Budget(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Budget)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The recipe. Defaults are the published one: GRPO with a mean baseline, clip 0.2, KL loss 1e-3, AdamW at 1e-6.

    ``mini_batches`` is the number of optimizer steps per batch of prompts. ``reuse_logprobs`` takes the sampler's
    log-probabilities as those of the old policy, which saves a forward pass and is right where both agree: in fp32.
    """

    steps: int
    prompts_per_step: int = 128
    rollouts: int = 16
    mini_batches: int = 1
    lr: float = 1e-6
    warmup_steps: int = 0
    weight_decay: float = 0.01
    kl_loss: float = 1e-3
    entropy_bonus: float = 0.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    temperature: float = 1.0
    reuse_logprobs: bool = False
    eval_every: int = 0
    eval_first: bool = True
    save_every: int = 0
    keep_checkpoints: int = 2
    traces_per_step: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least(self, 1, "steps", "prompts_per_step", "mini_batches")
        _at_least(self, 2, "keep_checkpoints")  # verl deletes the oldest before it writes the newest
        _at_least(self, 0, "lr", "kl_loss", "eval_every", "save_every", "traces_per_step", "warmup_steps")
        if self.rollouts < 2:
            raise ValueError(
                f"rollouts must be at least 2, got {self.rollouts}: a rollout is compared with the others of its group"
            )
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}: equal rollouts teach nothing")
        if self.reuse_logprobs and self.mini_batches > 1:
            raise ValueError(
                "reuse_logprobs needs mini_batches = 1: only then is nothing updated between sampling and the update"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingConfig:
    """The MLflow store and experiment; an empty ``uri`` keeps a SQLite file in the folder that holds the run's folder."""

    uri: str = ""
    experiment: str = "memagent"
    run_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole run. ``verl`` holds raw settings of verl's own, by dotted name; they are applied last and win."""

    model: ModelConfig
    data: DataConfig
    reading: ReadingConfig
    train: TrainingConfig
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    verl: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
        """Read a TOML file; each override is ``table.key=value`` with a TOML value, or a bare word for a string.

        Paths in the file are relative to the working directory.
        """
        path = Path(path)
        if not path.is_file():
            raise SettingsError(f"no recipe at {path}")
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{path} is not TOML: {error}") from error
        for override in overrides:
            _apply(tables, override)
        return cls.from_tables(tables)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Recipe:
        """Build from nested dicts, as a TOML file holds them; :class:`SettingsError` names what is wrong in them."""
        tables = dict(tables)
        if isinstance(data := tables.get("data"), Mapping):
            tables["data"] = {key: [value] if isinstance(value, str) else value for key, value in data.items()}
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


def _apply(tables: dict[str, Any], override: str) -> None:
    name, found, text = override.partition("=")
    table, dot, key = name.strip().partition(".")
    if not found or not dot or not key:
        raise SettingsError(f"an override is table.key=value, got {override!r}")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    if table == "verl":
        tables["verl"] = flatten(tables.get("verl", {})) | {key: value}
    else:
        tables.setdefault(table, {})[key] = value
