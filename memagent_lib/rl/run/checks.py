"""Find what would end a run before any process starts: leftovers, missing files, or too small a window.

The checks load neither torch nor verl. They count the tokens of prompts with the policy's tokenizer.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path

from memagent_lib.backends import trained_window
from memagent_lib.models import find_model, require_adapter_of, shapes_of
from memagent_lib.paths import absolute, input_path
from memagent_lib.plugins import absolute_plugin, is_plugin
from memagent_lib.prompts import Encoder, template_path
from memagent_lib.rl.config import ModelConfig, Recipe, differences
from memagent_lib.rl.run.data_check import checked_data
from memagent_lib.rl.run.training_run import RunError
from memagent_lib.rl.run_folder import STATUS_FILE, Checkpoint, RunFolder, TrainingState
from memagent_lib.rl.verl.verl_keys import (
    ACTOR,
    ADAPTER,
    FINAL_LR,
    KL_LOSS,
    LORA_ALPHA,
    LORA_RANK,
    MAX_MODEL_LEN,
    MINI_BATCH,
    MODEL,
    NODES,
    ROLLOUT,
    ROLLOUTS,
    STEPS,
    WORKERS,
)
from memagent_lib.rl.verl.verl_settings import encoder_of
from memagent_lib.settings import SettingsError, flatten
from memagent_lib.system import require_packages
from memagent_lib.tokenizer import looks_like_path

# What may differ when a run is resumed: where it runs and is tracked, and what is measured and saved.
FREE = (
    "model.device",
    "data.bad_examples",
    "data.eval",
    "train.failed_share",
    "train.hang_minutes",
    "train.keep_checkpoints",
    "train.stop_unhealthy",
    "train.traces_per_step",
    "cluster.",
    "tracking.",
)
# Of verl's settings, what may not: the objective, the adapters, the batch, the sampler and the number of workers.
FIXED_IN_VERL = (
    "algorithm.",
    "data.",
    f"{ACTOR}.clip_ratio",
    f"{ACTOR}.entropy_coeff",
    f"{ACTOR}.fsdp_config.fsdp_size",
    f"{ACTOR}.kl_loss",
    f"{ACTOR}.loss_",
    f"{ACTOR}.optim",
    f"{ACTOR}.policy_loss",
    f"{ACTOR}.ppo_epochs",
    KL_LOSS,
    f"{MODEL}.exclude_modules",
    f"{MODEL}.lora",
    f"{MODEL}.target_modules",
    f"{ROLLOUT}.temperature",
    f"{ROLLOUT}.top_",
    MINI_BATCH,
    ROLLOUTS,
    NODES,
    WORKERS,
)
VALIDATION = "data.val_"


def require_training() -> None:
    """Raise :class:`MissingPackage` unless everything that plans and trains is installed."""
    require_packages("training", "verl", "vllm", "torch", "ray", "transformers")


def resolved(recipe: Recipe, folder: RunFolder) -> Recipe:
    """Return the recipe with absolute paths and a named tracking store, so that the working directory is irrelevant."""
    data = recipe.data.with_paths(lambda path: str(absolute(path)))
    tracking = recipe.tracking
    reading = recipe.reading
    model = recipe.model.with_paths(_located)
    if not tracking.uri:
        tracking = dataclasses.replace(tracking, uri=f"sqlite:///{folder.path.parent / 'mlflow.db'}")
    if reading.template.endswith(".toml"):
        reading = dataclasses.replace(reading, template=str(template_path(reading.template).absolute()))
    if is_plugin(reading.reader):
        reading = dataclasses.replace(reading, reader=absolute_plugin(reading.reader))
    verl = dict(recipe.verl)
    if recipe.adapter:
        verl[ADAPTER] = str(absolute(recipe.adapter))
    return dataclasses.replace(recipe, data=data, model=model, tracking=tracking, reading=reading, verl=verl)


def _located(model: str) -> str:
    path = input_path(model)
    return str(path) if looks_like_path(model) and not path.exists() else find_model(model)


def checked(recipe: Recipe, folder: RunFolder, resume: bool) -> Recipe:
    """Check a recipe and its folder; return the recipe with only usable data (:mod:`memagent_lib.rl.run.data_check`).

    Raises :class:`SettingsError`, :class:`BudgetError` or :class:`RunError` if the run could not finish.
    """
    check_leftovers(folder, resume)
    for path in (*recipe.data.files, *recipe.data.eval):
        if not Path(path).is_file():
            make = f"memagent data TASK --out {shlex.quote(str(path))}, or the command in the recipe's first lines"
            raise SettingsError(f"no examples at {path}; make some with: {make}")
    encoder = models_checked(recipe)
    recipe = checked_data(recipe, encoder, folder)
    last = folder.latest_checkpoint() if resume else None
    if last:
        _check_unchanged(recipe, folder)
        _name_foreign_files(last)
    return recipe


def models_checked(recipe: Recipe) -> Encoder:
    """Check the models and adapter of a recipe, and its window; return the encoder of its prompts."""
    encoder = window_checked(recipe)
    _check_average(recipe.model)
    _check_adapter(recipe)
    return encoder


def window_checked(recipe: Recipe) -> Encoder:
    """Check that the recipe's longest prompt and reply fit the window; return the encoder of its prompts.

    Raises :class:`BudgetError` if they exceed the window of the model or of verl's rollouts, and
    :class:`SettingsError` if there is no model.
    """
    model = recipe.model.path
    if looks_like_path(model) and not (Path(model) / "config.json").is_file():
        raise SettingsError(
            f"no model at {model}: the folder must hold config.json, a tokenizer and weights, or an adapter"
        )
    encoder = encoder_of(recipe)
    encoder.require_window(trained_window(model), f"the model {model}")
    chosen = recipe.verl.get(MAX_MODEL_LEN)
    if chosen is not None:
        encoder.require_window(chosen, f"verl's {MAX_MODEL_LEN}")
    return encoder


def active(folder: RunFolder) -> RunError:
    """Return the error for a folder in which a run is active."""
    return RunError(f"a run is active in {folder.path}; attach to it, stop it, or choose another folder")


def _check_unchanged(recipe: Recipe, folder: RunFolder) -> None:
    """Raise :class:`RunError` unless a resumed run has the same model, workers, data and objective as before."""
    before = flatten(folder.recipe()[0].to_tables())
    differ = differences(before, flatten(recipe.to_tables()), lambda name: _may_differ(name, recipe))
    differ += folder.changed_inputs(recipe.reading)
    if differ:
        raise RunError(
            f"--resume continues the run in {folder.path} as it began, and the recipe differs: {'; '.join(differ)}. "
            "Undo that, or start another run in another folder"
        )


def _may_differ(name: str, recipe: Recipe) -> bool:
    if not name.startswith("verl."):
        return name.startswith(FREE)
    setting = name.removeprefix("verl.").lstrip("+")
    if setting == STEPS:  # with a falling rate, the number of steps is a part of the objective
        return recipe.verl[FINAL_LR] == 1
    return setting.startswith(VALIDATION) or not setting.startswith(FIXED_IN_VERL)


def _name_foreign_files(checkpoint: Checkpoint) -> None:
    """Print a warning if another user owns a file of the checkpoint: verl unpickles it, which can run any code."""
    for path in (checkpoint.folder, *sorted(checkpoint.folder.rglob("*"))):
        owner = path.stat(follow_symlinks=False).st_uid
        if owner != os.getuid():
            print(
                f"warning: {path} belongs to another user (id {owner}); verl unpickles optimizer and loader states, "
                "which runs whatever code they contain, as you; resume only what you trust",
                flush=True,
            )
            return


def check_leftovers(folder: RunFolder, resume: bool) -> None:
    """Raise :class:`RunError` if a new run would replace what the folder has: a model, or a run not to ``resume``."""
    if not folder.is_run:
        if folder.model.exists():
            raise RunError(
                f"{folder.path} holds a model of another run, which training would replace; choose another folder"
            )
        # The configuration may be another program's. From checkpoints verl would continue, whatever recipe they are of.
        found = folder.checkpoints.name if folder.whole_checkpoints() else folder.config.name
        if (folder.path / found).exists():
            raise RunError(
                f"{folder.path} has {found} and no {STATUS_FILE}, so nothing says what run that is of; choose another "
                f"folder, or remove {found} if a start was cut short or half of a run was copied"
            )
        return
    if resume:
        return
    status = folder.status()
    if not status.state.over:
        raise active(folder)
    last = folder.latest_checkpoint()
    at = "without a checkpoint"
    if last:
        at = f"with a checkpoint of step {last.step}"
    advice = "choose another folder"
    if status.state is not TrainingState.FINISHED:
        advice = f"resume it (--resume), or {advice}"
    raise RunError(f"{folder.path} holds a run that {status.state} {at}; {advice}")


def _check_average(model: ModelConfig) -> None:
    if not model.average_with:
        return
    shapes = shapes_of(Path(model.path))
    others = shapes_of(Path(model.average_with))
    if not shapes or shapes != others:
        differ = [name for name in sorted(shapes.keys() | others.keys()) if shapes.get(name) != others.get(name)]
        first = ""
        if differ:
            first = f"; {differ[0]} has {others.get(differ[0])} and {shapes.get(differ[0])}"
        raise SettingsError(
            "model.average_with must be a folder with weights (safetensors) of the same names and shapes as "
            f"model.path, got {model.average_with} for {model.path}{first}"
        )


def _check_adapter(recipe: Recipe) -> None:
    """Check that the adapter to train on belongs to the model, and is of the size that the plan counts with."""
    if not recipe.adapter:
        return
    adapter = require_adapter_of(Path(recipe.model.path), Path(recipe.adapter))
    for setting, key in ((LORA_RANK, "r"), (LORA_ALPHA, "lora_alpha")):
        given = recipe.verl.get(setting)
        if given != adapter.get(key):
            raise SettingsError(
                f"verl.{setting} must be {adapter.get(key)}, as in the adapter {recipe.adapter}, got {given}"
            )
