"""Start or find a run and wait for it, for notebooks and the command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from memagent_lib.models import find_model
from memagent_lib.pages import Page
from memagent_lib.panel.progress import outcome, report, run_of
from memagent_lib.paths import absolute, display, input_path
from memagent_lib.rl import (
    Recipe,
    RunError,
    RunFolder,
    TrainingRun,
    TrainingState,
    TrainingStatus,
    attach,
    launch,
    resolved,
)
from memagent_lib.system import Terminated, in_jupyter, terminable
from memagent_lib.tracking import Experiment, TrackingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from memagent_lib.panel.training_panel import TrainingPanel


def load_recipe(recipe: str | Path, settings: Sequence[str] = ()) -> Recipe:
    """Load a training recipe and apply ``table.key=value`` settings to it.

    Relative paths, the recipe's own and those in it, are found by :func:`~memagent_lib.paths.input_path`.
    """
    config = Recipe.load(input_path(recipe), settings)
    data = config.data.with_paths(lambda path: str(input_path(path)))
    return replace(config, data=data, model=config.model.with_paths(find_model))


def begin(config: Recipe, folder: str | Path, stop_at_exit: bool = False) -> TrainingRun:
    """Start a run in ``folder``; if there is one, attach to it if it is active or finished, else resume it.

    A run that a person has stopped stays stopped. A run in the folder must have this configuration, except for its
    tracking store; otherwise the launcher raises an error. Raises :class:`RunError` if the template, the reader, the
    training files or the first weights that are there now are not the run's. With ``stop_at_exit`` the run is stopped
    when this process ends, wherever it is interrupted.
    """
    files = RunFolder(absolute(folder))
    if not files.config.is_file():
        return launch(config, files.path, stop_at_exit=stop_at_exit)
    run = attach(files.path)
    if files.record()["config"] | {"tracking": {}} != resolved(config, files).to_tables() | {"tracking": {}}:
        return launch(config, files.path)  # raises, because the folder has another run
    state = run.status().state
    if files.stays_stopped and state is not TrainingState.FINISHED:
        print(f"the run was stopped on request; `memagent resume {shlex.quote(display(files.path))}` continues it")
        return run
    if not state.over and files.stop_request.exists():  # the run is stopping; wait for the checkpoint to resume from
        *_, last = run.follow()
        state = last.state
    if state.over and state is not TrainingState.FINISHED:
        return launch(config, files.path, resume=True, stop_at_exit=stop_at_exit)
    changed = files.changed_inputs(resolved(config, files))
    if changed:
        fix = "to train with what is there now, choose another folder or delete this one"
        raise RunError(f"the run in {files.path} is {state}, and {'; '.join(changed)}; {fix}")
    if stop_at_exit:
        run.stop_at_exit()
    return run


def show(run: TrainingRun | str | Path) -> TrainingPanel | Page:
    """Return the panel of a run, or of the run in a folder. Until it is closed, every call returns the same panel.

    Outside Jupyter, for example when papermill executes the notebook, a page of the run's current state is returned
    instead, because widgets do not outlive their kernel.
    """
    if not in_jupyter():
        return report(run)
    from memagent_lib.panel.training_panel import panel_of  # loads ipywidgets, which a page does not need

    return panel_of(run_of(run).folder)


def settle(run: TrainingRun, stop_on_interrupt: bool = False) -> TrainingStatus:
    """Wait with :func:`watch` until the run is over and return its status; in Jupyter, return the status at once.

    In Jupyter a cell must not wait, because a reopened tab displays its widgets only while the kernel is idle.
    """
    return run.status() if in_jupyter() else watch(run, stop_on_interrupt)


def watch(run: TrainingRun, stop_on_interrupt: bool = False) -> TrainingStatus:
    """Display a progress bar, or outside a terminal a line per change, until the run is over; return its last status.

    Interrupting this call only stops watching. With ``stop_on_interrupt``, Ctrl-C or SIGTERM (a scheduler's signal to
    end a job) stops the run after a checkpoint. Raises ``RunError`` if the run did not finish.
    """
    from tqdm import tqdm

    status = run.status()
    printed = ""
    # disable=None: tqdm draws the bar only on a terminal.
    bar = tqdm(total=status.steps, initial=status.step, unit="step", disable=None)
    with bar, terminable() if stop_on_interrupt else nullcontext():
        try:
            for status in run.follow():
                line = outcome(status)
                bar.set_postfix_str(line.partition(", ")[2], refresh=False)
                bar.update(status.step - bar.n)
                if bar.disable and line != printed and not status.state.over:  # a file, or a notebook under papermill
                    print(line, flush=True)
                    printed = line
        except (KeyboardInterrupt, Terminated):
            if stop_on_interrupt:
                run.stop()
            raise
    return run.wait()


def curve(run: TrainingRun) -> pd.DataFrame:
    """Return a run's metrics at each step in long form, from the run's own files.

    Columns: ``run_id, metric, step, value``.
    """
    name = run.status().mlflow_run or run.folder.path.name
    rows = [(name, metric, row["step"], value) for row in run.folder.rows() for metric, value in row["metrics"].items()]
    return pd.DataFrame(rows, columns=["run_id", "metric", "step", "value"]).astype({"metric": str})


def log_training(experiment: Experiment, run_id: str, training: TrainingRun, figure: Figure) -> None:
    """Log the curves to the training's MLflow run, as ``figure`` and as the table ``curve.parquet``.

    If a notebook joined an existing training, ``run_id`` is the notebook's own MLflow run. That run gets the figure,
    the table and the metrics too, and the training's id as a tag. Nothing is logged if the training is still starting
    and has no MLflow run yet, and nothing to a training's run that was deleted or is in another store.
    """
    own = training.status().mlflow_run
    if not own:
        return
    curves = curve(training)
    runs = [experiment.join(run_id)] if run_id else []
    if run_id != own:
        with suppress(TrackingError):
            runs.append(experiment.join(own))
    for run in runs:
        run.figure(figure, "reward.png")
        run.table(curves, "curve.parquet")
    if run_id and run_id != own:
        run.tags({"train_run": own})
        for row in training.folder.rows():
            run.metrics(row["metrics"], row["step"])
