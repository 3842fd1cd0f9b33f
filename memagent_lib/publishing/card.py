"""The model card of a policy: base model, recipe, scores and hashes, as its run and its evaluations recorded them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memagent_lib.errors import MissingFile, UserError, nearest_path
from memagent_lib.evaluation import Rate, read_rows, settings_in_words, summarise
from memagent_lib.models import HUB_NAME, PUBLISHED, find_model, name_of
from memagent_lib.paths import PACKAGE, absolute, model_path, root
from memagent_lib.provenance import library_version, model_hash
from memagent_lib.rl import RunFolder, TrainingState
from memagent_lib.scoring import judge_name
from memagent_lib.settings import to_toml
from memagent_lib.tracking import Experiment, evaluation_rows, policy_name, store_uri

CARD = "README.md"
_TEMPLATE = PACKAGE / "publishing" / "templates" / "model_card.md"
_GROUP = ["task", "file", "chunks", "reader", "settings", "rule", "run_id"]
_NOT_RECIPE = ("tracking", "cluster")  # they describe a machine, not the policy


class PublishingError(UserError, ValueError):
    """A policy cannot be described or published as it is."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A model folder that transformers loads, and what the run that trained it recorded at its start, if any."""

    folder: Path
    started: Mapping[str, Any]

    @classmethod
    def of(cls, path: str | Path) -> Policy:
        """Return the policy at ``path``: the folder of a training run or of ``memagent sft``, or a model folder."""
        found = absolute(model_path(str(path)))
        folder = found / "model" if (found / "model" / "config.json").is_file() else found
        run = RunFolder(folder.parent)
        started = run.record() if run.is_run and run.model == folder else {}
        if started and run.status().state is not TrainingState.FINISHED:
            raise PublishingError(f"the run at {path} is {run.status().state}; finish it with memagent resume {path}")
        if not (folder / "config.json").is_file():
            raise MissingFile(f"no policy at {path}; name a training run's folder, or a model's{nearest_path(found)}")
        return cls(folder, started)

    @property
    def name(self) -> str:
        return policy_name(self.folder)

    @property
    def weights(self) -> str:
        """The hash of the weights, by which evaluations and cards are assigned to a policy."""
        return model_hash(self.folder)


def model_card(
    policy: Policy, store: str = "", base: str = "", licence: str = "", evaluations: Sequence[str] = ()
) -> str:
    """Return the card of ``policy``, in the form of the Hugging Face hub.

    ``evaluations`` are folders of ``memagent evaluate --out``; without them, the evaluations in the MLflow ``store``
    (by default that of the training run) count. Only rows with the hash of exactly these weights are listed. ``base``
    and ``licence`` replace what is recorded. Raises :class:`PublishingError` if no licence is recorded.
    """
    from huggingface_hub import ModelCard, ModelCardData

    recorded = policy.started.get("config", {})
    base = base or recorded.get("model", {}).get("path", "")
    store = store or recorded.get("tracking", {}).get("uri") or "runs"
    if Path(base).is_dir():
        base = name_of(Path(base).absolute())
    hub = PUBLISHED[base].hub if base in PUBLISHED else base
    data = ModelCardData(
        license=licence or _licence_of(base),
        base_model=hub if HUB_NAME.fullmatch(hub) else None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["memagent", "memory-agent", "long-context"],
        memagent={"weights": policy.weights},
    )
    card = ModelCard.from_template(
        data,
        template_path=str(_TEMPLATE),
        public=public,
        name=policy.name,
        base=policy_name(base) if base.startswith("/") else base,
        hashes={"these weights": policy.weights} | policy.started.get("inputs", {}),
        recipe=to_toml(public({name: table for name, table in recorded.items() if name not in _NOT_RECIPE})),
        scores=_scores(policy.weights, store, evaluations),
        version=library_version(),
    )
    return str(card)


def _licence_of(base: str) -> str:
    """Return the licence in the base model's own card, or raise :class:`PublishingError`."""
    from huggingface_hub import ModelCard

    if base in PUBLISHED:
        return PUBLISHED[base].licence.lower()
    file = Path(find_model(base)) / CARD if base else Path()
    if file.is_file() or HUB_NAME.fullmatch(base):
        found = ModelCard.load(file if file.is_file() else base, ignore_metadata_errors=True).data.get("license")
        if found:
            return str(found)
    raise PublishingError(f"no licence is recorded for the base model {base!r}; state it, as in --license apache-2.0")


def _scores(weights: str, store: str, evaluations: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row per task, file, length and reader, with its score and 95 % interval in percent."""
    import pandas as pd

    if evaluations:
        rows = pd.concat([read_rows(folder) for folder in evaluations], ignore_index=True)
    else:
        rows, _ = evaluation_rows(Experiment.open(store_uri(store)))
    mine = rows[rows["weights"] == weights[:8]] if "weights" in rows else rows[:0]
    if evaluations and mine.empty:
        raise PublishingError(f"no row in {', '.join(evaluations)} is of the weights {weights[:8]}")
    if mine.empty:
        return []
    mine = mine.drop_duplicates(["run_id", "task", "file", "reader", "settings", "example"])
    mine = mine.assign(
        settings=settings_in_words(mine),
        rule=mine["rule"].map(judge_name, na_action="ignore"),
        chunks=mine["chunks"].astype("Int64"),
    )
    table = summarise(mine, _GROUP).sort_values(_GROUP).astype(object).fillna("").to_dict("records")
    return [row | {name: public(str(row[name])) for name in _GROUP} | {"score": Rate.of(row).short} for row in table]


def public(value: Any) -> Any:
    """Return a value with the absolute paths in its texts relative to the project, or their last part alone."""
    if isinstance(value, Mapping):
        return {public(key): public(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [public(entry) for entry in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"(?:^|(?<=[=:])|(?<=file://))/(?!/)[^:]*", _public_path, value)


def _public_path(found: re.Match[str]) -> str:
    path = Path(found[0])
    return path.relative_to(root()).as_posix() if path.is_relative_to(root()) else path.name
