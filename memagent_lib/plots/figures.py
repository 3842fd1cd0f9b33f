"""Figures of evaluations, training and data sets: tidy frames in, ``Axes`` out.

Evaluations have one line per policy, reader and varied setting. Accuracy has intervals, cost has bands. This module
does not depend on runs or files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from memagent_lib.evaluation import Rate, keyed, line_name, lines_of, rate_of
from memagent_lib.plots import style
from memagent_lib.plots.style import COLOURS, GREY, finish, new_plot, put_legend, shortened, styled, without_data
from memagent_lib.trace import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REWARD = "critic/score/mean"
MOST_COLUMNS = 3
WINDOW = 5
"""How many steps a running mean covers."""
_ALL_FAILED = "every reading failed"
_LONGEST_TITLE = 28
_KEPT = "in memory"
_TURNS = re.compile(r" after (\d+) turns?")
_ENDS = {
    f"{_KEPT}, right": COLOURS[2],
    f"{_KEPT}, wrong": "#8fd3bd",
    "noted and lost to another value": COLOURS[3],
    "noted and lost to another statement": COLOURS[1],
    "noted and lost to nothing": COLOURS[4],
    "read but never noted": COLOURS[5],
    "not read yet": "#d0d0d0",
}
"""What becomes of a needed fact, in the order of a bar's parts, with their colours."""
_NOT_READING = {kind.name for kind in (Kind.ANSWER, Kind.DIRECT, Kind.BLIND, Kind.MERGE)}


@styled
def accuracy_by_length(results: pd.DataFrame) -> Axes:
    """Draw accuracy with 95 % intervals against the number of chunks, one line per policy, reader and settings.

    Takes result rows (``policy, reader, chunks, score, ...``); with a ``chunk_tokens`` column, the axis also has
    lengths in tokens. Baselines are thin lines in their policy's colour, and so are other training seeds of a policy
    (``trained, seed 1``).
    """
    ax = new_plot(6.8, 4.4)
    rows = keyed(results)
    _accuracy(rows, ax, style.looks_of(rows), "Accuracy against document length")
    put_legend(ax)
    return ax


