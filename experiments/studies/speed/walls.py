"""Measure how long a person waits, beside the aims: ``python -m experiments.studies.speed walls``.

Each wait is that of a whole command or page, with the start of its processes. Processor seconds are beside the wall
time, because other work on the machine changes them far less.
"""

from __future__ import annotations

import inspect
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from experiments.studies.speed.material import reading
from experiments.studies.speed.results import Measured, Ratio
from memagent_lib.cli.servers import HOST, servers
from memagent_lib.data import make
from memagent_lib.evaluation import Result, save_rows
from memagent_lib.paths import root
from memagent_lib.text import Tokenizer
from memagent_lib.tracking import Experiment, log_results
from memagent_lib.tracking.traces import MAX_TRACES

if TYPE_CHECKING:
    import pandas as pd
    from playwright.sync_api import Browser

POLICY = "experiments/pocket/trained"
TASK = "experiments/pocket/fair_world.py:fair_needle"
LENGTHS = (4, 16, 64)  # in chunks, of the readings that the report and MLflow have
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LOADED_MS = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WallsBench:
    """Sizes: ``documents`` of the quickstart, ``chunks`` of the file that is read, ``readings`` in one store.

    A report is made of these readings, and MLflow lists their traces. Each command runs, and each page is opened,
    ``rounds`` times. A size of 0 skips its measures.
    """

    documents: int = 16
    chunks: int = 36
    readings: int = 2600
    rounds: int = 1


def bench_walls(settings: WallsBench, report: Callable[[str], None] = print) -> dict[str, Measured]:
    """Run all measures in a temporary folder and return them by name."""
    s = settings
    wanted = {
        "quickstart": (_quickstart, s.documents),
        "read": (_read, s.chunks),
        "report": (_report, s.readings),
        "mlflow": (_mlflow, s.readings),
    }
    chromium = _chromium() if s.readings else ""  # a missing browser is an error before the minutes of work
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        if s.readings:
            report(f"logging {s.readings:,} readings, which is not measured ...")
            _log_readings(s.readings, Path(folder))
        for name, (measure, size) in wanted.items():
            if size:
                report(f"{name}: {inspect.getdoc(measure)} ...")
                found[name] = measure(s, Path(folder), chromium)
    return found


def _quickstart(s: WallsBench, folder: Path, _: str) -> Measured:
    """notebook 00 in a new workspace, from its start to the inspector"""
    rows = []
    for round_ in range(s.rounds):
        store = folder / f"quickstart_{round_}"
        chosen = ["-p", "n", str(s.documents), "-p", "tracking", str(store)]
        notebook = ["notebooks/00_quickstart.ipynb", str(folder / "quickstart.ipynb"), "--no-progress-bar"]
        rows.append(_timed("papermill", *notebook, *chosen))
    return Measured([_walls("quickstart", "seconds until the inspector", rows, 60)], rows, _note(rows))


def _read(s: WallsBench, folder: Path, _: str) -> Measured:
    """`memagent read` of one file"""
    tokenizer = Tokenizer.load(POLICY)
    example = next(iter(make(TASK, 1, 0, tokenizer, chunks=s.chunks)))
    file = folder / "file.txt"
    file.write_text(example.document, encoding="utf-8")
    words = ["read", str(file), "--question", example.question, "--model", POLICY]
    rows = [_timed("memagent_lib.cli", *words) for _ in range(s.rounds)]
    return Measured([_walls("read", f"seconds to read {s.chunks} chunks", rows, 40)], rows, _note(rows))


def _report(s: WallsBench, folder: Path, _: str) -> Measured:
    """`memagent report` of all readings"""
    page = folder / "report.html"
    words = ["report", str(folder / "scores"), "--tracking", str(folder / "store"), "--out", str(page)]
    rows = [_timed("memagent_lib.cli", *words) for _ in range(s.rounds)]
    took = _walls("report", f"seconds for a report of {s.readings:,} readings", rows, 15)
    size = Ratio("report", "size of its page", (page.stat().st_size / 1e6,), at_most=6, unit=" MB")
    return Measured([took, size], rows, _note(rows))


