"""A training run's progress, read from its files, and as HTML: state, curves, rollouts.

Text that a run wrote is escaped.
"""

from __future__ import annotations

import base64
import io
import math
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import chain, islice
from pathlib import Path
from typing import Any

from markupsafe import Markup

from memagent_lib.evaluation import Result
from memagent_lib.pages import Page, render
from memagent_lib.paths import display
from memagent_lib.plots import colours_of
from memagent_lib.rl import RunFolder, TrainingRun, TrainingState, TrainingStatus, attach
from memagent_lib.status_line import time_left

MOST_ROLLOUTS = 24
_LOG_BYTES = 64 << 10
_LOG_LINES = 40
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
REPORTED_ROLLOUTS = 6
_LONGEST_CHUNK = 1500
_COLUMNS = 4
# The charts: their titles, and the metrics that they draw, if the run has logged them.
CHARTS = {
    "reward": ["critic/score/mean"],
    "score by task": ["rollout/acc/*"],
    "validation accuracy": ["val-core/*"],
    "evidence captured, retained": ["rollout/capture", "rollout/retention"],
    "entropy": ["rollout/entropy", "actor/entropy"],
    "tokens per reply": ["rollout/memory_tokens", "response_length/mean", "response_length/max"],
    "groups without spread": ["rollout/equal_groups"],
    "memories cut at their limit": ["rollout/cut_share"],
    "tokens per second": ["perf/throughput"],
    "seconds per step": ["perf/time_per_step", "timing_s/gen", "timing_s/update_actor"],
    "gradient norm": ["actor/grad_norm"],
}


def run_of(run: TrainingRun | str | Path) -> TrainingRun:
    """Return a run itself, or the run in a folder."""
    return run if isinstance(run, TrainingRun) else attach(run)


def report(run: TrainingRun | str | Path) -> Page:
    """Return a page of the current state of a run, or of the run in a folder."""
    return page_of(Follower(run_of(run).folder).look())


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run at one moment. ``points`` has the (step, value) pairs of every metric.

    ``due`` has about when the next step and the last one are done, in seconds since the epoch; 0 if that is not known.
    """

    folder: Path
    status: TrainingStatus
    stopping: bool = False
    points: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    rollouts: tuple[Result, ...] = ()
    log: str = ""
    """The end of the log of a run that failed."""
    due: Sequence[float] = (0, 0)


class Follower:
    """Follows a run's folder. It reads files only when they have changed, so a live view can look every second."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._read: dict[str, tuple[object, Any]] = {}

    def look(self) -> Progress:
        """Return the run's progress. Raises ``FileNotFoundError`` if there is no run."""
        status = self.folder.status()
        return Progress(
            folder=self.folder.path,
            status=status,
            stopping=not status.state.over and self.folder.stop_request.exists(),
            points=self._once("points", [self.folder.metrics], self._points),
            rollouts=self._once(
                "rollouts",
                [self.folder.metrics, *self.folder.traces.glob("*"), *self.folder.credit.glob("*")],
                self._rollouts,
            ),
            due=self._once("due", [self.folder.metrics], lambda: self.folder.due(status.steps)),
            log=_end_of(self.folder.log) if status.state in (TrainingState.FAILED, TrainingState.DIED) else "",
        )

    def _once(self, name: str, files: Sequence[Path], read: Any) -> Any:
        """Return what ``read()`` returned when these files were as they are now."""
        stats = [file.stat() for file in files if file.is_file()]
        state = [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]
        if self._read.get(name, (None, None))[0] != state:
            self._read[name] = (state, read())
        return self._read[name][1]

    def _points(self) -> dict[str, list[tuple[int, float]]]:
        points: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for row in self.folder.rows():
            for name, value in row["metrics"].items():
                if math.isfinite(value):  # a chart cannot draw nan and infinity
                    points[name].append((row["step"], value))
        return dict(points)

    def _rollouts(self) -> tuple[Result, ...]:
        """Return the newest rollouts: the latest step first and, within a step, wrong ones before right ones."""
        newest = chain.from_iterable(reversed(rollouts) for _, rollouts in self.folder.rollouts())
        return tuple(sorted(islice(newest, MOST_ROLLOUTS), key=lambda r: (-r.example.metadata["step"], r.correct)))


