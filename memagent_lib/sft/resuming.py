"""What a folder of fine-tuning has to continue from: its last whole checkpoint, and the recipe that it was begun with.

This module loads neither torch nor transformers, so that a refusal comes before any work.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memagent_lib.paths import write_atomically
from memagent_lib.provenance import model_hash
from memagent_lib.rl import RunFolder, differences
from memagent_lib.settings import flatten
from memagent_lib.sft.sft_recipe import SftRecipe

RECIPE_FILE = "recipe.json"
WEIGHTS = "weights of model.path"
LESSONS = "the hash of the lessons (data, template, reader and tokenizer)"
FREE = ("model.device", "sft.save_steps", "sft.threads", "tracking.")  # what may differ when a run is resumed


def checkpoints(out: Path) -> Path:
    """Return the folder of checkpoints in the run's folder ``out``."""
    return out / "checkpoints"


def last_checkpoint(out: Path) -> Path | None:
    """Return the last whole checkpoint in ``out``, or ``None`` if there is none yet."""
    # transformers writes this file last, so a checkpoint that a kill cut short has none.
    whole = [file.parent for file in checkpoints(out).glob("checkpoint-*/trainer_state.json")]
    # A copy that somebody made beside it has another name.
    numbered = [folder for folder in whole if folder.name.removeprefix("checkpoint-").isdecimal()]
    return max(numbered, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was saved."""
    return int(checkpoint.name.rpartition("-")[2])


def require_own(out: Path, resume: bool) -> None:
    """Raise ``ValueError`` if ``out`` holds a run to resume, or a model that fine-tuning would replace."""
    reinforced = RunFolder(out).config
    if last_checkpoint(out) and not reinforced.is_file():
        if resume:
            return
        raise ValueError(f"{out} has a run already; continue it with --resume, or choose another --out")
    found = next((path for path in (reinforced, out / "model", out / "adapter") if path.exists()), None)
    if found:
        raise ValueError(
            f"{out} has {found.name} of another run, which fine-tuning would replace; choose another --out"
        )


def save_recipe(recipe: SftRecipe, out: Path, lessons: str) -> None:
    """Save in ``out`` the recipe that a run begins with, and the hashes of the model's weights and of its lessons."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / RECIPE_FILE, json.dumps(_settings(recipe) | {LESSONS: lessons}, indent=2) + "\n")


def checkpoint_to_resume(recipe: SftRecipe, out: Path, lessons: str = "") -> Path | None:
    """Return the last checkpoint in ``out``, or ``None`` if a run has to begin anew.

    Raises ``ValueError``, which names every difference, if the run was begun with another recipe, or with lessons of
    another hash. Without ``lessons``, which take time to make, only the recipe is compared.
    """
    checkpoint = last_checkpoint(out)
    file = out / RECIPE_FILE
    if checkpoint is None or not file.is_file():
        return checkpoint
    before = json.loads(file.read_text(encoding="utf-8"))
    now = _settings(recipe) | {LESSONS: lessons or before.get(LESSONS, lessons)}
    differ = differences({LESSONS: lessons} | before, now, lambda name: name.startswith(FREE))
    if differ:
        raise ValueError(
            f"--resume continues the run in {out} as it began, and the recipe differs: {'; '.join(differ)}. "
            "Undo that, or start another run with another --out"
        )
    return checkpoint


def _settings(recipe: SftRecipe) -> dict[str, Any]:
    settings = flatten(recipe.to_tables()) | {WEIGHTS: model_hash(recipe.model.path)}
    return json.loads(json.dumps(settings))  # as they are read back: lists for tuples
