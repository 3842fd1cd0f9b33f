"""The policy to publish: the folder of its weights, and the training run that made it, if that is known."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.errors import MissingFile, UserError, one_line
from memagent_lib.models import is_adapter, weight_files
from memagent_lib.paths import display, input_path
from memagent_lib.provenance import model_hash
from memagent_lib.rl import RunFolder, TrainingState
from memagent_lib.tracking import policy_name

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

CARD = "README.md"
CONFIG = "config.json"
INDEX = "*.safetensors.index.json"
_LENGTH_BYTES = 8  # at the beginning of a safetensors file: the length of its header


class PublishingError(UserError, ValueError):
    """A policy cannot be described or published as it is. The message names what is missing and the fix."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A model folder that transformers loads, and the run folder of the training that exported it, if there is one."""

    folder: Path
    run: RunFolder | None = None

    @classmethod
    def of(cls, path: str | Path) -> Policy:
        """Return the policy at ``path``: the folder of a training run or of ``memagent sft``, or a model folder.

        Raises :class:`MissingFile` if it is neither, and :class:`PublishingError` for an adapter, a run that has not
        finished, and weights that are not complete.
        """
        found = input_path(path)
        run = RunFolder(found)
        if run.is_run:
            policy = _of_run(run)
        else:
            # `memagent sft` exports to a folder of this name too.
            folder = found / "model" if (found / "model" / CONFIG).is_file() else found
            above = RunFolder(folder.parent)
            policy = cls(folder, above if above.is_run and above.model == folder else None)
        if not (policy.folder / CONFIG).is_file():
            _require_no_adapter(found)
            raise MissingFile(
                f"no policy at {display(found)}; name the folder of a training run, or a model folder with {CONFIG} "
                "and weights"
            )
        require_weights(policy.folder)
        return policy

    @property
    def name(self) -> str:
        return self.run.path.name if self.run else policy_name(self.folder)

    @property
    def weights(self) -> str:
        """The hash of the weights, by which evaluations and cards are assigned to a policy."""
        return model_hash(self.folder)

    @property
    def parameters(self) -> int | None:
        """The number of parameters, from the headers of safetensors files; None for other weights."""
        files = [file for file in weight_files(self.folder) if file.suffix == ".safetensors"]
        return sum(math.prod(tensor["shape"]) for file in files for tensor in _tensors_of(file)) or None

    @property
    def started_with(self) -> dict[str, Any]:
        """What the run has recorded at its start: ``config``, ``trained``, ``device``, ``weights``; or else nothing."""
        return self.run.record() if self.run else {}


def _of_run(run: RunFolder) -> Policy:
    status = run.status()
    where = display(run.path)
    if status.state is not TrainingState.FINISHED or not run.model.is_dir():
        fix = "wait for its end" if not status.state.over else f"finish it with: memagent resume {shlex.quote(where)}"
        raise PublishingError(
            f"the run at {where} has no exported policy: it is {status.state} at step {status.step} of "
            f"{status.steps}; {fix}"
        )
    return Policy(run.model, run)


def _require_no_adapter(folder: Path) -> None:
    """Raise :class:`PublishingError` for the folder of an adapter, which lacks the weights of its base model."""
    if is_adapter(folder):
        where = display(folder)
        raise PublishingError(
            f"{where} is an adapter, without its base model's weights; name a folder with the whole model, such as the "
            f"run's own, or upload the adapter itself with `hf upload OWNER/NAME {shlex.quote(where)}`"
        )


def require_weights(folder: Path) -> None:
    """Raise :class:`PublishingError` unless a model folder has weights, all their parts, and each part as a whole."""
    files = weight_files(folder)
    there = {file.name for file in files}
    for index in folder.glob(INDEX):
        try:
            there_should_be = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError):
            raise PublishingError(f"{display(index)} is damaged; export the policy again") from None
        missing = sorted(there_should_be - there)
        if missing:
            raise PublishingError(
                f"{display(folder)} lacks {', '.join(missing)}, which {index.name} names; export it again"
            )
    if not files:
        raise PublishingError(f"{display(folder)} has no weights (*.safetensors or pytorch_model.bin); export it again")
    for file in files:
        if file.suffix == ".safetensors":
            _require_whole(file)


def _require_whole(file: Path) -> None:
    """Raise :class:`PublishingError` if the size of a safetensors file is not what its header states."""
    with open(file, "rb") as content:
        header_bytes = int.from_bytes(content.read(_LENGTH_BYTES), "little")
    stated = _LENGTH_BYTES + header_bytes + max((tensor["data_offsets"][1] for tensor in _tensors_of(file)), default=0)
    size = file.stat().st_size
    if size != stated:
        raise PublishingError(
            f"{display(file)} has {size:,} bytes and its header states {stated:,}, so it is not complete; export the "
            "policy again"
        )


def _tensors_of(file: Path) -> list[dict[str, Any]]:
    """Return the type, shape and position of every tensor in a safetensors file, from its header.

    It is read without the package safetensors, which an installation without engines lacks. Raises
    :class:`PublishingError` if the file does not begin with a header.
    """
    with open(file, "rb") as content:
        header_bytes = int.from_bytes(content.read(_LENGTH_BYTES), "little")
        text = content.read(min(header_bytes, file.stat().st_size))
    try:
        tensors = [tensor for name, tensor in json.loads(text).items() if name != "__metadata__"]
        is_header = all({"shape", "data_offsets"} <= tensor.keys() for tensor in tensors)
    except (ValueError, AttributeError):
        is_header = False
    if not is_header:
        raise PublishingError(f"{display(file)} does not begin as a safetensors file does; export the policy again")
    return tensors


def card_data(card: str | Path) -> ModelCardData:
    """Return the head of a model card, of a file or of a repository on the hub. Raises ``ValueError`` if it is damaged.

    A card without a head has an empty one.
    """
    from huggingface_hub import ModelCard
    from yaml import YAMLError

    try:
        return ModelCard.load(card, ignore_metadata_errors=True).data
    except (ValueError, YAMLError) as damaged:
        raise ValueError(one_line(damaged)) from damaged
