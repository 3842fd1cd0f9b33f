"""The names in figures: beside the ends of lines, or in a legend for which the figure grows.

This module knows lines and their names; it does not depend on frames of results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.plots.figure_style import (
    BASELINE_WORDS,
    INK,
    THIN_LINE,
    all_shortened,
    look_of,
    other_seeds,
    verbatim,
)
from memagent_lib.readers import BASELINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

LONGEST_LABEL = 20
"""Longer names go into a legend, because beside the lines they would shrink the plot."""
_MOST_COLUMNS = 4
_MOST_INSIDE = 6
"""With more entries, a legend inside the axes would cover lines."""
_LEGEND_INCHES = 0.5
"""The height that a figure has for its legend; it grows by what a legend needs more."""
_LABEL_GAP = 0.062
"""The least distance between two labels, as a share of the axes' height."""


class LineEnd(NamedTuple):
    """The right end of a line in data coordinates, and its label."""

    x: float
    y: float
    name: str
    colour: str


def label_ends(
    ax: Axes, ends: Sequence[LineEnd], more: Sequence[Any] = (), colours: Mapping[str, str] | None = None
) -> None:
    """Name each line at its right end, without overlaps.

    If a name is long, or there is no room for all of them, the names go into a legend instead.

    ``more`` has further handles for the legend. It also has the names in ``colours`` that no line's end has: those of
    policies without a line of their own, or whose readings all failed.
    """
    named = {end.name for end in ends}
    more = [*(key for key in _colour_keys(colours or {}) if key.get_label() not in named), *more]
    # A long name beside a line would shrink the axes.
    if any(len(end.name) > LONGEST_LABEL for end in ends) or len(ends) * _LABEL_GAP > 1:
        more = [*_line_handles({end.name: end.colour for end in ends}), *more]
        ends = ()
    if more:
        put_legend(ax, more)
    ax.autoscale_view()  # sets the limits that heights are computed from
    # All at the longest line's end: lines that end earlier would have labels across the others.
    right = max((end.x for end in ends), default=0)
    for height, end in _label_heights(ax, ends):
        ax.annotate(
            end.name,
            (right, height),
            xycoords=("data", "axes fraction"),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            color=end.colour,
            fontsize=9.5,
            annotation_clip=False,
        )


def _label_heights(ax: Axes, ends: Sequence[LineEnd]) -> list[tuple[float, LineEnd]]:
    """Return a height for each label as a share of the axes, so that a logarithmic scale works too.

    Each label is at its line's height, or just above the label below it. If the highest label would be above the axes,
    all labels move down.
    """
    heights: list[tuple[float, LineEnd]] = []
    for end in sorted(ends, key=lambda end: end.y):
        height = ax.transLimits.transform(ax.transScale.transform((end.x, end.y)))[1]
        if heights:
            height = max(height, heights[-1][0] + _LABEL_GAP)
        heights.append((height, end))
    if not heights:
        return []
    over = max(0.0, heights[-1][0] - 1)
    return [(height - over, end) for height, end in heights]


def legend_below(figure: Figure, handles: Sequence[Any]) -> None:
    """Put one legend below all axes of a figure, which grows with it."""
    look = {"frameon": False, "labelcolor": INK, "fontsize": 9}

    def put(columns: int) -> Legend:
        return figure.legend(handles=handles, loc="outside lower center", ncols=columns, **look)

    _fit(figure, put, figure.bbox.width)


def put_legend(ax: Axes, handles: Sequence[Any], inside: str = "best") -> None:
    """Put a legend below a figure with one plot.

    If other plots share the figure, the legend is ``inside`` the axes, or below them if it is long.
    """
    if ax.figure.axes == [ax]:
        # Below, because inside a figure of one plot it would cover lines.
        legend_below(ax.figure, handles)
        return
    look: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": 8}
    if len(handles) <= _MOST_INSIDE:
        _write_names(ax.legend(handles=handles, loc=inside, **look))
        return
    # Below the labels of the axis, which have two lines.
    look |= {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 6}
    _fit(ax.figure, lambda columns: ax.legend(handles=handles, ncols=columns, **look), ax.bbox.width)


def _fit(figure: Figure, put: Callable[[int], Legend], width: float) -> None:
    """Put a legend with as many columns as fit into ``width`` pixels; the figure grows by its height."""
    for columns in range(_MOST_COLUMNS, 0, -1):
        legend = put(columns)
        _write_names(legend)
        size = legend.get_window_extent()
        if columns == 1 or size.width <= width:
            break
        legend.remove()
    whole = figure.figure  # a part of a figure has no height of its own
    whole.set_figheight(whole.get_figheight() + max(0, size.height / whole.dpi - _LEGEND_INCHES))


def _write_names(legend: Legend) -> None:
    """Shorten a legend's names, and reduce its markers to one size."""
    from matplotlib.lines import Line2D

    texts = legend.get_texts()
    for text, name in zip(texts, all_shortened([text.get_text() for text in texts]), strict=True):
        text.set_text(name)
    for line in legend.findobj(Line2D):
        line.set_markersize(min(line.get_markersize(), 8))
    verbatim(legend)


def panel_handles(colours: Mapping[str, str], readers: Iterable[str]) -> list[Any]:
    """Return the legend entries for several panels: the policies, then the line styles of baselines and seeds."""
    return [*_line_handles(colours), *thin_handles(colours, readers)]


def thin_handles(policies: Iterable[str], readers: Iterable[str]) -> list[Any]:
    """Return legend entries for thin lines: baselines among ``readers``, other training seeds among ``policies``."""
    from matplotlib.lines import Line2D

    handles = style_handles(readers)
    if other_seeds(policies):
        handles.append(Line2D([], [], color=INK, marker=".", **THIN_LINE, label="other training seeds"))
    return handles


def _line_handles(colours: Mapping[str, str]) -> list[Any]:
    from matplotlib.lines import Line2D

    others = other_seeds(colours)
    lines = {name: colour for name, colour in colours.items() if name not in others}
    return [Line2D([], [], color=colour, marker="o", markersize=4.5, label=name) for name, colour in lines.items()]


def _colour_keys(colours: Mapping[str, str]) -> list[Any]:
    """Return legend entries for colours alone, as thick lines."""
    keys = _line_handles(colours)
    for key in keys:
        key.set(marker="", linewidth=5)
    return keys


def style_handles(readers: Iterable[str]) -> list[Any]:
    """Return legend entries for the line styles of the baselines among ``readers``; none if there are no baselines."""
    from matplotlib.lines import Line2D

    present = set(readers)
    baselines = [reader for reader in BASELINES if reader in present]
    if not baselines:
        return []
    handles = []
    if present - set(baselines):
        handles.append(Line2D([], [], color=INK, marker="o", markersize=4.5, linewidth=2.2, label="with memory"))
    for reader in baselines:
        handles.append(Line2D([], [], color=INK, **look_of(reader, main=False), label=BASELINE_WORDS[reader]))
    return handles
