"""Pictures of a data set: how long its documents are, how deep its facts stand, where its gold documents are.

Frames of :mod:`memagent_lib.data.overview` in, ``Axes`` out, in the look of :mod:`memagent_lib.plots`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_lib.plots.figure_style import COLOURS, GREY, INK, finish, new_axes, percent_axis, short

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from matplotlib.axes import Axes


def overview(frames: Mapping[str, pd.DataFrame]) -> list[Axes]:
    """All pictures of a data set in one row; the last is there only where examples have gold documents among others."""
    drawn = [(lengths, "examples"), (depths, "depths"), (gold_places, "gold")]
    drawn = [(draw, name) for draw, name in drawn if len(frames[name])]
    axes = new_axes(4.6 * len(drawn), 1.7 + 0.42 * max(3, frames["examples"]["file"].nunique()), columns=len(drawn))
    return [draw(frames[name], ax) for (draw, name), ax in zip(drawn, axes, strict=True)]


def lengths(examples: pd.DataFrame, ax: Axes) -> Axes:
    """One dot per document: its length in tokens, where those are recorded, else in characters. A row per file."""
    import seaborn as sns
    from matplotlib.ticker import FuncFormatter, LogLocator

    unit = "tokens" if examples["tokens"].notna().all() else "characters"
    sns.stripplot(examples, x=unit, y="file", ax=ax, color=COLOURS[0], alpha=0.45, size=4, jitter=0.25)
    ax.set_xscale("log", base=2)
    ax.set(xlabel=f"{unit}, log scale", ylabel="")
    ax.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))
    n = examples.groupby("file", sort=False).size()
    ax.set_yticks(range(len(n)), [f"{name}  n = {count:,}" for name, count in n.items()])
    return finish(ax, "How long are the documents?", "a dot per document")


def depths(facts: pd.DataFrame, ax: Axes) -> Axes:
    """How deep the needed facts stand: the share of them up to each depth, a line per file; even is the diagonal."""
    return _spread(facts.assign(line=facts["file"]), ax, "How deep do the facts stand?", "depth of the fact")


def gold_places(gold: pd.DataFrame, ax: Axes) -> Axes:
    """Where the gold documents stand among the others, a line per hop. Even places follow the diagonal."""
    lines = gold.assign(line=[f"gold document {i + 1}" for i in gold["gold"]])
    return _spread(lines, ax, "Where are the gold documents?", "place among the documents")


def _spread(rows: pd.DataFrame, ax: Axes, title: str, label: str) -> Axes:
    import seaborn as sns

    lines = list(rows["line"].unique())
    colours = list(COLOURS[: len(lines)]) if len(lines) <= len(COLOURS) else sns.color_palette("cividis", len(lines))
    ax.plot([0, 1], [0, 1], ":", color=GREY, linewidth=1.2)
    sns.ecdfplot(
        rows, x="depth", hue="line", hue_order=lines, palette=colours, ax=ax, linewidth=1.6, legend=len(lines) > 1
    )
    if legend := ax.get_legend():
        legend.set_title(None)
        sns.move_legend(ax, "upper left", frameon=False, fontsize=8.5, title=None, handlelength=1.2, labelcolor=INK)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel=label, ylabel="share up to there")
    percent_axis(ax.xaxis)
    percent_axis(ax.yaxis)
    return finish(ax, title, f"n = {len(rows):,}; dotted: evenly spread")
