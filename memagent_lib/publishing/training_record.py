"""What a training run has recorded about itself: recipe, data, curve and code, from its folder and its MLflow run.

Nothing that a recipe names is loaded. Paths are reduced to what says nothing about the machine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.data import data_hash, stream_records
from memagent_lib.paths import root, shortest_ends
from memagent_lib.rl import PROMPTS, ROLLOUTS, RunFolder, validation_score
from memagent_lib.settings import to_toml
from memagent_lib.tracking import Experiment, load_inputs, load_runs

REWARD = "rollout/acc"
MOST_CURVE_ROWS = 12
_NOT_RECIPE = ("tracking", "cluster")  # they describe a machine, not the policy


class CurveRow(NamedTuple):
    """Steps ``first`` to ``last``, the mean score of their rollouts, and the validation score after the last one."""

    first: int
    last: int
    score: float | None
    validation: float | None


class DataFile(NamedTuple):
    """A file of examples: what it was used for, and its hash and contents, as far as they are known.

    ``name`` has as many of its folders as tell it apart. ``note`` says where the hash comes from, if training has not
    recorded it.
    """

    use: str
    name: str
    hash: str
    examples: int | None
    tasks: str
    note: str


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """A finished training run. ``code`` has ``git_commit``, ``git_dirty`` and ``code_hash`` if MLflow has them.

    ``validated`` is the number of examples that each validation read, or None if it read all.
    """

    model: str
    weights: str
    device: str
    recipe: str
    steps: int
    prompts: int
    rollouts: int
    seed: int
    average_share: float
    validated: int | None
    data: Sequence[DataFile]
    curve: Sequence[CurveRow]
    mlflow_run: str = ""
    experiment: str = ""
    code: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RunFolder, started: Mapping[str, Any], store: Experiment | None) -> TrainingRecord:
        """Collect the record of a run. ``started`` is what it has recorded at its start (:attr:`Policy.started_with`).

        Without ``store``, hashes of data are those of the files as they are now.
        """
        tables = started["config"]
        verl = tables["verl"]
        status = run.status()
        logged = Logged.of(store, status.mlflow_run)
        average = tables["model"].get("average_with")
        most = verl.get("data.val_max_samples", -1)
        return cls(
            model=tables["model"]["path"],
            weights=started.get("weights", ""),
            device=started["device"],
            recipe=recipe_toml(tables),
            steps=status.step,
            prompts=verl[PROMPTS],
            rollouts=verl[ROLLOUTS],
            seed=tables["train"]["seed"],
            average_share=tables["model"]["average_share"] if average else 0.0,
            validated=most if most > 0 else None,
            data=data_of(started.get("trained", tables)["data"], logged.hashes),
            curve=curve_of(run.rows()),
            mlflow_run=status.mlflow_run,
            experiment=tables["tracking"]["experiment"],
            code=logged.code,
        )


class Logged(NamedTuple):
    """What the MLflow run of a training has: the code's version, and the hashes of data by use and file name.

    Files of several folders may share a name, so each key has a list.
    """

    code: dict[str, str]
    hashes: dict[tuple[str, str], list[str]]

    @classmethod
    def of(cls, store: Experiment | None, run_id: str) -> Logged:
        if store is None or not run_id:
            return cls({}, {})
        rows = load_runs(store, f"attributes.run_id = '{run_id}'").to_dict("records")
        if not rows:
            return cls({}, {})
        names = ("git_commit", "git_dirty", "code_hash")
        code = {name: rows[0][f"tags.{name}"] for name in names if f"tags.{name}" in rows[0]}
        inputs = load_inputs(store.join(run_id))
        # MLflow's word for validation is the one that Run.data gives it.
        uses = {"training": "training", "evaluation": "validation"}
        hashes: dict[tuple[str, str], list[str]] = {}
        for row in inputs.itertuples():
            hashes.setdefault((uses.get(row.use, row.use), row.name), []).append(row.hash)
        return cls(code, hashes)


def data_of(tables: Mapping[str, Any], hashes: Mapping[tuple[str, str], Sequence[str]]) -> list[DataFile]:
    """Describe the files of a recipe's ``[data]``. ``hashes`` are those that training has logged."""
    training = [*tables["train"], *(file for stage in tables["stages"] for file in stage["files"])]
    uses = {"training": training, "validation": tables["eval"]}
    names = shortest_ends([*training, *tables["eval"]])
    return [
        _described(use, Path(path), names[path], hashes.get((use, Path(path).name), ()))
        for use, paths in uses.items()
        for path in dict.fromkeys(paths)
    ]


