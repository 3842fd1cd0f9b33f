"""Small line charts for a live page: SVG in the page's text colour, dots with values on hover."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pandas as pd

from memagent_lib.plots import WINDOW, colours_of, running_mean, svg_markup

Points = Sequence[tuple[int, float]]
Write = Callable[..., str]
MOST_POINTS = 200
_TICK_DIGITS = 8
"""Enough to write a tick as it is: rounded, several ticks of a narrow range would have the same or a wrong number."""
_INK = "#010203"  # later replaced by "currentColor", which matplotlib does not accept
# matplotlib writes these into an SVG; a date would make the same chart differ on every draw.
_METADATA = ("Creator", "Date", "Format", "Type")
_SIZE_INCHES = (3.0, 1.3)
_SETTINGS = {
    "font.size": 7.5,
    "svg.fonttype": "none",
    "axes.linewidth": 0.6,
    "svg.hashsalt": "memagent",  # without a fixed salt the ids in the SVG are random
}


def smoothed(points: Points) -> bool:
    """Return whether there are enough points (ten) for :func:`svg_chart` to draw their running mean."""
    return len(points) >= 2 * WINDOW


def svg_chart(lines: Mapping[str, Points], write: Write, most: float | None = None) -> str:
    """Return a chart as SVG: for each of ``lines`` a dot per step, and a line along their running mean.

    If there are only a few dots (:func:`smoothed`), the line connects them instead. Beyond :data:`MOST_POINTS` steps, a
    dot is the mean of several. ``write`` formats a value as text, and takes a number of digits for the axis. The axis
    ends at ``most`` unless a value is above it. Unless a value is negative, it begins just below 0 or higher.
    """
    thinned = tuple((name, tuple(_thinned(points))) for name, points in lines.items())
    return _draw(thinned, write, most)


@lru_cache(maxsize=64)  # a live page is drawn every second, and most charts have not changed
def _draw(lines: tuple[tuple[str, Points], ...], write: Write, most: float | None) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        # Not pyplot: this runs in a thread, and pyplot would retain every figure.
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        ax = figure.subplots()
        colours = colours_of(name for name, _ in lines)
        titles = [_line(ax, number, name, points, write, colours[name]) for number, (name, points) in enumerate(lines)]
        _style(ax, lines, write, most)
        svg = svg_markup(figure, transparent=True, metadata=dict.fromkeys(_METADATA))
    return _with_titles(svg, titles).replace(_INK, "currentColor")


def _line(ax: Any, number: int, name: str, points: Points, write: Write, colour: str) -> list[str]:
    """Draw one line; return the texts that its dots display on hover."""
    steps, values = zip(*points, strict=True)
    ax.plot(steps, values, "o", color=colour, alpha=0.65, markersize=2.8, markeredgewidth=0, gid=f"dots-{number}")
    line = running_mean(pd.Series(values)) if smoothed(points) else values
    ax.plot(steps, line, color=colour, linewidth=1.4)
    prefix = f"{name} ".lstrip()
    return [f"step {step}: {prefix}{write(value)}" for step, value in points]


def _style(ax: Any, lines: Sequence[tuple[str, Points]], write: Write, most: float | None) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    values = [value for _, points in lines for _, value in points]
    spread = (max(values) - min(values)) or abs(values[0]) * 0.1 or 1.0  # equal values have no spread
    low = min(values) - spread * 0.08
    high = max(values) + spread * 0.08
    if min(values) >= 0:  # room for a dot at 0, but no ticks below
        low = max(low, -spread * 0.04)
    if most is not None and max(values) <= most:  # a dot outside the axes would be missing in the SVG
        high = min(high, most * 1.04)
    ax.set_ylim(low, high)
    ax.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value, _TICK_DIGITS)))
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
    ax.grid(True, axis="y", color="#808080", alpha=0.3, linewidth=0.6)
    ax.tick_params(colors=_INK, length=0, pad=2)
    for side, spine in ax.spines.items():
        spine.set_visible(side == "bottom")
        spine.set(color="#808080", alpha=0.5)


def _with_titles(svg: str, titles: Sequence[Sequence[str]]) -> str:
    """Add a ``<title>`` to each dot, which browsers display on hover."""
    from markupsafe import escape

    for number, of_line in enumerate(titles):
        group = re.search(rf'<g id="dots-{number}">.*?</g>\s*</g>', svg, re.DOTALL)
        before, *dots = re.split(r"(?=<use )", group[0])
        titled = [
            dot.replace("/>", f"><title>{escape(title)}</title></use>", 1)
            for dot, title in zip(dots, of_line, strict=True)
        ]
        svg = svg.replace(group[0], "".join([before, *titled]))
    return svg


def _thinned(points: Points) -> Iterator[tuple[int, float]]:
    """Yield at most :data:`MOST_POINTS` points, each the mean of several, at the step of their last one."""
    size = -(-len(points) // MOST_POINTS)
    for at in range(0, len(points), size):
        stretch = points[at : at + size]
        yield stretch[-1][0], sum(value for _, value in stretch) / len(stretch)