def _end_of(log: Path) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        # Only the end: the log of a long run is far too long to display.
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        text = file.read().decode("utf-8", "replace")
    return "\n".join(_ANSI.sub("", text).splitlines()[-_LOG_LINES:])


def outcome(status: TrainingStatus) -> str:
    """Return a run's state as one line of text."""
    parts = [f"{status.state}: {status.progress}"]
    if status.reward is not None:
        parts.append(f"reward {status.reward:.3f}")
    if status.error:
        parts.append(status.error)
    return ", ".join(parts)


def page_of(progress: Progress) -> Page:
    """Return a page of the state of a run at one moment."""
    rollouts = [(label(result), rollout(result)) for result in progress.rollouts[:REPORTED_ROLLOUTS]]
    body = render("panel/run.html", head=head(progress), curves=curves(progress), rollouts=rollouts)
    return Page(f"{display(progress.folder)}: {outcome(progress.status)}", body)


def head(progress: Progress) -> Markup:
    """Return the run's state, step and reward, and its error if it failed."""
    status = progress.status
    return render(
        "panel/run_head.html",
        status=status,
        outcome=outcome(status).removeprefix(f"{status.state}: "),
        stopping=progress.stopping,
        left=[time_left(due - time.time()) for due in progress.due],
        folder=display(progress.folder),
        share=f"{status.step / max(1, status.steps):.1%}",
        log=progress.log,
    )


def curves(progress: Progress) -> Markup:
    """Return an image of the charts of the metrics that the run logged."""
    charts = {}
    for title, patterns in CHARTS.items():
        names = [name for name in progress.points if any(fnmatch(name, pattern) for pattern in patterns)]
        if names:
            charts[title] = {name: progress.points[name] for name in names}
    if not charts:
        return Markup()
    image = base64.b64encode(_drawn(charts)).decode()
    return Markup('<img class="mt-curves" alt="{}" src="data:image/png;base64,{}">').format(", ".join(charts), image)


def _drawn(charts: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]) -> bytes:
    from matplotlib.figure import Figure

    # Not pyplot: this runs in a thread, and pyplot would retain every figure.
    rows = -(-len(charts) // _COLUMNS)
    figure = Figure(figsize=(3.4 * _COLUMNS, 2.2 * rows), layout="constrained")
    for number, (title, lines) in enumerate(charts.items(), start=1):
        ax = figure.add_subplot(rows, _COLUMNS, number)
        colours = colours_of(lines)
        ends = [name.rpartition("/")[2] for name in lines]
        for end, (name, points) in zip(ends, lines.items(), strict=True):
            steps, values = zip(*points, strict=True)
            words = title if len(lines) == 1 else end if ends.count(end) == 1 else name
            label = f"{words} {values[-1]:.3g}"
            ax.plot(steps, values, ".-", color=colours[name], linewidth=1, markersize=4, label=label)
        ax.set_title(title if len(lines) > 1 else label, fontsize=9)
        ax.tick_params(labelsize=7)
        ax.grid(alpha=0.3)
        ax.xaxis.get_major_locator().set_params(integer=True)
        if len(lines) > 1:
            ax.legend(fontsize=6, loc="best", framealpha=0.6)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=90)
    return file.getvalue()


def rollout(result: Result) -> Markup:
    """Return a rollout turn by turn: the memory after each chunk, with the chunk folded away, and then the answer.

    Each turn has the advantages and tokens that it was trained with, as soon as its step has them.
    """
    credit = result.example.metadata.get("credit", "")
    turns = result.trace.turns
    replies = credit.by_turn(turns) if credit else [[]] * len(turns)
    pairs = list(zip(turns, replies, strict=True))
    question = result.trace.question
    return render("panel/rollout.html", question=question, turns=pairs, credit=credit, most=_LONGEST_CHUNK)


def label(result: Result) -> str:
    """Return a rollout's line in a list: right or wrong, step, answer."""
    metadata = result.example.metadata
    mark = "✓" if result.correct else "✗"
    answer = (result.score and result.score.answer) or result.trace.answer
    text = " ".join(answer.split())[:40] or "no answer"
    return f"{mark} step {metadata['step']}: {text}"