def _described(use: str, path: Path, name: str, logged: Sequence[str]) -> DataFile:
    """Describe a file. ``logged`` has the hashes of all files of its last name, so only a single one is surely its."""
    hash_then = logged[0] if len(logged) == 1 else ""
    if not path.is_file():
        note = "" if hash_then else "not recorded, and the file is gone"
        if len(logged) > 1:
            note = "the file is gone, and several of its last name are recorded"
        return DataFile(use, name, hash_then, None, "", note)
    now = data_hash(path)
    if logged and now not in logged:
        return DataFile(use, name, hash_then, None, "", "the file has changed since")
    tasks = Counter(record["data_source"] for record in stream_records(path))
    words = ", ".join(f"{task} ({count:,})" for task, count in sorted(tasks.items()))
    note = "" if logged else "hashed when this card was written"
    return DataFile(use, name, now, tasks.total(), words, note)


def curve_of(rows: Sequence[Mapping[str, Any]]) -> list[CurveRow]:
    """Return the curve of a run in at most :data:`MOST_CURVE_ROWS` rows, from the lines of its metrics.

    A row ends at a validation, if there are any. Row 0 is the validation before the first step.
    """
    steps = [row for row in rows if row["step"] > 0]
    if not steps:
        return []
    validated = [row["step"] for row in steps if validation_score(row["metrics"]) is not None]
    ends = _thinned(sorted({*(validated or (row["step"] for row in steps)), steps[-1]["step"]}), MOST_CURVE_ROWS - 1)
    found = [CurveRow(0, 0, None, validation_score(row["metrics"])) for row in rows if row["step"] == 0]
    last = 0
    for end in ends:
        within = [row["metrics"] for row in steps if last < row["step"] <= end]
        scores = [metrics[REWARD] for metrics in within if REWARD in metrics]
        mean = sum(scores) / len(scores) if scores else None
        found.append(CurveRow(last + 1, end, mean, validation_score(within[-1])))
        last = end
    return found


def _thinned(values: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of the values at equal distances, the last one included."""
    if len(values) <= most:
        return list(values)
    return [values[round((number + 1) * len(values) / most) - 1] for number in range(most)]


def recipe_toml(tables: Mapping[str, Any]) -> str:
    """Return a recipe as TOML that ``memagent train`` reads, without the store and the paths of this machine."""
    return to_toml({name: _public(table) for name, table in tables.items() if name not in _NOT_RECIPE})


def _public(value: Any) -> Any:
    """Return a value of a recipe with absolute paths relative to the project, or as the last part alone."""
    if isinstance(value, Mapping):
        return {key: _public(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_public(entry) for entry in value]
    return public_path(value) if isinstance(value, str) else value


def public_path(value: str) -> str:
    """Return a text in which absolute paths are relative to the project, or their last part alone.

    Paths are found at the beginning, after ``=``, ``:`` and ``file://``; each extends to the next colon.
    """
    return re.sub(r"(?:^|(?<=[=:])|(?<=file://))/(?!/)[^:]*", _public_part, value)


def _public_part(found: re.Match[str]) -> str:
    path = Path(found[0])
    return path.relative_to(root()).as_posix() if path.is_relative_to(root()) else path.name
