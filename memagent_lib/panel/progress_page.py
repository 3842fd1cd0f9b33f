"""A run's progress as HTML: how it stands, its curves, its rollouts. All that a run wrote is escaped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from memagent_lib.evaluation import Result
from memagent_lib.pages import Page, render
from memagent_lib.panel.curve_charts import Points, smoothed, svg_chart
from memagent_lib.panel.progress import Follower, Progress
from memagent_lib.panel.run_access import attach, outcome
from memagent_lib.paths import display
from memagent_lib.plots import COLOURS, WINDOW
from memagent_lib.rl import TrainingRun
from memagent_lib.trace import Turn

REPORTED_ROLLOUTS = 6
ROLLOUTS_TITLE = "Readings, the newest step's first, wrong ones before right ones"
_LONGEST_CHUNK = 1500


class Tile(NamedTuple):
    """A chart: metrics and the names of their lines; ``*`` in a metric stands for a task, its line's name."""

    title: str
    metrics: dict[str, str]
    write: Callable[[float], str]


def percent(value: float) -> str:
    return f"{value:.0%}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


_REPLY_LENGTHS = {"rollout/memory_tokens": "memory", "response_length/max": "longest"}
_STEP_SECONDS = {"perf/time_per_step": "all", "timing_s/gen": "rollouts", "timing_s/update_actor": "update"}
TILES = (
    Tile("reward", {"critic/score/mean": ""}, percent),
    Tile("score by task", {"rollout/acc/*": ""}, percent),
    Tile("held-out accuracy", {"val-core/*/acc/mean@1": ""}, percent),
    Tile("facts in memory", {"rollout/capture": "found", "rollout/retention": "kept"}, percent),
    Tile("entropy", {"actor/entropy": ""}, number),
    Tile("tokens per reply", _REPLY_LENGTHS, number),
    Tile("tokens per second", {"perf/throughput": ""}, number),
    Tile("seconds per step", _STEP_SECONDS, number),
    Tile("gradient norm", {"actor/grad_norm": ""}, number),
)


def report(run: TrainingRun | str | Path) -> Page:
    """A run, or the run in a folder, frozen as it stands now: a notebook shows it, an executed copy keeps it."""
    run = run if isinstance(run, TrainingRun) else attach(run)
    progress = Follower(run.folder).look()
    told = [(label(r), rollout(r)) for r in progress.rollouts[:REPORTED_ROLLOUTS]]
    parts = {"head": head(progress, frozen=True), "curves": curves(progress)}
    body = styled(render("panel/run_report.html", rollouts=told, rollouts_title=ROLLOUTS_TITLE, **parts))
    return Page(f"{progress.folder}: {outcome(progress.status)}", body)


def styled(body: Markup | str) -> str:
    """A part of the panel with the style that it needs; what is not markup is escaped."""
    return render("panel/run_part.html", body=body)


def head(progress: Progress, frozen: bool = False) -> Markup:
    """State, step, time left, the last numbers; what went wrong and where, if it did."""
    status, silence = progress.status, progress.silent_s()
    return render(
        "panel/run_head.html",
        state=str(status.state),
        stopping=progress.stopping,
        facts=_facts(progress, frozen),
        folder=display(progress.folder),
        share=f"{status.step / status.steps if status.steps else 0.0:.1%}",
        silence="" if silence is None else span(silence),
        problem=progress.problem,
    )


def _facts(progress: Progress, frozen: bool) -> list[str]:
    status, now = progress.status, time.time()
    facts = [f"step {status.step} of {status.steps}"]
    if status.reward is not None:
        facts.append(f"reward {percent(status.reward)}")
    if status.retried:
        facts.append(f"{status.retried:,} rollouts failed once, see traces/failures.jsonl")
    if (seconds := progress.seconds_per_step) is not None:
        facts.append(f"{number(seconds)} s a step")
    if not status.state.over and status.seconds_left:
        left = span(max(0.0, status.seconds_left - (now - (progress.last_step_at or now))))
        turns = progress.turns_left
        facts.append(f"about {left}" + (f" and {turns:,} turns" if turns else "") + " left")
    if frozen and not status.state.over:
        facts.append(f"as it stood at {time.strftime('%H:%M', time.localtime(now))}")
    return facts


def curves(progress: Progress) -> Markup:
    """The charts of what the run logged, and the names of those that it did not log."""
    charts, missing, smooth = [], [], False
    for tile in TILES:
        lines: dict[str, Points] = {}
        for metric, name in tile.metrics.items():
            lines |= _lines(progress.points, metric, name)
        if not lines:
            missing.append(tile.title)
            continue
        smooth = smooth or any(smoothed(points) for points in lines.values())
        last = [(name, tile.write(points[-1][1]), COLOURS[i % 6]) for i, (name, points) in enumerate(lines.items())]
        svg = svg_chart(lines, tile.write, most=1.0 if tile.write is percent else None)
        charts.append({"title": tile.title, "last": last, "svg": Markup(svg)})
    return render("panel/run_curves.html", charts=charts, missing=missing, smoothed=smooth, window=WINDOW)


def rollout(kept: Result) -> Markup:
    """A rollout turn by turn: the memory after each chunk, with the chunk to unfold, then the answer."""
    turns = [_turn(i, turn) for i, turn in enumerate(kept.trace.turns, start=1)]
    return render("panel/kept_rollout.html", question=kept.trace.question, turns=turns)


def _turn(place: int, turn: Turn) -> dict[str, object]:
    prompt, reply = turn.prompt, turn.reply
    name = "answer" if prompt.kind.answers else f"memory {place}"
    return {"name": name, "text": reply.text, "cut": reply.cut, "chunk": prompt.chunk and _short(prompt.chunk.text)}


def label(kept: Result) -> str:
    """One line for a list: right or wrong, step, answer."""
    about = kept.example.metadata
    held_out = " held out" if about["greedy"] else ""
    answer = " ".join(((kept.score and kept.score.answer) or kept.trace.answer).split())[:40] or "no answer"
    return f"{'✓' if kept.correct else '✗'} step {about['step']}{held_out}: {answer}"


def span(seconds: float) -> str:
    """A length of time for people: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _lines(points: Mapping[str, Points], metric: str, name: str) -> dict[str, Points]:
    """The lines of a metric: none where the run did not log it, several where ``*`` stands for several tasks, without
    the first word where all of their names share it.
    """
    before, star, after = metric.partition("*")
    if not star:
        return {name: points[metric]} if metric in points else {}
    found = [m for m in points if m.startswith(before) and m.endswith(after)]
    tasks = [m[len(before) : len(m) - len(after)] for m in found]
    shared = f"{tasks[0].partition('_')[0]}_" if tasks else ""
    names = [t.removeprefix(shared) for t in tasks] if all(t.startswith(shared) for t in tasks) else tasks
    return {task: points[m] for task, m in zip(names, found, strict=True)}


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_CHUNK else f"{text[:_LONGEST_CHUNK]} … ({len(text):,} characters)"
