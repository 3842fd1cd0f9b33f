"""Small line charts for a live page: SVG in the page's own ink, a dot per step, values on hover. Knows no run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pandas as pd

from memagent_lib.plots import COLOURS, WINDOW, running_mean, svg_markup

Points = Sequence[tuple[int, float]]
MOST_POINTS = 200
_INK = "#010203"  # stands for the page's own text colour, which no image format but SVG can name
_METADATA = ("Creator", "Date", "Format", "Type")
_SIZE_INCHES = (3.0, 1.3)
_SETTINGS = {"font.size": 7.5, "svg.fonttype": "none", "axes.linewidth": 0.6, "svg.hashsalt": "memagent"}


def smoothed(points: Points) -> bool:
    """Whether :func:`svg_chart` draws the running mean of these points: from ten on."""
    return len(points) >= 2 * WINDOW


def svg_chart(lines: Mapping[str, Points], write: Callable[[float], str], most: float | None = None) -> str:
    """Each line's steps as dots, and through them the running mean of a few steps, or the steps themselves
    where they are few.

    No value can be above ``most``, nor below 0 where none is. The same points are drawn once.
    """
    return _drawn(tuple((name, tuple(_thinned(points))) for name, points in lines.items()), write, most)


@lru_cache(maxsize=64)
def _drawn(lines: tuple[tuple[str, Points], ...], write: Callable[[float], str], most: float | None) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        ax = figure.subplots()
        told = [_line(ax, number, name, points, write) for number, (name, points) in enumerate(lines)]
        _style(ax, lines, write, most)
        svg = svg_markup(figure, transparent=True, metadata=dict.fromkeys(_METADATA))
    return _with_titles(svg, told).replace(_INK, "currentColor")


def _line(ax: Any, number: int, name: str, points: Points, write: Callable[[float], str]) -> list[str]:
    """Draw one line; returns what each of its dots says on hover."""
    steps, values = zip(*points, strict=True)
    colour = COLOURS[number % len(COLOURS)]
    ax.plot(steps, values, "o", color=colour, alpha=0.65, markersize=2.8, markeredgewidth=0, gid=f"dots-{number}")
    ax.plot(steps, running_mean(pd.Series(values)) if smoothed(points) else values, color=colour, linewidth=1.4)
    return [f"step {step}: {f'{name} ' if name else ''}{write(value)}" for step, value in points]


def _style(ax: Any, lines: Sequence[tuple[str, Points]], write: Callable[[float], str], most: float | None) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    values = [value for _, points in lines for _, value in points]
    spread = (max(values) - min(values)) or abs(values[0]) * 0.1 or 1.0
    low, high = min(values) - spread * 0.08, max(values) + spread * 0.08
    ax.set_ylim(max(low, -spread * 0.04) if min(values) >= 0 else low, high if most is None else min(high, most * 1.04))
    ax.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
    ax.grid(True, axis="y", color="#808080", alpha=0.3, linewidth=0.6)
    ax.tick_params(colors=_INK, length=0, pad=2)
    for side, spine in ax.spines.items():
        spine.set_visible(side == "bottom")
        spine.set(color="#808080", alpha=0.5)


def _with_titles(svg: str, told: Sequence[Sequence[str]]) -> str:
    """Give each dot its words: a ``<title>``, which browsers show on hover."""
    from markupsafe import escape

    for number, words in enumerate(told):
        group = re.search(rf'<g id="dots-{number}">.*?</g>\s*</g>', svg, re.DOTALL)
        before, *dots = re.split(r"(?=<use )", group[0])
        titles = [f"<title>{escape(said)}</title></use>" for said in words]
        told_dots = [dot.replace("/>", f">{title}", 1) for dot, title in zip(dots, titles, strict=True)]
        svg = svg.replace(group[0], "".join([before, *told_dots]))
    return svg


def _thinned(points: Points) -> Iterator[tuple[int, float]]:
    """At most :data:`MOST_POINTS`: the means of equal stretches of steps, each at its last step."""
    size = -(-len(points) // MOST_POINTS)
    for at in range(0, len(points), size):
        stretch = points[at : at + size]
        yield stretch[-1][0], sum(value for _, value in stretch) / len(stretch)