@styled
def accuracy_by_task(results: pd.DataFrame) -> Axes:
    """Draw :func:`accuracy_by_length` for each task in its own panel, with one legend; return the first panel."""
    rows = keyed(results)
    tasks = list(rows["task"].unique())
    if len(tasks) == 1:
        return accuracy_by_length(rows)
    columns = min(MOST_COLUMNS, len(tasks))
    lines = -(-len(tasks) // columns)
    panels = style.new_axes(4.3 * columns, 3.3 * lines + 0.4, columns, lines)
    for ax in panels[len(tasks) :]:
        ax.remove()
    axes = panels[: len(tasks)]
    looks = style.looks_of(rows)  # of all tasks, so that a line has one colour in every panel
    for task, ax in zip(tasks, axes, strict=True):
        _accuracy(rows[rows["task"] == task], ax, looks, shortened(task.replace("_", " "), _LONGEST_TITLE))
    put_legend(*axes)
    return axes[0]


def _accuracy(rows: pd.DataFrame, ax: Axes, looks: dict[str, dict[str, Any]], title: str) -> None:
    """Draw the mean score of keyed rows by length, for each line of ``looks``, with intervals, title and caption."""
    if rows["score"].isna().all():
        without_data(ax, title, _ALL_FAILED)
        return
    drawn = style.with_a_length(rows)
    rates: list[Rate] = []
    for number, (line, look) in enumerate(looks.items()):
        by_length = drawn[drawn["line"] == line].dropna(subset=["score"]).groupby("chunks")
        of_line = [rate_of(of_length) for _, of_length in by_length]
        if of_line:
            x = style.side_by_side(pd.Series(list(by_length.groups)), number, len(looks))
            ax.plot(x, [rate.value for rate in of_line], **look)
            style.band(ax, x, [rate.low for rate in of_line], [rate.high for rate in of_line], look)
        rates += of_line
    style.length_axis(ax, rows["chunks"], style.tokens_of_a_chunk(drawn))
    # A little beyond 0 and 1, so that markers there are whole.
    ax.set(ylim=(-0.03, 1.03), ylabel="accuracy", yticks=[0, 0.25, 0.5, 0.75, 1])
    style.percent_axis(ax.yaxis)
    finish(ax, title, style.shared_sizes([rate.n for rate in rates], [rate.documents for rate in rates]))


@styled
def evidence_outcomes(results: pd.DataFrame) -> Axes:
    """Draw what became of the needed facts of all readings: a bar per task, length and line.

    A bar divides the facts by their outcome at the end: in memory with a right or a wrong answer, lost and what
    replaced it, or never noted. Beside it is for how many turns the lost facts were in memory: median and range.
    """
    title = "Where was the evidence lost?"
    rows = keyed(results)
    known = rows.dropna(subset=["outcomes"]) if "outcomes" in rows else rows[:0]
    if known.empty:
        return without_data(new_plot(6.8, 2), title, "no reading with a memory recorded what became of its evidence")
    drawn = style.with_a_length(known).sort_values(["task", "chunks"], kind="stable")
    fates = drawn.assign(outcome=drawn["outcomes"].str.split(" | ", regex=False)).explode("outcome", ignore_index=True)
    is_right = (fates["score"] >= 1).map({True: ", right", False: ", wrong"})
    fates["end"] = fates["outcome"].str.replace(_TURNS, "", regex=True)
    fates["end"] = fates["end"].mask(fates["end"] == _KEPT, _KEPT + is_right)
    fates["turns"] = fates["outcome"].str.extract(_TURNS, expand=False).astype(float)
    bars = fates.groupby(["task", "chunks", "line"], sort=False)
    ends = bars["end"].value_counts(normalize=True).unstack().reindex(list(bars.groups), columns=list(_ENDS))
    ax = new_plot(9, 1.2 + 0.3 * len(ends))
    ends.fillna(0.0).plot.barh(stacked=True, ax=ax, color=_ENDS, width=0.75, legend=False)
    for y, (_, turns) in enumerate(bars["turns"]):
        if turns.notna().any():
            spread = f"{turns.median():.0f} ({turns.min():.0f} to {turns.max():.0f})"
            ax.text(1.01, y, spread, va="center", fontsize=8)
    ax.set(xlim=(0, 1), ylim=(len(ends) - 0.5, -0.5), xlabel="share of the needed facts", ylabel="")
    ax.set_yticklabels([f"{task}, {chunks:.0f} chunks: {shortened(line)}" for task, chunks, line in ends.index])
    style.percent_axis(ax.xaxis)
    put_legend(ax)
    caption = (
        f"{style.sample_sizes('facts per bar', bars.size())}; right: turns until a fact was lost, median and range"
    )
    return finish(ax, title, caption)


@styled
def memory_by_turn(traces: pd.DataFrame) -> Axes:
    """Draw the length in tokens of the reply of each turn that reads: the mean over traces and the middle 80 %.

    For the reader ``overwrite`` the reply is the new memory. Takes turn rows
    (:meth:`memagent_lib.trace.Trace.to_frame`), and draws one line per policy and reader, if the rows have these
    columns. Memories truncated at their limit are marked, if there are any.
    """
    ax = new_plot(6.8, 3.8)
    title = "Memory length by turn"
    reads = traces[~traces["kind"].isin(_NOT_READING)]
    if reads.empty:
        return without_data(ax, title, "no reading has a memory")
    reads = reads.astype({"reply_tokens": float})
    # The turns of a single trace have no policy.
    lines = list(map(line_name, reads["policy"], reads["reader"])) if "policy" in reads else "memory"
    reads = reads.assign(policy=lines)
    for name, colour in style.colours_of(reads["policy"]).items():
        group = reads[reads["policy"] == name]
        tokens = group.groupby("turn")["reply_tokens"]
        mean = tokens.mean()
        look = {"marker": "o" if len(mean) == 1 else "", "linewidth": 2.2, "color": colour, "label": name}
        ax.plot(mean.index, mean, **look)
        style.band(ax, mean.index, tokens.quantile(0.1), tokens.quantile(0.9), look)
        cut = group[group["finish_reason"] == "length"]
        ax.plot(cut["turn"], cut["reply_tokens"], "x", color=colour, markersize=5, alpha=0.5)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(xlabel="turn", ylabel="memory, tokens", ylim=(0, None))
    if reads["policy"].nunique() > 1:
        put_legend(ax)
    # Turn 1 has every reading; later turns only those of long documents.
    counts = reads.groupby(["policy", "turn"]).size()
    captions = []
    if counts.max() > 1:
        captions.append(f"{style.sample_sizes('readings per turn', counts)}; mean and middle 80 %")
    if (reads["finish_reason"] == "length").any():
        captions.append("x: cut at the token limit")
    return finish(ax, title, "; ".join(captions))


@styled
def reward_curve(curve: pd.DataFrame, label: str = "reward") -> Axes:
    """Draw the reward over a run's training steps: a dot per step, and the running mean.

    Takes a curve in long form (``metric, step, value``). Before the first step, the curve may be empty, or have only
    the validation of step 0.
    """
    ax = new_plot(6.8, 3.8)
    title = f"{label.partition(':')[0].capitalize()} by step"
    points = curve[curve["metric"] == REWARD].set_index("step")["value"]
    if points.empty:
        return without_data(ax, title, "no step yet")
    ax.plot(points.index, points, "o", color=COLOURS[0], alpha=0.6, markersize=3.5, markeredgewidth=0)
    # The mean of each step and its neighbours on both sides; the first and last steps have fewer.
    ax.plot(points.index, points.rolling(WINDOW, min_periods=1, center=True).mean(), color=COLOURS[0], linewidth=2)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(xlabel="step", ylabel=label)
    return finish(ax, title, f"line: running mean of {WINDOW} steps; dots: each step")


@styled
def cost_by_length(results: pd.DataFrame) -> Axes:
    """Draw how many tokens a question costs against its document's length: the mean and the middle 80 %.

    There is one line per policy, reader and settings. Prompt and reply tokens both count, even if a prefix cache saved
    them. The dotted line shows a cost that grows linearly with length.
    """
    ax = new_plot(6.8, 4.4)
    title = "Cost against document length"
    rows = keyed(results)
    looks = style.looks_of(rows)
    # Failed readings have no turns, and their cost is unknown.
    read = rows[rows["turns"].notna()]
    if read.empty:
        return without_data(ax, title, _ALL_FAILED)
    drawn = style.with_a_length(read)
    # Beside a line whose readings all failed, pandas stores numbers as objects.
    drawn = drawn.assign(cost=(drawn["prompt_tokens"] + drawn["reply_tokens"]).astype(float))
    counts: list[int] = []
    for number, (name, group) in enumerate(drawn.groupby("line", sort=False)):
        cost = group.groupby("chunks")["cost"]
        mean = cost.mean()
        counts += list(cost.size())
        x = style.side_by_side(mean.index.to_series(), number, drawn["line"].nunique())
        ax.plot(x, mean, **looks[name])
        style.band(ax, x, cost.quantile(0.1), cost.quantile(0.9), looks[name])
    ends = mean.index[[0, -1]]
    ax.plot(ends, mean.iloc[0] * ends / ends[0], ":", color=GREY, linewidth=1.2, zorder=1)
    ax.set_yscale("log")  # with a logarithmic length, a linear cost is a straight line
    style.plain_numbers(ax.yaxis)
    ax.set_ylabel("tokens per question")
    style.length_axis(ax, read["chunks"], style.tokens_of_a_chunk(drawn))
    put_legend(ax)
    caption = f"{style.sample_sizes('readings per point', counts)}; mean and middle 80 %; dotted: linear in length"
    return finish(ax, title, caption)


@styled
def accuracy_by_depth(results: pd.DataFrame, bins: int = 5) -> Axes:
    """Draw a heat map of accuracy by document length and by depth of the last needed evidence.

    Takes the rows of one line. Raises ``ValueError`` if there are several.
    """
    import seaborn as sns

    title = "Does the position of the evidence matter?"
    results = keyed(results)
    lines = lines_of(results)
    if len(lines) > 1:
        raise ValueError(f"a heat map takes one line, got {', '.join(map(repr, lines))}; select one")
    scored = results.dropna(subset=["score", "depth"])
    if scored.empty:
        reason = "no scored reading is of a document that records where its evidence is"
        return without_data(new_plot(6.0, 1.6), title, reason)
    mean, n = _cells(style.with_a_length(scored), bins)
    ax = new_plot(max(6.0, 2.8 + 1.15 * mean.shape[1]), 0.62 * bins + 1.4)
    labels = (100 * mean).map("{:.0f} %".format).astype(str) + "\nn=" + n.astype(str)
    bar = {"label": "accuracy", "format": "{x:.0%}"}
    sns.heatmap(mean, ax=ax, vmin=0, vmax=1, annot=labels, fmt="", cmap="cividis", linewidths=1.5, cbar_kws=bar)
    ax.set_yticklabels([f"{100 * i / bins:.0f} to {100 * (i + 1) / bins:.0f} %" for i in range(bins)], rotation=0)
    tokens = style.tokens_of_a_chunk(results)
    lengths = scored["chunks"]
    ax.set_xticklabels([style.length_label(chunks, tokens) if lengths.notna().any() else "" for chunks in mean.columns])
    ax.set(xlabel=style.length_axis_label(lengths, tokens), ylabel="depth of the evidence")
    return finish(ax, title, f"{shortened(lines[0], _LONGEST_TITLE)}; 0 % is the beginning")


def _cells(rows: pd.DataFrame, bins: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the mean score and the number of questions, by depth (rows) and length (columns)."""
    # Edges of equal width, so that all heat maps can be compared.
    edges = [i / bins for i in range(bins + 1)]
    depth_bin = pd.cut(rows["depth"], edges, include_lowest=True, labels=range(bins))
    scores = rows["score"].astype(float)  # objects, as in cost_by_length
    cells = scores.groupby([depth_bin, rows["chunks"]], observed=False).agg(["mean", "size"])
    return cells["mean"].unstack("chunks"), cells["size"].unstack("chunks")


@styled
def paired_differences(differences: pd.DataFrame) -> Axes:
    """Draw the paired differences of lines, with their 95 % intervals, for each pair and length.

    Takes the rows of :func:`memagent_lib.evaluation.paired` or :func:`memagent_lib.evaluation.against`. An interval is
    coloured if it excludes zero, else grey.
    """
    rows = differences.to_dict("records")
    ax = new_plot(7.6, 1.6 + 0.62 * len(rows))
    if not rows:
        return without_data(ax, "Paired differences", "no other line has read the same documents")
    ax.axvline(0, color="black", linewidth=1)
    for y, row in enumerate(rows):
        colour = GREY
        if row["low"] > 0:
            colour = COLOURS[2]
        elif row["high"] < 0:
            colour = COLOURS[1]
        ax.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
        ax.plot(row["difference"], y, "o", color=colour, markersize=8)
        left, right = map(shortened, (row["left"], row["right"]))
        counts = f"of {row['n']}: {right} better on {row['right_only']}; {left} on {row['left_only']}"
        ax.text(0.01, y - 0.25, counts, transform=ax.get_yaxis_transform(), va="center", fontsize=8.5)
    # Symmetric, so that zero is in the middle; at least ten points, so that noise does not fill the figure.
    reach = max(0.1, 1.08 * float(differences[["low", "high"]].abs().max(axis=None)))
    ax.set(xlim=(-reach, reach), ylim=(len(rows) - 0.5, -0.5), xlabel="difference in accuracy, points")
    # Lengths are whole numbers, and pandas keeps them as floats beside an unknown one.
    lengths = [f"{row['chunks']:,.0f} chunks" if row["chunks"] > 0 else "no set length" for row in rows]
    ax.set_yticks(range(len(rows)), lengths)
    ax.xaxis.set_major_formatter(lambda x, _: f"{100 * x:+.6g}" if x else "0")
    caption = (
        f"{style.sample_sizes('questions', differences['n'])} read by both; 95 % intervals of the paired difference"
    )
    return finish(ax, "Paired differences in accuracy", caption)


@styled
def data_overview(frames: Mapping[str, pd.DataFrame]) -> list[Axes]:
    """Draw all figures of a data set in one row and return their axes.

    A figure is left out if its frame is empty, for example if no example has gold documents.
    """
    figures = {"examples": _document_lengths, "depths": _evidence_depths, "gold": _gold_positions}
    drawn = {name: draw for name, draw in figures.items() if len(frames[name])}
    # The height follows the first figure, which has a row per file.
    rows = max(3, frames["examples"]["file"].nunique())
    axes = style.new_axes(4.6 * len(drawn), 1.7 + 0.42 * rows, columns=len(drawn))
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
    ax.xaxis.set_major_formatter(lambda x, _: style.short_count(x))
    ax.xaxis.set_minor_formatter(NullFormatter())
    counts = examples.groupby("file", sort=False).size()
    ax.set_yticks(range(len(counts)), [f"{shortened(name, 20)}  n = {count:,}" for name, count in counts.items()])
    finish(ax, "How long are the documents?", "a dot per document")


def _evidence_depths(depths: pd.DataFrame, ax: Axes) -> None:
    _cumulative(depths, "file", ax, "How deep is the evidence?", "depth of the evidence")


def _gold_positions(gold: pd.DataFrame, ax: Axes) -> None:
    lines = gold.assign(line=[f"gold document {hop + 1}" for hop in gold["gold"]])
    _cumulative(lines, "line", ax, "Where are the gold documents?", "position among the documents")


def _cumulative(rows: pd.DataFrame, by: str, ax: Axes, title: str, label: str) -> None:
    """Draw the cumulative share of ``depth``, one curve for each value of the column ``by``."""
    import seaborn as sns

    # The line of a uniform distribution.
    ax.plot([0, 1], [0, 1], ":", color=GREY, linewidth=1.2)
    colours = style.colours_of(rows[by])
    sns.ecdfplot(rows, x="depth", hue=by, palette=colours, ax=ax, legend=len(colours) > 1)
    if ax.get_legend():
        sns.move_legend(ax, "best", title="", fontsize=8)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel=label, ylabel="share up to there")
    style.percent_axis(ax.xaxis)
    style.percent_axis(ax.yaxis)
    finish(ax, title, f"n = {len(rows):,}; dotted: evenly spread")
