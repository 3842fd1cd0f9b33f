"""A run's progress as HTML: state, curves, rollouts. Text that a run wrote is escaped."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from memagent_lib.evaluation import Result
from memagent_lib.pages import Page, render
from memagent_lib.panel.curve_charts import Points, Write, smoothed, svg_chart
from memagent_lib.panel.progress import Follower, Progress
from memagent_lib.panel.run_access import attach, outcome
from memagent_lib.paths import display
from memagent_lib.plots import WINDOW, colours_of
from memagent_lib.rl import TrainingRun
from memagent_lib.trace import Turn

REPORTED_ROLLOUTS = 6
ROLLOUTS_TITLE = "Rollouts, newest step first, wrong ones before right ones"
_LONGEST_CHUNK = 1500


class Tile(NamedTuple):
    """A chart: its metrics, each with the name of its line.

    A ``*`` in a metric stands for any task; the lines then have the tasks' names.
    """

    title: str
    metrics: dict[str, str]
    write: Write
    about: str


def percent(value: float, digits: int = 3) -> str:
    return f"{100 * value:.{digits}g}%"


def number(value: float, digits: int = 3) -> str:
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


_REPLY_LENGTHS = {
    "rollout/memory_tokens": "memory",
    "response_length/mean": "all",
    "response_length/max": "longest",
}
_STEP_SECONDS = {"perf/time_per_step": "all", "timing_s/gen": "rollouts", "timing_s/update_actor": "update"}
TILES = (
    Tile("reward", {"critic/score/mean": ""}, percent, "Share of right answers of the rollouts of a step"),
    Tile("score by task", {"rollout/acc/*": ""}, percent, "The same for each task alone"),
    Tile(
        "validation accuracy",
        {"val-core/*/acc/mean@N": ""},
        percent,
        "Share of right answers on documents that are not trained on, read without sampling",
    ),
    Tile(
        "evidence in memory",
        {"rollout/capture": "capture", "rollout/retention": "retention"},
        percent,
        "Capture: in memory right after its chunk. Retention: still there at the end",
    ),
    Tile(
        "entropy",
        {"rollout/entropy": "", "actor/entropy": ""},  # the exact one, if both are logged
        number,
        "How uncertain the policy is of a token, in nats; near 0 it no longer tries anything else",
    ),
    Tile("tokens per reply", _REPLY_LENGTHS, number, "Mean of memories, mean of all replies, and the longest reply"),
    Tile(
        "groups without spread",
        {"rollout/equal_groups": ""},
        percent,
        "Share of prompts whose rollouts all have the same score, and which therefore teach nothing",
    ),
    Tile(
        "memories cut at their limit",
        {"rollout/cut_share": ""},
        percent,
        "Share of memories that reached memory_tokens and lost their end",
    ),
    Tile("tokens per second", {"perf/throughput": ""}, number, "Tokens of prompts and replies, all parts of a step"),
    Tile("seconds per step", _STEP_SECONDS, number, "All of a step, its rollouts, and its update"),
    Tile(
        "gradient norm",
        {"actor/grad_norm": ""},
        number,
        "Size of the update before it is limited; a sudden rise often comes before a collapse",
    ),
)


def report(run: TrainingRun | str | Path) -> Page:
    """Return a page of the current state of a run, or of the run in a folder."""
    if not isinstance(run, TrainingRun):
        run = attach(run)
    return frozen(Follower(run.folder).look())


def frozen(progress: Progress) -> Page:
    """Return a page of the state of a run at one moment."""
    markup = render(
        "panel/run_report.html",
        head=head(progress, frozen=True),
        curves=curves(progress),
        rollouts=[(label(result), rollout(result)) for result in progress.rollouts[:REPORTED_ROLLOUTS]],
        rollouts_title=ROLLOUTS_TITLE,
    )
    body = styled(markup)
    return Page(f"{progress.folder}: {outcome(progress.status)}", body)


def styled(body: Markup | str) -> str:
    """Return a part of the panel together with the panel's style sheet. Plain text is escaped."""
    return render("panel/run_part.html", body=body)


def head(progress: Progress, frozen: bool = False) -> Markup:
    """Return the run's state, step, remaining time and latest numbers, and its error if it failed."""
    status = progress.status
    silence = progress.silent_s()
    share = status.step / max(1, status.steps)
    return render(
        "panel/run_head.html",
        state=str(status.state),
        stopping=progress.stopping,
        numbers=_numbers(progress, frozen),
        folder=display(progress.folder),
        share=f"{share:.1%}",
        silence="" if silence is None else span(silence),
        problem=progress.problem,
        signs=progress.signs,
        error=status.error,
    )


