"""The model card of a policy: everything that its folder, its training run and its evaluations have recorded.

What is not recorded is named in the card as not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.agent import AgentSettings
from memagent_lib.evaluation import ALL_TASKS
from memagent_lib.paths import PACKAGE
from memagent_lib.plugins import is_plugin, plugin_name
from memagent_lib.provenance import library_version
from memagent_lib.publishing.base_model import BaseModel, Licence, licence_of
from memagent_lib.publishing.licences import licence_notes
from memagent_lib.publishing.policy import Policy
from memagent_lib.publishing.scores import ScoreRow, Scores, scores_in_folders, scores_in_store
from memagent_lib.publishing.training_record import TrainingRecord
from memagent_lib.readers import BASELINES
from memagent_lib.tracking import Experiment, TrackingError, sqlite_file, store_uri

TAGS = ("memagent", "memory-agent", "long-context")
DEVICES = {"cpu": "a CPU", "cuda": "GPUs"}
_TEMPLATE = PACKAGE / "publishing" / "templates" / "model_card.md"


class Card(NamedTuple):
    """The text of a model card, and what its author has to know about it."""

    text: str
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Contents:
    """All that a card states. ``settings`` are those of the policy's ``memagent.json``, if it has one."""

    name: str
    policy: Policy
    settings: AgentSettings | None
    base: BaseModel
    licence: Licence
    training: TrainingRecord | None
    scores: Scores
    datasets: Sequence[str]


def model_card(
    policy: Policy,
    store: str | Path = "runs",
    *,
    name: str = "",
    base: str = "",
    licence: str = "",
    datasets: Sequence[str] = (),
    evaluations: Sequence[str | Path] = (),
) -> Card:
    """Return the card of ``policy``, in the form of the Hugging Face hub.

    ``store`` is the MLflow store, unless the run's recipe names one. ``evaluations`` are folders of ``memagent evaluate
    --out``; without them, all evaluations in the store are looked through. ``base`` and ``licence`` replace what is
    recorded, and ``datasets`` are names on the hub. Raises :class:`PublishingError` if no licence is known, or if
    ``evaluations`` have no row of the policy.
    """
    warnings: list[str] = []
    started = policy.started_with
    tracking = started["config"]["tracking"] if policy.run else {}
    uri = tracking.get("uri") or store_uri(store)
    trained_in = _opened(uri, warnings, tracking.get("experiment", ""))
    training = TrainingRecord.of(policy.run, started, trained_in) if policy.run else None
    if base:
        origin = BaseModel.of(base)
    elif training:
        origin = BaseModel.of(training.model, training.weights, trained_in)
    else:
        origin = BaseModel.before(policy.folder, policy.weights, trained_in)
    stated = licence_of(origin, licence)
    if evaluations:
        scores = scores_in_folders(policy.weights, evaluations)
    else:
        evaluated_in = _opened(uri, warnings)
        scores = scores_in_store(policy.weights, evaluated_in) if evaluated_in else Scores()
    warnings += licence_notes(stated.id)
    warnings += [f"not in the card: {refused}" for refused in scores.refused]
    if not scores.rows:
        warnings.append("the card has no scores, because no evaluation is of these weights")
    saved = AgentSettings.load(policy.folder) if AgentSettings.are_saved(policy.folder) else None
    contents = _Contents(name or policy.name, policy, saved, origin, stated, training, scores, datasets)
    return Card(f"---\n{_metadata(contents)}\n---\n\n{_body(contents)}", list(dict.fromkeys(warnings)))


def _opened(uri: str, warnings: list[str], experiment: str = "") -> Experiment | None:
    """Open an experiment of a store, by default that of evaluations; if it fails, add a warning and return None."""
    file = sqlite_file(uri)
    if file and not file.is_file():  # opening it would create an empty store
        warnings.append(f"there is no MLflow store at {uri}; name it with --tracking")
        return None
    try:
        named = {"experiment": experiment} if experiment else {}
        return Experiment.open(uri, **named, create=False)
    except TrackingError as failure:
        warnings.append(f"the MLflow store cannot be read: {failure}")
        return None


