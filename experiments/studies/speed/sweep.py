"""Measure what sweeps add to papermill, and what traces cost: ``python -m experiments.studies.speed sweep``."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from experiments.studies.speed.material import reading
from experiments.studies.speed.results import Measured, Ratio
from memagent_lib.settings import require_at_least
from memagent_lib.sweeps import SweepSpec, SweepStage, run_sweep
from memagent_lib.tracking import Experiment, load_curve, load_runs
from memagent_lib.tracking.traces import log_traces, search_traces

STEPS = 10
PARAMETERS = (
    'x: int = 0  # which point\nlog: bool = False  # whether to log a curve\ntracking: str = "runs"\nrun_id: str = ""'
)
WORK = f"""if log:
    from memagent_lib.tracking import Experiment
    run = Experiment.open(tracking).join(run_id)
    for step in range({STEPS}):
        run.metrics({{"value": x + step}}, step)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepBench:
    """Sizes of the measurement: ``points`` of an empty notebook, and ``logging_points`` that log a curve.

    ``workers`` points run at a time. ``traces`` readings of ``turns`` turns are logged.
    """

    points: int = 24
    logging_points: int = 200
    workers: int = 4
    traces: int = 200
    turns: int = 17

    def __post_init__(self) -> None:
        require_at_least(self, 0, "points", "logging_points", "traces")
        require_at_least(self, 1, "workers")
        require_at_least(self, 2, "turns")


def bench_sweep(settings: SweepBench, report: Callable[[str], None] = print) -> dict[str, Measured]:
    """Run all measures in a temporary SQLite store and return them by name. A size of 0 skips its measure."""
    s = settings
    found = {}
    wanted = {"overhead": (_overhead, s.points), "rows": (_rows, s.logging_points), "traces": (_traces, s.traces)}
    with tempfile.TemporaryDirectory() as folder:
        Experiment.open(folder)  # creates the store, so that no measurement includes that
        for name, (measure, size) in wanted.items():
            if size:
                report(f"{name}: {inspect.getdoc(measure)} ...")
                found[name] = measure(s, Path(folder))
    return found


def _overhead(s: SweepBench, folder: Path) -> Measured:
    """an empty notebook: papermill alone, and a sweep with its run, states and artifacts"""
    notebook = _notebook(folder)
    started = time.monotonic()
    with ThreadPoolExecutor(s.workers) as pool:
        list(pool.map(lambda x: _papermill(notebook, folder / "alone", x), range(s.points)))
    alone = time.monotonic() - started
    swept, _ = _sweep(s, folder, notebook, s.points, log=False)
    # Workers run side by side, so a point's share of the difference is `workers` times its average.
    each = (swept - alone) * s.workers / s.points
    rows = [{"what": "papermill alone", "seconds": alone}, {"what": "sweep", "seconds": swept}]
    note = f"{s.points} points, {s.workers} at a time: papermill alone {alone:.1f} s, the sweep {swept:.1f} s"
    added = Ratio("overhead", "seconds that the sweep adds to a point", (each,), at_most=3, unit=" s")
    return Measured([added], rows, note)


def _rows(s: SweepBench, folder: Path) -> Measured:
    """every point logs a curve from its own process, all into one SQLite file"""
    seconds, ledger = _sweep(s, folder, _notebook(folder), s.logging_points, log=True)
    runs = load_runs(ledger, "params.log = 'true' AND status = 'FINISHED'")
    there = sum(
        load_curve(ledger.join(run), ["value"])["step"].tolist() == list(range(STEPS)) for run in runs["run_id"]
    )
    lost = s.logging_points - (there if runs["params.x"].nunique() == len(runs) else 0)
    note = f"{s.logging_points} points, {s.workers} at a time, {STEPS} steps each, in {seconds:.0f} s"
    return Measured([Ratio("rows", "points whose run or curve is not whole in MLflow", (lost,), at_most=0)], note=note)


def _traces(s: SweepBench, folder: Path) -> Measured:
    """readings logged as memory traces, a span per turn"""
    run = Experiment.open(folder).start("traces")
    results = [reading(number, s.turns) for number in range(s.traces)]
    log_traces(run, results[:1])  # MLflow imports modules on first use
    started = time.monotonic()
    log_traces(run, results)
    seconds = time.monotonic() - started
    stored = len(search_traces(run.experiment, run=run))  # the first one is the same trace, logged again
    note = f"{stored} traces of {s.turns} turns are in the store when the call returns"
    took = Ratio("traces", f"seconds to log {s.traces} traces", (seconds,), at_most=20, unit=" s")
    return Measured([took], note=note)


def _sweep(s: SweepBench, folder: Path, notebook: str, points: int, log: bool) -> tuple[float, Experiment]:
    stage = SweepStage(name="bench", notebook=notebook, grid={"x": list(range(points))}, parameters={"log": log})
    spec = SweepSpec(
        name="bench", stage=(stage,), folder=str(folder / f"sweep_{log}"), tracking=str(folder), workers=s.workers
    )
    started = time.monotonic()
    result = run_sweep(spec)
    if not result.ok:
        raise RuntimeError(f"a point of the bench failed: {result.frame['error'].dropna().iloc[0]}")
    return time.monotonic() - started, Experiment.open(folder)


def _papermill(notebook: str, folder: Path, x: int) -> None:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "papermill", notebook, str(folder / f"{x}.ipynb"), "-p", "x", str(x)]
    subprocess.run([*command, "--no-progress-bar"], check=True, capture_output=True)


def _notebook(folder: Path) -> str:
    cells = [new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}), new_code_cell(WORK)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = folder / "bench.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return str(path)