def _numbers(progress: Progress, frozen: bool) -> list[str]:
    status = progress.status
    now = time.time()
    numbers = [f"step {status.step} of {status.steps}"]
    if status.reward is not None:
        numbers.append(f"reward {percent(status.reward)}")
    if status.retried:
        numbers.append(f"{status.retried:,} rollouts failed once, see traces/failures.jsonl")
    seconds = progress.seconds_per_step
    if seconds is not None:
        numbers.append(f"{number(seconds)} s a step")
    if not status.state.over and status.seconds_left:
        # The estimate in the file is as old as the last step.
        seconds_left = status.seconds_left - (now - (progress.last_step_at or now))
        left = f"{progress.turns_left:,} turns" if progress.turns_left else ""
        if seconds_left > 0:  # else the step takes longer than estimated
            left = " and ".join(filter(None, (f"about {span(seconds_left)}", left)))
        if left:
            numbers.append(f"{left} left")
    if frozen and not status.state.over:
        numbers.append(f"at {time.strftime('%H:%M', time.localtime(now))}")
    return numbers


def curves(progress: Progress) -> Markup:
    """Return the charts of the metrics that the run logged, and the titles of those that have no metric yet."""
    charts = []
    missing = []
    any_smoothed = False
    for tile in TILES:
        lines: dict[str, Points] = {}
        for metric, name in tile.metrics.items():
            lines |= _lines(progress.points, metric, name)
        if not lines:
            missing.append(tile.title)
            continue
        # The page explains lines once, below all charts.
        any_smoothed = any_smoothed or any(smoothed(points) for points in lines.values())
        colours = colours_of(lines)
        last = [(name, tile.write(points[-1][1]), colours[name]) for name, points in lines.items()]
        most = 1.0 if tile.write is percent else None
        svg = svg_chart(lines, tile.write, most)
        crossed = [sign for sign in progress.signs if set(sign.bound.metrics) & set(tile.metrics)]
        charts.append({"title": tile.title, "last": last, "svg": Markup(svg), "signs": crossed, "about": tile.about})
    return render("panel/run_curves.html", charts=charts, missing=missing, smoothed=any_smoothed, window=WINDOW)


def rollout(result: Result) -> Markup:
    """Return a rollout turn by turn: the memory after each chunk, with the chunk folded away, and then the answer."""
    turns = [_turn(number, turn) for number, turn in enumerate(result.trace.turns, start=1)]
    return render("panel/rollout.html", question=result.trace.question, turns=turns)


def _turn(number: int, turn: Turn) -> dict[str, object]:
    chunk = turn.prompt.chunk
    return {
        "name": "answer" if turn.prompt.kind.answers else f"memory {number}",
        "text": turn.reply.text,
        "cut": turn.reply.cut,
        "bad": str(turn.bad_memory or ""),
        "chunk": chunk and _shortened(chunk.text),
    }


def label(result: Result) -> str:
    """Return a rollout's line in a list: right or wrong, step, answer."""
    metadata = result.example.metadata
    mark = "✓" if result.correct else "✗"
    kind = " validation" if metadata["greedy"] else ""  # only validation reads greedily
    answer = (result.score and result.score.answer) or result.trace.answer
    text = " ".join(answer.split())[:40] or "no answer"
    return f"{mark} step {metadata['step']}{kind}: {text}"


def span(seconds: float) -> str:
    """Return a duration in the units that people would use: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _lines(points: Mapping[str, Points], metric: str, name: str) -> dict[str, Points]:
    """Return the lines of a metric, by name; none if the run has not logged it, and one per task for a ``*``.

    A first word that all tasks' names have in common is left out. ``@N`` stands for any number of replies.
    """
    if "*" not in metric:
        return {name: points[metric]} if metric in points else {}
    pattern = re.compile(re.escape(metric).replace(r"\*", "(.+)").replace("@N", r"@\d+"))
    found = {logged: match[1] for logged in points if (match := pattern.fullmatch(logged))}
    # The tasks of one family often begin with its name.
    family = f"{next(iter(found.values()), '').partition('_')[0]}_"
    if not all(task.startswith(family) for task in found.values()):
        family = ""
    return {task.removeprefix(family): points[logged] for logged, task in found.items()}


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_CHUNK:
        return text
    return f"{text[:_LONGEST_CHUNK]} … ({len(text):,} characters)"
