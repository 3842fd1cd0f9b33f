"""Start a run or find one, and wait for it: what notebooks and the command share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from memagent_lib import rl
from memagent_lib.errors import MissingFile
from memagent_lib.panel.progress import kept_config
from memagent_lib.paths import absolute, model_path
from memagent_lib.processes import Terminated, terminable
from memagent_lib.rl import Recipe, RunFolder, TrainingRun, TrainingState, TrainingStatus, launch, resolved
from memagent_lib.tracking import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def load_recipe(recipe: str | Path, settings: Sequence[str] = ()) -> Recipe:
    """A training recipe with ``table.key=value`` settings on top, its paths relative to the repository's root."""
    config = Recipe.load(absolute(recipe), settings)
    data = config.data.with_paths(lambda path: str(absolute(path)))
    return replace(config, data=data, model=config.model.with_paths(model_path))


def attach(folder: str | Path) -> TrainingRun:
    """The run in a folder. Where there is none, the error names the runs nearby."""
    path = absolute(folder)
    try:
        return rl.attach(path)
    except FileNotFoundError:
        near = sorted({str(f.parent) for at in (path, path.parent) for f in at.glob("*/status.json")})
        there = f"; runs nearby: {', '.join(near)}" if near else ""
        raise MissingFile(
            f"no training run at {path}; `memagent train` or notebook 04_train starts one{there}"
        ) from None


def begin(config: Recipe, folder: str | Path, stop_at_exit: bool = False) -> TrainingRun:
    """Start the run, or attach to what is in the folder: a run that is active or finished with this very config; else
    resume it.

    Where a run is tracked makes it no other run. A run of another config in the folder is the launcher's error. With
    ``stop_at_exit`` the run does not outlive this process, wherever that is interrupted.
    """
    files = RunFolder(absolute(folder))
    if not files.config.is_file():
        return launch(config, files.path, stop_at_exit=stop_at_exit)
    run = attach(files.path)
    if kept_config(files) | {"tracking": {}} != resolved(config, files).to_tables() | {"tracking": {}}:
        return launch(config, files.path)
    state = run.status().state
    if not state.over and files.stop_request.exists():  # on its way to a checkpoint, from which to go on
        *_, last = run.follow()
        state = last.state
    if state.over and state is not TrainingState.FINISHED:
        return launch(config, files.path, resume=True, stop_at_exit=stop_at_exit)
    if stop_at_exit:
        run.stop_at_exit()
    return run


def watch(run: TrainingRun, stop_on_interrupt: bool = False) -> TrainingStatus:
    """Show progress until the run is over, as a bar in a terminal and elsewhere as a line per event; returns its last
    status. Interrupting this only stops watching, unless told otherwise; with ``stop_on_interrupt`` SIGTERM, which is
    how schedulers end a job, stops the run after a checkpoint as Ctrl-C does.

    Raises the launcher's ``RunError`` when the run did not finish.
    """
    from tqdm import tqdm

    status, told = run.status(), ""
    bar = tqdm(total=status.steps, initial=status.step, unit="step", disable=None)
    with bar, terminable() if stop_on_interrupt else nullcontext():
        try:
            for status in run.follow():
                line = outcome(status)
                bar.update(status.step - bar.n)
                bar.set_description_str(str(status.state), refresh=False)
                bar.set_postfix_str(line.partition(", ")[2])
                if bar.disable and line != told and not status.state.over:  # a file, or a notebook under papermill
                    print(told := line, flush=True)
        except (KeyboardInterrupt, Terminated):
            if stop_on_interrupt:
                _stop(run)
            raise
    return run.wait()


def outcome(status: TrainingStatus) -> str:
    """How a run stands, in a line."""
    reward = "" if status.reward is None else f", reward {status.reward:.3f}"
    retried = f", {status.retried:,} rollouts failed once" if status.retried else ""
    error = f", {status.error}" if status.error else ""
    return f"{status.state}: step {status.step} of {status.steps}{reward}{retried}{error}"


def _stop(run: TrainingRun) -> None:
    """Stop a run after its step; who interrupts the waiting is asked whether that is worth the step."""
    try:
        run.stop()
    except KeyboardInterrupt:
        if not sys.stdin.isatty() or input("end it now, and lose the step it is in? [y/N] ").strip().lower() != "y":
            raise  # it stops by itself
        run.stop(now=True)


def curve(run: TrainingRun) -> pd.DataFrame:
    """A run's metrics over steps in long form (``run_id, metric, step, value``), from its own files."""
    name = run.status().mlflow_run or run.folder.path.name
    rows = [(name, metric, row["step"], value) for row in run.folder.rows() for metric, value in row["metrics"].items()]
    return pd.DataFrame(rows, columns=["run_id", "metric", "step", "value"]).astype({"metric": str})


def log_training(experiment: Experiment, run_id: str, training: TrainingRun, figure: Figure) -> None:
    """Add the curves to the MLflow run, as a figure and as the table ``curve.parquet``. Where the notebook was
    given another run (the training was there before it), that one gets the metrics too, and the training's id as a tag.

    A run that is only just starting has no entry in MLflow yet; then there is nothing to add to.
    """
    if not (own := training.status().mlflow_run):
        return
    curves = curve(training)
    for run in map(experiment.join, dict.fromkeys((own, run_id or own))):
        run.figure(figure, "reward.png")
        run.table(curves, "curve.parquet")
    if run_id and run_id != own:
        run.tags({"train_run": own})
        for row in training.folder.rows():
            run.metrics(row["metrics"], row["step"])
