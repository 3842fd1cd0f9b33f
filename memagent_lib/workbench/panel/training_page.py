"""A run's progress as HTML: how it stands, its curves, its readings. Everything a run wrote is escaped, never markup."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

from memagent_lib.files import root
from memagent_lib.rl import TrainingRun, TrainingState
from memagent_lib.workbench.panel.attach import attach
from memagent_lib.workbench.panel.chart import Points, chart
from memagent_lib.workbench.panel.progress import Follower, Problem, Progress, Reading

STYLE = (Path(__file__).parent / "panel.css").read_text(encoding="utf-8")
REPORTED_READINGS = 6
_LONGEST_CHUNK = 1500


class Tile(NamedTuple):
    """A chart: metrics and the names of their lines. ``*`` in a metric stands for a task, which is then the line's name."""

    title: str
    metrics: dict[str, str]
    write: Callable[[float], str]


def percent(value: float) -> str:
    return f"{value:.0%}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


TILES = (
    Tile("reward", {"critic/score/mean": ""}, percent),
    Tile("held-out accuracy", {"val-core/*/acc/mean@1": ""}, percent),
    Tile("facts in memory", {"rollout/capture": "found", "rollout/retention": "kept"}, percent),
    Tile("entropy", {"actor/entropy": ""}, number),
    Tile("tokens per reply", {"rollout/memory_tokens": "memory", "response_length/max": "longest"}, number),
    Tile("tokens per second", {"perf/throughput": ""}, number),
    Tile(
        "seconds per step",
        {"perf/time_per_step": "all", "timing_s/gen": "rollouts", "timing_s/update_actor": "update"},
        number,
    ),
    Tile("gradient norm", {"actor/grad_norm": ""}, number),
)


@dataclass(frozen=True)
class Report:
    """A run frozen as it stood: a notebook shows it, an executed copy keeps it."""

    progress: Progress

    def _repr_html_(self) -> str:
        told = "".join(
            f"<details>{_summary(r)}{reading(r)}</details>" for r in self.progress.readings[:REPORTED_READINGS]
        )
        readings = f"<h4>Last readings, wrong ones first</h4>{told}" if told else ""
        return f"{styled(head(self.progress, frozen=True))}{styled(curves(self.progress))}{styled(readings)}"

    def __repr__(self) -> str:
        status = self.progress.status
        return f"{self.progress.folder}: {status.state}, step {status.step} of {status.steps}"


def report(run: TrainingRun | str | Path) -> Report:
    """A run, or the run in a folder, as it stands now."""
    run = run if isinstance(run, TrainingRun) else attach(run)
    return Report(Follower(run.folder).look())


def styled(html: str) -> str:
    return f'<style>{STYLE}</style><div class="mt">{html}</div>'


def head(progress: Progress, now: float | None = None, frozen: bool = False) -> str:
    """State, step, time left, the last numbers; what went wrong and where, if it did."""
    status, state = progress.status, progress.status.state
    now = now or time.time()
    word = "stopping after this step" if progress.stopping else state
    facts = [f"step {status.step} of {status.steps}"]
    if status.reward is not None:
        facts.append(f"reward {percent(status.reward)}")
    if (seconds := progress.seconds_per_step) is not None:
        facts.append(f"{number(seconds)} s a step")
    if not state.over and status.seconds_left:
        facts.append(f"about {span(max(0.0, status.seconds_left - (now - (progress.last_step_at or now))))} left")
    if frozen and not state.over:
        facts.append(f"as it stood at {time.strftime('%H:%M', time.localtime(now))}")
    share = status.step / status.steps if status.steps else 0.0
    bar = f'<div class="mt-bar"><div class="mt-{state}" style="width:{share:.1%}"></div></div>'
    return (
        f'<div class="mt-head"><b class="mt-pill mt-{state}">{escape(word)}</b><span>{" · ".join(facts)}</span>'
        f"<code>{_named(progress.folder)}</code></div>{bar}{_hint(progress, now)}{_trouble(progress.problem, progress.folder)}"
    )


def curves(progress: Progress) -> str:
    """The charts of what the run logged, and the names of those that it did not log."""
    shown, missing = [], []
    for tile in TILES:
        found = {}
        for metric, name in tile.metrics.items():
            found |= _lines(progress.points, metric, name)
        if found:
            shown.append(chart(tile.title, found, tile.write, most=1.0 if tile.write is percent else math.inf))
        else:
            missing.append(tile.title)
    if not shown:
        return ""
    left_out = f"<p><small>Not logged by this run: {', '.join(missing)}.</small></p>" if missing else ""
    return f'<div class="mt-tiles">{"".join(shown)}</div>{left_out}'


def reading(kept: Reading) -> str:
    """A reading turn by turn: the memory after each chunk, with the chunk to unfold, then the answer."""
    trace, rows = kept.trace, []
    for number, turn in enumerate(trace.turns, start=1):
        cut = ' <em class="mt-cut">cut at the token limit</em>' if turn.reply.cut else ""
        chunk = turn.prompt.chunk
        text = f"<details><summary>chunk</summary>{escape(_short(chunk.text))}</details>" if chunk else ""
        what = "answer" if turn.prompt.kind.answers else f"memory {number}"
        rows.append(f"<tr><th>{what}</th><td>{escape(turn.reply.text)}{cut}{text}</td></tr>")
    return f'<p class="mt-question">{escape(trace.question)}</p><table class="mt-turns">{"".join(rows)}</table>'


def label(kept: Reading) -> str:
    """One line for a list: right or wrong, step, answer."""
    held_out = " held out" if kept.greedy else ""
    return f"{'✓' if kept.right else '✗'} step {kept.step}{held_out}: {' '.join(kept.trace.answer.split())[:40] or 'no answer'}"


def span(seconds: float) -> str:
    """A length of time for people: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _lines(points: Mapping[str, Points], metric: str, name: str) -> dict[str, Points]:
    """The lines of a metric: none where the run did not log it, several where ``*`` stands for several tasks."""
    before, star, after = metric.partition("*")
    if not star:
        return {name: points[metric]} if metric in points else {}
    found = [m for m in points if m.startswith(before) and m.endswith(after)]
    return {m[len(before) : len(m) - len(after)]: points[m] for m in found}


def _hint(progress: Progress, now: float) -> str:
    state = progress.status.state
    if state is TrainingState.STARTING:
        return "<p>Starting the engines and the trainer; the first step takes a minute or more.</p>"
    if (silence := progress.silent_s(now)) is not None:
        return f'<p class="mt-cut">No step for {span(silence)}; the log is <code>{_named(progress.folder / "log.txt")}</code></p>'
    if state is TrainingState.FINISHED:
        return f"<p>The trained policy is <code>{_named(progress.folder / 'model')}</code></p>"
    return ""


def _trouble(problem: Problem | None, folder: Path) -> str:
    if problem is None:
        return ""
    place = f"<p>at <code>{escape(problem.place)}</code></p>" if problem.place else ""
    log = f"<details><summary>end of {_named(folder / 'log.txt')}</summary><pre>{escape(problem.log)}</pre></details>"
    return f'<div class="mt-trouble"><p><b>{escape(problem.error)}</b></p>{place}{log if problem.log else ""}</div>'


def _named(path: Path) -> str:
    """A path as people give it to notebooks: from the repository's root where it lies below."""
    return escape(str(path.relative_to(root()) if path.is_relative_to(root()) else path))


def _summary(kept: Reading) -> str:
    return f"<summary>{escape(label(kept))}</summary>"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_CHUNK else f"{text[:_LONGEST_CHUNK]} … ({len(text):,} characters)"
