"""``memagent train``, ``follow``, ``stop``, ``resume``, ``export``: train in the background, watch from anywhere."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memagent_lib.cli.options import file_of, look_next, tracking_option

if TYPE_CHECKING:
    from memagent_lib.rl import TrainingRun, TrainingStatus


@click.command()
@click.argument("recipe", metavar="FILE.toml")
@click.argument("settings", metavar="[table.key=value]...", nargs=-1)
@click.option("--out", metavar="FOLDER", help="The run's folder.  [default: runs/ and the recipe's name]")
@tracking_option
@click.option("--dry-run", is_flag=True, help="Check the run, and print its window and steps.")
@click.option("--resume", "resumes", is_flag=True, help="Continue from the folder's last checkpoint.")
@click.option("--detach", is_flag=True, help="Return at once; watch the run with: memagent follow FOLDER.")
def train(
    recipe: str,
    settings: tuple[str, ...],
    out: str | None,
    tracking: str,
    dry_run: bool,
    resumes: bool,
    detach: bool,
) -> int:
    """Train a model by reinforcement learning, in a background process, as the recipe FILE.toml says.

    \b
    examples:
      memagent train RECIPE.toml train.seed=1 verl.actor_rollout_ref.rollout.n=16    some settings changed
      memagent train experiments/recipes/7b_8gpu.toml --dry-run      all checks, on any machine; starts nothing
      memagent train experiments/recipes/7b_8gpu.toml --out runs/seven --detach
      memagent follow runs/seven                   its progress, from any terminal
      memagent stop runs/seven                     end it after its current step, with a checkpoint
      memagent resume runs/seven                   continue it from there, with the same settings
      memagent export runs/seven --step 40         make a model folder of a checkpoint, before the run ends
    """
    from memagent_lib import panel, rl
    from memagent_lib.paths import absolute, display
    from memagent_lib.tracking import Experiment

    file = file_of(recipe)
    rl.require_training()  # before anything is printed or an MLflow store is made
    config = panel.load_recipe(file, settings)
    folder = absolute(out or f"runs/{Path(recipe).stem}")
    if dry_run:
        for line in rl.dry_run(config, folder, resumes):
            print(line)
        look_next(command="the same command without --dry-run starts the training")
        return 0
    experiment = Experiment.open(config.tracking.uri or tracking, experiment=config.tracking.experiment)
    # Resolved here, so that the detached process does not depend on this working directory.
    config = replace(config, tracking=replace(config.tracking, uri=experiment.uri))
    started = rl.launch(config, folder, resume=resumes)
    print(f"training in {started.folder.path}; it continues when this terminal closes")
    if detach:
        look_next(command=f"memagent follow {shlex.quote(display(folder))}")
        return 0
    print("Ctrl-C stops it after its current step and a checkpoint; --resume continues from there", flush=True)
    return _ended(started, panel.watch(started, stop_on_interrupt=True))


def _ended(run: TrainingRun, status: TrainingStatus) -> int:
    """Print how a run ended and what comes next; return the exit status."""
    from memagent_lib import panel
    from memagent_lib.paths import display

    print(panel.outcome(status), flush=True)
    again = f"memagent resume {shlex.quote(display(run.folder.path))}"
    look_next(command=_evaluate(display(run.folder.model)) if status.state == "finished" else again)
    return 0


@click.command()
@click.argument("folder")
def follow(folder: str) -> int:
    """Show the progress of the training run in FOLDER until it ends."""
    from memagent_lib import panel

    run = panel.attach(folder)
    return _ended(run, panel.watch(run))


@click.command()
@click.argument("folder")
def stop(folder: str) -> int:
    """End the training run in FOLDER after its current step, with a checkpoint to resume from."""
    from memagent_lib import panel

    run = panel.attach(folder)
    return _ended(run, run.stop(until_resumed=True))


@click.command()
@click.argument("folder")
def resume(folder: str) -> None:
    """Continue the stopped training run in FOLDER from its last checkpoint, in the background."""
    from memagent_lib import panel

    print(f"training in {panel.attach(folder).resume().folder.path}")
    look_next(command=f"memagent follow {shlex.quote(folder)}")


@click.command()
@click.argument("folder")
@click.option("--step", metavar="N", type=int, help="The checkpoint's step.  [default: the last one's]")
@click.option("--out", metavar="FOLDER", help="The folder to write.  [default: step_N/model in the run's]")
def export(folder: str, step: int | None, out: str | None) -> None:
    """Make a model folder of a checkpoint of the run in FOLDER; a run that finishes does so by itself."""
    from memagent_lib.paths import display
    from memagent_lib.rl import export_checkpoint

    model = display(export_checkpoint(folder, step, out or ""))
    print(model)
    look_next(command=_evaluate(model))


def _evaluate(model: str) -> str:
    """Return the command that evaluates a model."""
    return f"memagent evaluate DATA.parquet --model {shlex.quote(model)} --out FOLDER"
