"""Find what would end a run before any process starts, and describe the run: the checks and ``--dry-run``.

A run needs data that is there and that its judge can score, a window that holds its prompts, an adapter of its model,
a configuration that verl accepts, and a folder of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memagent_lib.backends import trained_window
from memagent_lib.data import Example, count, is_as_saved, stream_records
from memagent_lib.errors import nearest_path
from memagent_lib.models import find_model, require_adapter_of, shapes_of
from memagent_lib.paths import absolute, input_path
from memagent_lib.plugins import absolute_plugin, is_plugin
from memagent_lib.prompts import BudgetError, Encoder, template_path
from memagent_lib.rl.config import Recipe, differences
from memagent_lib.rl.run_folder import RunError, RunFolder
from memagent_lib.rl.verl.verl_keys import ADAPTER, FINAL_LR, LORA_RANK, MAX_MODEL_LEN, MICRO_BATCH, STEPS
from memagent_lib.rl.verl.verl_settings import compose, validate, verl_settings
from memagent_lib.scoring import score
from memagent_lib.settings import SettingsError, flatten
from memagent_lib.system import require_packages
from memagent_lib.tokenizer import looks_like_path
from memagent_lib.trace import Kind, Prompt

MOST_NAMED = 5
# What a resumed run may change: where it runs and is tracked, and what is measured, saved and how long.
FREE = (
    "model.device",
    "data.eval",
    "train.keep_checkpoints",
    "cluster.",
    "tracking.",
    "verl.data.val_",
    "verl.trainer.",
    f"verl.{MICRO_BATCH}",
    "verl.actor_rollout_ref.rollout.",
)
FIXED = (
    "verl.trainer.n",  # nnodes and n_gpus_per_node: which rank gets which row
    "verl.actor_rollout_ref.rollout.n",
    "verl.actor_rollout_ref.rollout.temperature",
    "verl.actor_rollout_ref.rollout.top_",
)


def require_training() -> None:
    """Raise :class:`MissingPackage` unless everything that trains is installed."""
    require_packages("training", "verl", "vllm", "torch", "ray", "transformers")


def chosen_device(device: str) -> str:
    """Return the device to train on. ``auto`` is ``cuda`` if torch was built for CUDA and finds a GPU, else ``cpu``."""
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def resolved(recipe: Recipe, folder: RunFolder) -> Recipe:
    """Return the recipe with absolute paths and a named tracking store, so that the working directory is irrelevant."""
    tracking, reading, verl = recipe.tracking, recipe.reading, dict(recipe.verl)
    if not tracking.uri:
        tracking = dataclasses.replace(tracking, uri=f"sqlite:///{folder.path.parent / 'mlflow.db'}")
    if reading.template.endswith(".toml"):
        reading = dataclasses.replace(reading, template=str(template_path(reading.template).absolute()))
    if is_plugin(reading.reader):
        reading = dataclasses.replace(reading, reader=absolute_plugin(reading.reader))
    if recipe.adapter:
        verl[ADAPTER] = str(absolute(recipe.adapter))
    rewards = {absolute_plugin(name) if is_plugin(name) else name: each for name, each in recipe.rewards.items()}
    data = recipe.data.with_paths(lambda path: str(absolute(path)))
    model = recipe.model.with_paths(_located)
    return dataclasses.replace(
        recipe, data=data, model=model, tracking=tracking, reading=reading, rewards=rewards, verl=verl
    )


def _located(model: str) -> str:
    path = input_path(model)
    return str(path) if looks_like_path(model) and not path.exists() else find_model(model)


def check(recipe: Recipe, folder: RunFolder, device: str, resume: bool, without_data: bool = False) -> Any:
    """Check a resolved recipe and its folder, and return verl's whole configuration.

    Raises :class:`SettingsError`, :class:`BudgetError` or :class:`RunError` if the run could not finish. With
    ``without_data``, files of examples may be missing, and a model to average with.
    """
    check_leftovers(folder, resume)
    for path in (*recipe.data.files, *recipe.data.eval):
        if Path(path).is_file():
            check_data(path, recipe)
        elif not without_data:
            raise SettingsError(f"no examples at {path}; the recipe begins with how to make them{nearest_path(path)}")
    if resume and folder.latest_checkpoint():
        _check_unchanged(recipe, folder)
    model = recipe.model.path
    if recipe.adapter:
        rank = require_adapter_of(Path(model), Path(recipe.adapter))["r"]
        if recipe.verl.get(LORA_RANK) != rank:
            raise SettingsError(f"verl.{LORA_RANK} must be {rank}, as in the adapter {recipe.adapter}")
    average_with = Path(recipe.model.average_with)
    if recipe.model.average_with and (average_with.exists() or not without_data):
        others = shapes_of(average_with)
        own = shapes_of(Path(model)).items()
        if not others or any(others.get(name) != shape for name, shape in own if not name.endswith("lm_head.weight")):
            raise SettingsError(f"model.average_with must be a folder with the weights of model.path = {model}")
    encoder = recipe.encoder()
    encoder.require_window(trained_window(model), f"the model {model}")
    verl = compose(verl_settings(recipe, folder, device))
    for name in (MAX_MODEL_LEN, *([MICRO_BATCH] if verl.actor_rollout_ref.model.use_remove_padding else [])):
        if name in recipe.verl:
            encoder.require_window(recipe.verl[name], f"verl.{name}")
    validate(verl)
    return verl


def check_leftovers(folder: RunFolder, resume: bool) -> None:
    """Raise :class:`RunError` if a new run would replace what the folder has: a model, or a run not to ``resume``."""
    if folder.is_run:
        if not resume:
            state = folder.status().state
            raise RunError(f"{folder.path} has a run ({state}); attach to it, resume it, or choose another folder")
    elif folder.model.exists() or folder.config.exists() or folder.whole_checkpoints():
        raise RunError(f"{folder.path} has files of a run and no status.json; choose another folder")


def _check_unchanged(recipe: Recipe, folder: RunFolder) -> None:
    """Raise :class:`RunError` unless a resumed run has the same model, workers, data and objective as before."""
    before = flatten(folder.recipe()[0].to_tables())
    # With a falling rate, the number of steps is a part of the objective.
    fixed = FIXED if recipe.verl[FINAL_LR] == 1 else (*FIXED, f"verl.{STEPS}")
    now = flatten(recipe.to_tables())
    differ = differences(before, now, lambda name: name.startswith(FREE) and not name.startswith(fixed))
    differ += folder.changed_inputs(recipe)
    if differ:
        fix = f"undo that, or train a new run from its last checkpoint (`memagent export {folder.path}`)"
        raise RunError(f"--resume continues a run as it began, but {'; '.join(differ)}; {fix}")


def check_data(path: str, recipe: Recipe) -> None:
    """Raise :class:`SettingsError` if a file has an example that cannot be trained on.

    In such an example the question exceeds its budget, or the judge scores even a correct answer as 0.
    """
    if not count(path):
        raise SettingsError(f"{path} has no examples")
    if not is_as_saved(path):
        raise SettingsError(f"{path} has other columns than `memagent data` writes; convert it with --from plain")
    encoder = recipe.encoder()
    bad = []
    for record in stream_records(path):
        reason = _fault(record, encoder)
        if reason:
            bad.append(f"{record['extra_info']['id']!r}: {reason}")
    if bad:
        raise SettingsError(f"{path}: {len(bad):,} of {count(path):,} examples unfit: {'; '.join(bad[:MOST_NAMED])}")


def _fault(record: dict[str, Any], encoder: Encoder) -> str:
    """Return why an example cannot be trained on, or "" if it can. Its document is not read."""
    try:
        example = Example.from_record(record | {"document": ""})
        # Only the question can be too long: a document is cut into chunks, and a memory has its own limit.
        encoder.encode(Prompt(Kind.ANSWER, example.question, ""))
    except (BudgetError, ValueError) as error:
        return str(error)
    for answer in (*example.answers, ", ".join(example.answers)):
        for reply in (f"\\boxed{{{answer}}}", answer):
            ids = encoder.tokenizer.encode(reply)[: encoder.budget.answer_tokens]  # as an engine would truncate it
            if score(example.rule, encoder.tokenizer.decode(ids), example.answers).value > 0:
                return ""
    return f"its judge {example.rule!r} accepts no reply of answer_tokens with its answer {example.answers[0][:80]!r}"


def dry_run(recipe: Recipe, run_folder: str | Path, resume: bool = False) -> Iterator[str]:
    """Check a run as far as its data is here, and yield lines about it. No process is started.

    The device ``auto`` is composed as CUDA.
    """
    require_training()
    folder = RunFolder(absolute(run_folder))
    recipe = resolved(recipe, folder)
    device = "cpu" if recipe.model.device == "cpu" else "cuda"
    verl = check(recipe, folder, device, resume, without_data=True)
    actor = verl.actor_rollout_ref.actor
    yield f"model    {recipe.model.path} on {recipe.nodes * recipe.workers} x {device}"
    yield f"window   {recipe.encoder().window:,} tokens; micro-batches of {actor.ppo_max_token_len_per_gpu:,}"
    readings = recipe.prompts * recipe.rollouts
    yield f"a step   {readings:,} readings, {recipe.mini_batches} optimizer steps; {recipe.steps:,} steps"
    for path in (*recipe.data.files, *recipe.data.eval):
        if not Path(path).is_file():
            yield f"missing  {path}; the recipe's first lines have the command that makes it"
