"""The base model of a policy, and the licence that follows from it.

A licence is never guessed: it is stated by the user, by the base model's own card, or by the package or GGUF file that
the base model comes from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.models import HUB_NAME, PUBLISHED, PublishedModel, source_hash, source_of
from memagent_lib.paths import model_path
from memagent_lib.provenance import model_hash
from memagent_lib.publishing.policy import CARD, PublishingError, card_data
from memagent_lib.rl import RunFolder
from memagent_lib.tracking import Experiment, load_runs, policy_name

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

UNKNOWN = "unknown"
"""The hub's own identifier for a licence that nobody has stated."""
_SNAPSHOT = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)")  # a folder in the hub's own cache


@dataclass(frozen=True, slots=True)
class Licence:
    """A licence by the hub's identifier, and who states it. The identifier ``other`` has a ``name`` and a ``link``."""

    id: str
    source: str
    name: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The model that a policy was trained from.

    ``hub`` is its name on a hub, or "" if that is not known. ``weights`` is the hash of the weights from which training
    started. ``why_not`` explains why there is no licence.
    """

    label: str
    hub: str = ""
    weights: str = ""
    licence: Licence | None = None
    why_not: str = ""

    @classmethod
    def of(cls, model: str, weights: str = "", store: Experiment | None = None) -> BaseModel:
        """Describe the base model ``model``: a folder, a hub name, or a name that ``memagent model`` lists.

        Nothing is fetched; :func:`licence_of` reads the card of a hub name.

        ``weights`` is the hash that training recorded. A folder with other weights by now is not taken for the base
        model, so it states no licence. A base model that was trained itself, in a run folder or as recorded in
        ``store``, is followed back to the first one.
        """
        return _described(model, weights, store, frozenset())

    @classmethod
    def before(cls, folder: Path, weights: str, store: Experiment | None) -> BaseModel:
        """Describe the model from which a folder without a run was trained, as recorded in ``store``."""
        earlier = _trained_from(folder, weights, store)
        if earlier is None:
            return cls("", why_not="the base model is not recorded, and --base can name it")
        return _described(*earlier, store, frozenset({weights}))


def _described(model: str, weights: str, store: Experiment | None, later: frozenset[str]) -> BaseModel:
    """Describe a model. ``later`` has the weights of models that were trained from it, to follow no circle."""
    path = Path(model_path(model))
    published = _published(model)
    if published:
        stated = Licence(published.licence.lower(), f"the package {published.package} {published.version}")
        label = f"{published.hub} ({published.what.rpartition(', ')[2]} of the package {published.package})"
        return BaseModel(label, published.hub, weights, stated)
    if not path.is_dir() and HUB_NAME.fullmatch(model):
        return BaseModel(model, model, weights)
    now = model_hash(path) if path.is_dir() else ""
    name = policy_name(path)
    if not now:
        found = BaseModel(name, weights=weights, why_not=f"the base model {name} is not on this machine")
    elif weights and now != weights:
        why_not = f"{name} has other weights ({now}) than training started from ({weights})"
        found = BaseModel(name, weights=weights, why_not=why_not)
    else:
        found = _from_folder(path, name, now)
    earlier = _trained_from(path, found.weights, store)
    if found.licence or earlier is None or found.weights in later:
        return found
    first = _described(*earlier, store, later | {found.weights})
    label = f"{name}, which was trained from {first.label}"
    return BaseModel(label, first.hub, found.weights, first.licence, first.why_not)


def _trained_from(folder: Path, weights: str, store: Experiment | None) -> tuple[str, str] | None:
    """Return the model and weights from which ``weights`` were trained, if their run folder or ``store`` records it."""
    above = RunFolder(folder.parent)
    if above.model == folder and above.config.is_file():
        started = above.record()
        return started["config"]["model"]["path"], started.get("weights", "")
    if store is None or not weights:
        return None
    tuned = load_runs(store, f"tags.model_hash = '{weights}'")  # which `memagent sft` sets
    names = tuned["params.model.path"].dropna() if "params.model.path" in tuned else []
    return (names.iloc[0], "") if len(names) else None


def licence_of(base: BaseModel, option: str = "") -> Licence:
    """Return the licence of a policy: that of the option ``--license``, or else the base model's.

    Raises :class:`PublishingError` if neither states one.
    """
    if option:
        return Licence(option.lower(), "the author of this card")
    if base.licence:
        return base.licence
    if base.hub and not base.why_not:
        base = _from_hub(base)
        if base.licence:
            return base.licence
    raise PublishingError(
        f"no licence is known: {base.why_not}; state it with --license, as in --license apache-2.0, or let the card "
        f"say that it is not known with --license {UNKNOWN}"
    )


def _published(model: str) -> PublishedModel | None:
    source = source_hash(model)
    for published in PUBLISHED.values():
        if model in (published.name, published.hub) or source == published.file_sha256[:16]:
            return published
    return None


def _from_folder(folder: Path, name: str, weights: str) -> BaseModel:
    in_cache = _SNAPSHOT.search(folder.as_posix())
    hub = f"{in_cache['owner']}/{in_cache['name']}" if in_cache else ""
    label = hub or name
    source = source_of(folder)
    if source:
        label = f"the GGUF file {source['file']} ({source.get('quantization')})"
        stated_by = f"the file {source['file']}"
        if "base" in source:
            label = f"the adapter {source['file']} on {source['base']}"
            stated_by = f"its base model {source['base']}"
        if source["licence"]:
            return BaseModel(label, hub, weights, Licence(source["licence"].lower(), stated_by))
    card = folder / CARD
    if not card.is_file():
        return BaseModel(label, hub, weights, why_not=f"the base model {label} has no {CARD} that states one")
    try:
        data = card_data(card)
    except ValueError as damaged:
        why_not = f"the {CARD} of the base model {label} cannot be read ({damaged})"
        return BaseModel(label, hub, weights, why_not=why_not)
    # A card of ours: the folder is no model of a hub, and the card names the one before it.
    if "memagent" in data and isinstance(data.get("base_model"), str):
        hub = data["base_model"]
        label = f"{name}, which was trained from {hub}"
    why_not = f"the {CARD} of the base model {label} states none"
    return BaseModel(label, hub, weights, _stated(data, f"the {CARD} of {name}"), why_not)


def _from_hub(base: BaseModel) -> BaseModel:
    """Add what the base model's card on the hub states."""
    from huggingface_hub.errors import HTTPError  # of httpx, for a connection that is refused or dropped

    name = base.hub
    try:
        data = card_data(name)
    except (OSError, ValueError, HTTPError) as failure:
        return replace(base, why_not=f"the card of {name} cannot be read from the hub ({type(failure).__name__})")
    return replace(base, licence=_stated(data, f"the card of {name}"), why_not=f"the card of {name} states none")


def _stated(data: ModelCardData, source: str) -> Licence | None:
    licence = data.get("license")
    if not isinstance(licence, str):
        return None
    return Licence(licence.lower(), source, str(data.get("license_name", "")), str(data.get("license_link", "")))
