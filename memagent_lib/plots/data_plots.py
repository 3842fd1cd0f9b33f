"""Figures of a data set: its documents' lengths, the depth of their evidence, and the positions of gold documents.

The functions take the frames of :func:`memagent_lib.data.data_files`, and do not depend on files or tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from memagent_lib.plots.style import (
    COLOURS,
    GREY,
    colours_of,
    finish,
    new_axes,
    percent_axis,
    short_count,
    shortened,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@styled
def data_overview(frames: Mapping[str, pd.DataFrame]) -> list[Axes]:
    """Draw all figures of a data set in one row and return their axes.

    A figure is left out if its frame is empty, for example if no example has gold documents.
    """
    figures = {"examples": _document_lengths, "depths": _evidence_depths, "gold": _gold_positions}
    drawn = {name: draw for name, draw in figures.items() if len(frames[name])}
    # The height follows the first figure, which has a row per file.
    rows = max(3, frames["examples"]["file"].nunique())
    axes = new_axes(4.6 * len(drawn), 1.7 + 0.42 * rows, columns=len(drawn))
    for (name, draw), ax in zip(drawn.items(), axes, strict=True):
        draw(frames[name], ax)
    return axes


def _document_lengths(examples: pd.DataFrame, ax: Axes) -> None:
    """Draw one dot per document at its length, one row per file.

    Lengths are in tokens if the tokens of every document are known, else in characters.
    """
    import seaborn as sns
    from matplotlib.ticker import LogLocator, NullFormatter

    unit = "tokens" if examples["tokens"].notna().all() else "characters"
    sns.stripplot(examples, x=unit, y="file", ax=ax, color=COLOURS[0], alpha=0.45, size=4, jitter=0.25)
    ax.set_xscale("log", base=2)
    ax.set(xlabel=f"{unit}, log scale", ylabel="")
    ax.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
    ax.xaxis.set_major_formatter(lambda x, _: short_count(x))
    ax.xaxis.set_minor_formatter(NullFormatter())
    counts = examples.groupby("file", sort=False).size()
    ax.set_yticks(range(len(counts)), [f"{shortened(name, 20)}  n = {count:,}" for name, count in counts.items()])
    finish(ax, "How long are the documents?", "a dot per document")


def _evidence_depths(depths: pd.DataFrame, ax: Axes) -> None:
    """Draw the share of evidence up to each depth of the document, one line per file."""
    _cumulative(depths, "file", ax, "How deep is the evidence?", "depth of the evidence")


def _gold_positions(gold: pd.DataFrame, ax: Axes) -> None:
    """Draw where the gold documents are among the others, one line per hop."""
    lines = gold.assign(line=[f"gold document {hop + 1}" for hop in gold["gold"]])
    _cumulative(lines, "line", ax, "Where are the gold documents?", "position among the documents")


def _cumulative(rows: pd.DataFrame, by: str, ax: Axes, title: str, label: str) -> None:
    """Draw the cumulative share of ``depth``, one curve for each value of the column ``by``."""
    import seaborn as sns

    # The line of a uniform distribution.
    ax.plot([0, 1], [0, 1], ":", color=GREY, linewidth=1.2)
    colours = colours_of(rows[by])
    sns.ecdfplot(rows, x="depth", hue=by, palette=colours, ax=ax, legend=len(colours) > 1)
    if ax.get_legend():
        sns.move_legend(ax, "best", title="", fontsize=8)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel=label, ylabel="share up to there")
    percent_axis(ax.xaxis)
    percent_axis(ax.yaxis)
    finish(ax, title, f"n = {len(rows):,}; dotted: evenly spread")
