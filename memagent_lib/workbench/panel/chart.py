"""Small line charts as SVG text: drawn in under a millisecond, readable in light and dark, values on hover. Knows no run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

# Tones between light and dark that read on both, and that the colour-blind can tell apart.
COLOURS = ("#2f8fd0", "#e0701a", "#0aa37f", "#c76ba3", "#b58900", "#8a8a8a")
Points = Sequence[tuple[int, float]]
WIDTH, HEIGHT = 300, 128
LEFT, RIGHT, TOP, BOTTOM = 40, 294, 8, 106
MOST_POINTS = 200
WINDOW = 5


def chart(title: str, lines: Mapping[str, Points], write: Callable[[float], str], most: float = math.inf) -> str:
    """One chart with its title, the last value of each line, a dot per step and, from ten steps on, the running mean as the line.

    No value can be above ``most``, nor below 0 where none is.
    """
    from matplotlib.ticker import MaxNLocator

    lines = {name: _thinned(points) for name, points in lines.items()}
    values = [value for points in lines.values() for _, value in points]
    steps = [step for points in lines.values() for step, _ in points]
    spread = (max(values) - min(values)) or abs(values[0]) * 0.1 or 1.0
    low, high = min(values) - spread * 0.05, min(most, max(values) + spread * 0.05)
    marks = MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]).tick_values(max(low, 0.0) if min(values) >= 0 else low, high)
    low, high, first, last = marks[0], marks[-1], min(steps), max(steps)

    def at(step: float, value: float) -> tuple[float, float]:
        across = (step - first) / (last - first) if last > first else 0.5
        return LEFT + across * (RIGHT - LEFT), BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)

    parts = [_grid(mark, at(first, mark)[1], write) for mark in marks]
    for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
        parts.append(_line([at(*point) for point in _smooth(points)], colour))
        for step, value in points:
            x, y = at(step, value)
            told = f"step {step}: {f'{name} ' if name else ''}{write(value)}"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"><title>{escape(told)}</title></circle>'
            )
    ends = {first: "start", last: "end"} if last > first else {first: "middle"}
    parts += [f'<text x="{at(s, low)[0]:.1f}" y="{HEIGHT - 6}" text-anchor="{a}">{s}</text>' for s, a in ends.items()]
    last_values = "".join(
        f'<span style="color:{colour}">{escape(name)} <b>{write(points[-1][1])}</b></span>'
        for colour, (name, points) in zip(COLOURS, lines.items(), strict=False)
    )
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    return f'<figure class="mt-tile"><figcaption>{escape(title)}{last_values}</figcaption>{svg}</figure>'


def _grid(mark: float, y: float, write: Callable[[float], str]) -> str:
    line = f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text x="{LEFT - 5}" y="{y + 3:.1f}" text-anchor="end">{write(mark)}</text>'


def _line(points: Sequence[tuple[float, float]], colour: str) -> str:
    return f'<polyline stroke="{colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _smooth(points: Points) -> Points:
    if len(points) < 2 * WINDOW:
        return points
    near = [points[max(0, i - WINDOW + 1) : i + 1] for i in range(len(points))]
    return [(window[-1][0], sum(value for _, value in window) / len(window)) for window in near]


def _thinned(points: Points) -> Points:
    """At most :data:`MOST_POINTS`: the means of equal stretches of steps, each at its last step."""
    if len(points) <= MOST_POINTS:
        return points
    size = -(-len(points) // MOST_POINTS)
    stretches = [points[at : at + size] for at in range(0, len(points), size)]
    return [(stretch[-1][0], sum(value for _, value in stretch) / len(stretch)) for stretch in stretches]
