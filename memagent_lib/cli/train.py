"""``memagent train``, ``follow``, ``stop``, ``resume``, ``export``: train in the background, watch from anywhere."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.cli.arguments import Verbs, add_verb, file_of, look_next, option, switch

if TYPE_CHECKING:
    from memagent_lib.rl import TrainingRun, TrainingStatus

EXAMPLES = """\
examples:
  memagent train RECIPE.toml train.seed=1 verl.actor_rollout_ref.rollout.n=16    some settings changed
  memagent train experiments/recipes/7b_8gpu.toml --dry-run      its tokens, hours and bytes, on any machine
  memagent train experiments/recipes/7b_8gpu.toml --out runs/seven --detach
  memagent follow runs/seven                   its progress, from any terminal
  memagent stop runs/seven                     end it after its current step, with a checkpoint
  memagent resume runs/seven                   continue it from there, with the same settings
  memagent export runs/seven --step 40         make a model folder of a checkpoint, before the run ends
"""
RUN = "the run's folder, as `memagent train` printed it"


def add_parser(verbs: Verbs) -> None:
    summary = "train a model by reinforcement learning, in a background process"
    verb = add_verb(verbs, "train", run, summary, EXAMPLES)
    recipe = "the recipe: model, data, reading and optimisation; see experiments/recipes"
    verb.add_argument("recipe", metavar="FILE.toml", help=recipe)
    verb.add_argument("settings", nargs="*", metavar="table.key=value", help="settings that replace the recipe's")
    option(verb, "--out", "FOLDER", "the run's folder (default: runs/ and the recipe's name)")
    store = "the MLflow store, if the recipe names none: a folder or a server's address"
    option(verb, "--tracking", "STORE", store, default="runs")
    switch(verb, "--dry-run", "print what would be loaded and the plan, after all checks; start nothing")
    switch(verb, "--resume", "continue from the folder's last checkpoint")
    switch(verb, "--detach", "return at once; watch the run with: memagent follow FOLDER")
    for name, act, summary in (
        ("follow", follow, "show the progress of a training run until it ends"),
        ("stop", stop, "end a training run after its current step, with a checkpoint to resume from"),
        ("resume", resume, "continue a stopped training run from its last checkpoint, in the background"),
    ):
        verb = add_verb(verbs, name, act, summary)
        verb.add_argument("folder", metavar="FOLDER", help=RUN)
    summary = "make a model folder of a run's checkpoint; a run that finishes does so by itself"
    verb = add_verb(verbs, "export", export, summary)
    verb.add_argument("folder", metavar="FOLDER", help=RUN)
    option(verb, "--step", "N", "the checkpoint's step (default: the last one's)")
    option(verb, "--out", "FOLDER", "the model folder to write (default: step_N/model in the run's folder)", default="")


def run(a: argparse.Namespace) -> int:
    from memagent_lib import panel
    from memagent_lib.paths import absolute, display
    from memagent_lib.rl import launch, require_training
    from memagent_lib.tracking import Experiment

    recipe = file_of("train", a.recipe)
    require_training()  # before anything is printed or an MLflow store is made
    if a.dry_run:
        _print_loaded(recipe, a.settings)  # first, because loading the recipe runs its reader's file
    config = panel.load_recipe(recipe, a.settings)
    out = absolute(a.out or f"runs/{Path(a.recipe).stem}")
    if a.dry_run:
        from memagent_lib.rl import PlanError, dry_run

        plan = dry_run(config, out, a.resume)
        try:
            plan.check()
        except PlanError:  # what does not fit is in the plan's lines; too few examples for a step leave no plan
            print("\n".join(plan.lines()))
            raise
        print("\n".join(plan.lines()))
        missing = [file for file in (*config.data.files, *config.data.eval) if not Path(file).is_file()]
        if missing:
            named = ", ".join(display(Path(file)) for file in missing)
            look_next(command=f"make or fetch {named}; then the same command without --dry-run starts the training")
        else:
            look_next(command="the same command without --dry-run starts the training")
        return 0
    experiment = Experiment.open(config.tracking.uri or a.tracking, experiment=config.tracking.experiment)
    # Resolved here, so that the detached process does not depend on this working directory.
    config = replace(config, tracking=replace(config.tracking, uri=experiment.uri))
    started = launch(config, out, resume=a.resume)
    print(f"training in {started.folder.path}; it continues when this terminal closes")
    if a.detach:
        look_next(command=f"memagent follow {shlex.quote(display(out))}")
        return 0
    print("Ctrl-C stops it after its current step and a checkpoint; --resume continues from there", flush=True)
    return _ended(started, panel.watch(started, stop_on_interrupt=True))


def _ended(run: TrainingRun, status: TrainingStatus) -> int:
    """Print how a run ended and where to look next; return the exit status."""
    from memagent_lib import panel
    from memagent_lib.paths import display
    from memagent_lib.tracking import Experiment, TrackingError

    print(panel.outcome(status), flush=True)
    tracking = run.folder.recipe()[0].tracking
    mlflow = ""
    if status.mlflow_run and tracking.uri:
        with suppress(TrackingError):  # the run has ended well, even if its server is gone by now
            mlflow = Experiment.open(tracking.uri, tracking.experiment).join(status.mlflow_run).page
    command = f"memagent resume {shlex.quote(display(run.folder.path))}"
    if status.state == "finished":
        command = _evaluate(display(run.folder.model))
    look_next(mlflow=mlflow, command=command)
    return 0


def _print_loaded(recipe: str, settings: Sequence[str]) -> None:
    from memagent_lib.paths import absolute
    from memagent_lib.rl import loaded_by, recipe_tables

    for setting, value in loaded_by(recipe_tables(absolute(recipe), settings)):
        print(f"loads       {setting} = {value}")


def follow(a: argparse.Namespace) -> int:
    from memagent_lib import panel

    run = panel.attach(a.folder)
    return _ended(run, panel.watch(run))


def stop(a: argparse.Namespace) -> int:
    from memagent_lib import panel

    run = panel.attach(a.folder)
    return _ended(run, run.stop(until_resumed=True))


def resume(a: argparse.Namespace) -> int:
    from memagent_lib import panel

    run = panel.resume(a.folder)
    print(f"training in {run.folder.path}")
    look_next(command=f"memagent follow {shlex.quote(a.folder)}")
    return 0


def export(a: argparse.Namespace) -> int:
    from memagent_lib.paths import display
    from memagent_lib.rl import export_checkpoint

    model = display(export_checkpoint(a.folder, a.step, a.out))
    print(model)
    look_next(command=_evaluate(model))
    return 0


def _evaluate(model: str) -> str:
    """Return the command that evaluates a model."""
    return f"memagent evaluate DATA.parquet --model {shlex.quote(model)} --out FOLDER"