def _metadata(card: _Contents) -> str:
    """Return the card's head as YAML: the hub's keys, and ``memagent``, which identifies the weights."""
    from huggingface_hub import ModelCardData

    reader = plugin_name(card.settings.reader) if card.settings else ""  # results have only its name
    # The hub lists scores by data set, and all tasks are none.
    rows = [row for row in card.scores.rows if row.reader == reader and row.score.n and row.task != ALL_TASKS]
    results = [_result(row) for row in rows]
    data = ModelCardData(
        license=card.licence.id,
        license_name=card.licence.name or None,
        license_link=card.licence.link or None,
        base_model=card.base.hub or None,
        datasets=list(card.datasets) or None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=list(TAGS),
        model_name=card.name if results else None,
        eval_results=results or None,
        memagent={"weights": card.policy.weights},
    )
    return data.to_yaml()


def _result(row: ScoreRow) -> Any:
    from huggingface_hub import EvalResult

    length = f"{row.chunks:,} chunks" if row.chunks else ""
    return EvalResult(
        task_type="question-answering",
        dataset_type=row.task,
        dataset_name=", ".join(filter(None, (row.file, length))),
        # The hub's client puts results of one type and config together, so the config tells all rows apart.
        dataset_config=", ".join(filter(None, (row.file, length, row.settings, row.run_id))),
        metric_type="accuracy",
        metric_name=f"mean score by the rule {row.judge}",
        metric_value=round(row.score.value, 4),
        metric_args={
            "n": row.score.n,
            "documents": row.score.documents,
            "interval_95": [round(row.score.low, 4), round(row.score.high, 4)],
        },
    )


def _body(card: _Contents) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters |= {"cell": cell, "share": _share}
    training = card.training
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        name=card.name,
        base=card.base,
        licence=card.licence,
        properties=_properties(card),
        settings=card.settings,
        training=training,
        device=DEVICES.get(training.device, training.device) if training else "",
        scores=card.scores,
        varied=any(row.settings for row in card.scores.rows),
        limits=_limits(card),
        origin=_origin(training),
    )


def _properties(card: _Contents) -> Mapping[str, str]:
    """Return the first table of the card."""
    found = {"weights": card.policy.weights, "licence": card.licence.name or card.licence.id}
    if card.policy.parameters:
        found["parameters"] = f"{card.policy.parameters:,}"
    if card.settings:
        template = card.settings.template
        found["reader"] = Path(card.settings.reader).name
        found["prompt template"] = template if isinstance(template, str) else str(template["name"])
        found |= {name.replace("_", " "): f"{size:,}" for name, size in card.settings.budget.sizes.items()}
    return found


def _limits(card: _Contents) -> list[str]:
    """Return what a reader of the card could wrongly take from it, a sentence each."""
    limits = []
    readers = {row.reader for row in card.scores.rows}
    if readers:
        limits.append(
            "How the policy does on other tasks, lengths and documents than those in the table. The intervals are "
            "about new documents of the same kind."
        )
    if readers and not readers & set(BASELINES):
        limits.append(
            "Whether the memory is needed: there is no score without the document (reader `blind`) or with a part of "
            "it (`truncated`)."
        )
    if card.training:
        limits.append(f"What another seed gives: this is one run, with seed {card.training.seed}.")
    limits.append("What training has cost: the base model's other abilities have not been measured.")
    limits.append("Whether an answer is true: a memory can lose or invent statements.")
    if card.settings and is_plugin(card.settings.reader):
        limits.append(f"The reader: {Path(card.settings.reader).name} is a file that is not part of this folder.")
    return limits


def _origin(training: TrainingRecord | None) -> list[tuple[str, str]]:
    """Return where the policy and its card come from, as rows of a table."""
    rows = []
    if training:
        code = training.code
        commit = code.get("git_commit", "not recorded")
        changed = " with uncommitted changes" if code.get("git_dirty") == "true" else ""
        rows.append(("git commit of the training", commit + changed))
        rows.append(("hash of the library's code", code.get("code_hash", "not recorded")))
        run = (
            f"{training.mlflow_run} in the experiment {training.experiment}" if training.mlflow_run else "not recorded"
        )
        rows.append(("MLflow run of the training", run))
    rows.append(("this card", f"memagent {library_version()}"))
    return rows


def cell(value: object) -> str:
    """Return a value as one line of Markdown that cannot end a table's cell or begin a tag."""
    text = " ".join(str("" if value is None else value).split())
    return text.replace("|", "\\|").replace("<", "&lt;")


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
