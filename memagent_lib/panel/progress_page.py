"""A run's progress as HTML: state, curves, rollouts. Text that a run wrote is escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from markupsafe import Markup

from memagent_lib.evaluation import Result
from memagent_lib.pages import Page, render
from memagent_lib.panel.progress import Follower, Progress
from memagent_lib.panel.run_access import attach, outcome
from memagent_lib.paths import display
from memagent_lib.plots import colours_of
from memagent_lib.rl import TrainingRun

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


def report(run: TrainingRun | str | Path) -> Page:
    """Return a page of the current state of a run, or of the run in a folder."""
    if not isinstance(run, TrainingRun):
        run = attach(run)
    return page_of(Follower(run.folder).look())


def page_of(progress: Progress) -> Page:
    """Return a page of the state of a run at one moment."""
    rollouts = [(label(result), rollout(result)) for result in progress.rollouts[:REPORTED_ROLLOUTS]]
    body = render("panel/run.html", head=head(progress), curves=curves(progress), rollouts=rollouts)
    return Page(f"{progress.folder}: {outcome(progress.status)}", body)


def head(progress: Progress) -> Markup:
    """Return the run's state, step, reward and warnings, and its error if it failed."""
    status = progress.status
    return render(
        "panel/run_head.html",
        status=status,
        outcome=outcome(status),
        stopping=progress.stopping,
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
        for name, points in lines.items():
            steps, values = zip(*points, strict=True)
            ax.plot(steps, values, ".-", color=colours[name], linewidth=1, markersize=4, label=name)
        ax.set_title(f"{title}: {' '.join(f'{points[-1][1]:.3g}' for points in lines.values())}", fontsize=9)
        ax.tick_params(labelsize=7)
        ax.grid(alpha=0.3)
        ax.xaxis.get_major_locator().set_params(integer=True)
        if len(lines) > 1:
            ax.legend(fontsize=6, loc="best")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=90)
    return file.getvalue()


def rollout(result: Result) -> Markup:
    """Return a rollout turn by turn: the memory after each chunk, with the chunk folded away, and then the answer."""
    return render("panel/rollout.html", question=result.trace.question, turns=result.trace.turns, most=_LONGEST_CHUNK)


def label(result: Result) -> str:
    """Return a rollout's line in a list: right or wrong, step, answer."""
    metadata = result.example.metadata
    mark = "✓" if result.correct else "✗"
    answer = (result.score and result.score.answer) or result.trace.answer
    text = " ".join(answer.split())[:40] or "no answer"
    return f"{mark} step {metadata['step']}: {text}"