def _mlflow(s: WallsBench, folder: Path, chromium: str) -> Measured:
    """MLflow's lists of runs and of traces, each opened in a browser that has no page of it yet"""
    rows = []
    ports = [_free_port() for _ in range(2)]
    with servers(*ports, str(folder / "store"), "for-the-bench") as (_, mlflow), _browser(chromium) as browser:
        pages = {"runs": (mlflow.page, "evaluate trained"), "traces": (_traces_of(mlflow.page), "What is the code of")}
        for _ in range(s.rounds):
            rows += [{"page": name} | _opened(browser, *page) for name, page in pages.items()]
    ratios = []
    for name, aim in {"runs": 5, "traces": None}.items():
        of_page = [row for row in rows if row["page"] == name]
        ratios.append(_walls("mlflow", f"seconds until its {name} are listed, {s.readings:,} traces", of_page, aim))
    return Measured(ratios, rows, _note(rows))


def _log_readings(count: int, folder: Path) -> None:
    """Log ``count`` readings of two policies to a store, and save their rows for the report."""
    experiment = Experiment.open(folder / "store")
    for policy in ("warm start", "trained"):
        results = [
            reading(number, LENGTHS[number % len(LENGTHS)] + 1, right=bool(number % 3 or policy == "trained"))
            for number in range(count // 2)
        ]
        for rows in _log(experiment, policy, results):
            save_rows(rows, folder / "scores", policy)


def _log(experiment: Experiment, policy: str, results: list[Result]) -> list[pd.DataFrame]:
    """Log results in as many runs as their traces need, and return the rows of each run."""
    rows = []
    for start in range(0, len(results), MAX_TRACES):  # one call logs no more traces
        with experiment.run(f"evaluate {policy}") as run:
            rows.append(log_results(run, results[start : start + MAX_TRACES], policy=policy, chunk_tokens=128))
    return rows


@contextmanager
def _browser(chromium: str) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    switches = ["--no-sandbox", "--disable-gpu"]
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, args=switches) as browser,
    ):
        yield browser


def _timed(module: str, *words: str) -> dict[str, float]:
    """Run a Python module as a command; return its wall and processor seconds, those of its children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    ended = subprocess.run([sys.executable, "-m", module, *words], cwd=root(), capture_output=True, text=True)
    seconds = time.monotonic() - started
    if ended.returncode:
        raise RuntimeError(f"{module} {words[0]} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "processor_seconds": used}


def _opened(browser: Browser, address: str, text: str) -> dict[str, float]:
    """Open a page until ``text`` is on it; return the wall and processor seconds, those of the servers included."""
    with browser.new_context() as context:
        page = context.new_page()
        with _processor_seconds() as used:
            started = time.monotonic()
            page.goto(address, timeout=LOADED_MS)
            page.get_by_text(text).locator("visible=true").first.wait_for(timeout=LOADED_MS)
            seconds = time.monotonic() - started
        return {"seconds": seconds, "processor_seconds": used[0]}


@contextmanager
def _processor_seconds() -> Iterator[list[float]]:
    """Yield a list that gets, at the end, the processor seconds of this process and those below it."""
    before = _spent()
    used: list[float] = []
    yield used
    after = _spent()
    used.append(sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items()))


def _spent() -> dict[int, float]:
    spent = {}
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent[process.pid] = times.user + times.system
    return spent


def _walls(measure: str, what: str, rows: list[dict[str, float]], aim: float | None) -> Ratio:
    return Ratio(measure, what, tuple(row["seconds"] for row in rows), at_most=aim, unit=" s")


def _note(rows: list[dict[str, float]]) -> str:
    used = ", ".join(f"{row.get('page', '')} {row['processor_seconds']:.1f}".strip() for row in rows)
    return f"processor seconds {used}"


def _traces_of(page: str) -> str:
    return page.replace("/runs", "/traces")


def _chromium() -> str:
    found = next(filter(None, map(shutil.which, CHROMIUM)), "")
    if not found:
        raise ValueError("no Chromium, which opens pages; make chromium installs it, or set readings=0")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]
