"""Figures of evaluations and training: tidy frames in, ``Axes`` out, all in the same style.

There is one line per policy, reader and varied setting, each in its own colour. Baselines, and repeats with other
training seeds, are thin lines in their policy's colour. Accuracy has intervals, except for those repeats; cost has
bands, except for baselines. This module does not depend on runs or files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from memagent_lib.evaluation import (
    COSTS,
    LINE,
    Rate,
    keyed,
    line_name,
    lines_of,
    rate_of,
    score_and_cost,
    summarise,
)
from memagent_lib.plots.figure_style import (
    COLOURS,
    GREY,
    INK,
    MAIN_LINE,
    MARKERS,
    WINDOW,
    axes_or_new,
    coloured,
    colours_of,
    cost_axis,
    count_axis,
    finish,
    intervals_of,
    length_axis,
    length_axis_label,
    length_label,
    logarithmic,
    look_of,
    new_axes,
    other_seeds,
    running_mean,
    sample_sizes,
    share_axis,
    shared_sizes,
    shortened,
    tokens_of_a_chunk,
    without_data,
)
from memagent_lib.plots.line_names import LineEnd, label_ends, legend_below, panel_handles, style_handles, thin_handles
from memagent_lib.readers import BASELINES, READ_KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REWARD = "critic/score/mean"
MOST_COLUMNS = 3
_ACCURACY = "Accuracy against document length"
_EVIDENCE = "Is the evidence noted, and does it stay in memory?"
_DEPTH = "Does the position of the evidence matter?"
_COST = "Cost against document length"
_MEMORY = "Memory length by turn"
_PHRASES = "What was in memory, and for how long?"
_ALL_FAILED = "every reading failed"
_LONGEST_TITLE = 28
"""Longer names of data in a title are shortened; a title may have two."""
_LONGEST_COUNTED = 32
"""Longer names beside the intervals of paired differences are shortened."""
_CAPTURE_DASHES = (0, (4, 2))


def accuracy_by_length(results: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw accuracy with 95 % intervals against the number of chunks, one line per policy, reader and settings.

    Takes result rows (``policy, reader, chunks, score, ...``); with a ``chunk_tokens`` column, the axis also has
    lengths in tokens. Baselines are thin lines in their policy's colour and share one legend of line styles. A policy
    that repeats another one with a different training seed (``trained, seed 1``) is a thin line in the same colour.
    """
    ax = axes_or_new(ax, 6.8, 4.6)
    rows = keyed(results)
    if rows["score"].isna().all():
        return without_data(ax, _ACCURACY, _ALL_FAILED)
    owners, colours = coloured(rows)
    ends, caption = _accuracy_lines(rows, ax, owners, colours)
    label_ends(ax, ends, thin_handles(owners.values(), rows["reader"]), colours)
    return finish(ax, _ACCURACY, caption)


def accuracy_by_task(results: pd.DataFrame, axes: Sequence[Axes] | None = None) -> Axes:
    """Draw :func:`accuracy_by_length` for each task in its own panel, with one legend; return the first panel.

    ``axes`` has one entry for each task, in order of appearance.
    """
    rows = keyed(results)
    tasks = list(rows["task"].unique())
    if len(tasks) == 1:
        return accuracy_by_length(rows, None if axes is None else axes[0])
    if axes is None:
        columns = 2 if len(tasks) == 4 else min(MOST_COLUMNS, len(tasks))
        lines = -(-len(tasks) // columns)
        panels = new_axes(4.3 * columns, 3.3 * lines + 0.6, columns, lines)
        for ax in panels[len(tasks) :]:
            ax.remove()
        axes = panels[: len(tasks)]
    owners, colours = coloured(rows)  # of all tasks, so that a line has one colour in every panel
    for task, ax in zip(tasks, axes, strict=True):
        of_task = rows[rows["task"] == task]
        title = shortened(task.replace("_", " "), _LONGEST_TITLE)
        if of_task["score"].isna().all():
            without_data(ax, title, _ALL_FAILED)
            continue
        _, caption = _accuracy_lines(of_task, ax, owners, colours)
        finish(ax, title, caption)
    legend_below(axes[0].figure, panel_handles(colours, rows["reader"]))
    return axes[0]


def _accuracy_lines(
    rows: pd.DataFrame, ax: Axes, owners: Mapping[str, str], colours: Mapping[str, str]
) -> tuple[list[LineEnd], str]:
    """Draw the lines of keyed rows; return the ends of those with a memory and a score, and the caption."""
    drawn = _with_a_length(rows)
    table = summarise(drawn, by=("line", *LINE, "chunks"))
    others = other_seeds(colours)
    order = {owner: at for at, owner in enumerate(colours)}
    lines = sorted(table.groupby("line", sort=False), key=lambda line: order[owners[line[0]]])
    ends = []
    for number, (name, of_line) in enumerate(lines):
        line = of_line.sort_values("chunks")
        reader = line["reader"].iloc[0]
        colour = colours[owners[name]]
        x = _side_by_side(line["chunks"], table["chunks"], number, len(lines))
        main = reader not in BASELINES and owners[name] not in others
        ax.plot(x, line["accuracy"], color=colour, **look_of(reader, main))
        if main:
            _band(ax, x, line["low"], line["high"], colour)
            known = line["accuracy"].dropna()  # at the longest documents, all readings may have failed
            if len(known):
                ends.append(LineEnd(x[known.index[-1]], known.iloc[-1], name, colour))
        elif owners[name] not in others:
            ax.vlines(x, line["low"], line["high"], color=colour, alpha=0.35, linewidth=1.2)
    share_axis(ax, "accuracy")
    length_axis(ax, rows["chunks"], tokens_of_a_chunk(rows))
    sizes = (table["scored"], table["scored_documents"])
    return ends, f"{shared_sizes('per point', *sizes)}, {intervals_of(*map(sum, sizes))}"


def _with_a_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that can be drawn by length; the axis says how many others there are.

    Documents of other projects have no length in chunks. If no row has one, all rows are drawn at one length.
    """
    known = rows["chunks"].notna()
    return rows[known] if known.any() else rows.assign(chunks=1.0)


def _side_by_side(x: pd.Series, lengths: pd.Series, number: int, count: int) -> pd.Series:
    """Return where a line's points are drawn: at their lengths, or beside those of other lines if all have one length.

    At a single length, all intervals are bars at the same x and would cover one another.
    """
    if lengths.nunique() > 1:
        return x
    return x * 1.06 ** (number - (count - 1) / 2)


def _band(ax: Axes, x: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str) -> None:
    """Draw a band around a line, or a bar at a single point, where a band would have no width."""
    if len(x) == 1:
        ax.vlines(x, low, high, color=colour, alpha=0.35, linewidth=4)
    else:
        ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def capture_and_retention(results: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw capture and retention against the number of chunks.

    Capture (dashed) is the share of the evidence in memory right after its chunk; retention is the share of the
    captured evidence still in memory at the end.
    """
    from matplotlib.lines import Line2D

    ax = axes_or_new(ax, 6.8, 4.4)
    rows = keyed(results)
    owners, colours = coloured(rows)  # of all lines, so that a line has one colour in every figure
    # Baselines and failed readings have no capture.
    rows = rows.dropna(subset=["capture"])
    if rows.empty:
        return without_data(ax, _EVIDENCE, "no reading with a memory is of a document that records its evidence")
    lengths = rows["chunks"]
    rows = _with_a_length(rows)
    ends: dict[str, LineEnd] = {}
    drawn: list[Rate] = []
    for number, (line, group) in enumerate(rows.groupby("line", sort=False)):
        colour = colours[owners[line]]
        for column, dashes in (("capture", _CAPTURE_DASHES), ("retention", "-")):
            rates = _rates(group.dropna(subset=[column]), column)
            chunks = _side_by_side(pd.Series(list(rates), dtype=float), rows["chunks"], number, rows["line"].nunique())
            values = [rate.value for rate in rates.values()]
            low = [rate.low for rate in rates.values()]
            high = [rate.high for rate in rates.values()]
            ax.plot(chunks, values, color=colour, linestyle=dashes, **MAIN_LINE)
            _band(ax, chunks, low, high, colour)
            # The label goes to the end of retention, which is drawn last.
            drawn += rates.values()
            if rates:
                ends[line] = LineEnd(chunks.iloc[-1], values[-1], line, colour)
    share_axis(ax, "share of the evidence")
    length_axis(ax, lengths, tokens_of_a_chunk(rows))
    legend = [
        Line2D([], [], color=INK, linestyle=_CAPTURE_DASHES, label="in memory right after its chunk"),
        Line2D([], [], color=INK, linestyle="-", label="of those, in memory at the end"),
    ]
    label_ends(ax, list(ends.values()), legend)
    sizes = ([rate.n for rate in drawn], [rate.documents for rate in drawn])
    return finish(ax, _EVIDENCE, f"{shared_sizes('per point', *sizes)}, {intervals_of(*map(sum, sizes))}")


def _rates(group: pd.DataFrame, column: str) -> dict[int, Rate]:
    """Return the mean of ``column`` with its interval, by number of chunks."""
    return {chunks: rate_of(rows, column) for chunks, rows in group.groupby("chunks")}


def memory_by_turn(traces: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the length in tokens of the reply of each turn that reads: the mean over traces and the middle 80 %.

    For the reader ``overwrite`` the reply is the new memory. A gate's KEEP counts its own token, not the memory that
    stays, and thoughts count too. Takes turn rows (:meth:`memagent_lib.trace.Trace.to_frame`), and draws one line per
    policy and reader, if the rows have these columns. Memories truncated at their limit are marked, if there are any.
    """
    ax = axes_or_new(ax, 6.8, 3.8)
    reads = traces[traces["kind"].isin(READ_KINDS)]
    if reads.empty:
        return without_data(ax, _MEMORY, "no reading has a memory")
    reads = reads.astype({"reply_tokens": float})
    if "policy" not in reads:
        reads = reads.assign(policy="memory")
    if "reader" in reads:
        pairs = zip(reads["policy"], reads["reader"], strict=True)
        reads = reads.assign(policy=[line_name(policy, reader) for policy, reader in pairs])
    colours = colours_of(reads["policy"])
    ends: list[LineEnd] = []
    counts: list[int] = []
    for name, group in reads.groupby("policy", sort=False):
        tokens = group.groupby("turn")["reply_tokens"]
        mean = tokens.mean()
        # Turn 1 has every reading; later turns only those of long documents.
        counts += list(tokens.size())
        # A line of one point would be invisible.
        ax.plot(mean.index, mean, marker="o" if len(mean) == 1 else "", color=colours[name])
        _band(ax, mean.index, tokens.quantile(0.1), tokens.quantile(0.9), colours[name])
        cut = group[group["finish_reason"] == "length"]
        ax.plot(cut["turn"], cut["reply_tokens"], "x", color=colours[name], markersize=5, alpha=0.5)
        ends.append(LineEnd(mean.index[-1], mean.iloc[-1], str(name), colours[name]))
    count_axis(ax, "turn")
    ax.set(ylabel="memory, tokens", ylim=(0, None))
    label_ends(ax, ends if len(ends) > 1 else ())
    captions = []
    if max(counts) > 1:
        captions.append(f"{sample_sizes('readings per turn', counts)}; mean and middle 80 %")
    if (reads["finish_reason"] == "length").any():
        captions.append("x: cut at the token limit")
    return finish(ax, _MEMORY, "; ".join(captions))


def reward_curve(curve: pd.DataFrame, metric: str = REWARD, label: str = "reward", ax: Axes | None = None) -> Axes:
    """Draw a metric over a run's training steps: a dot per step, and the running mean.

    Takes a curve in long form (``metric, step, value``). Before the first step, the curve may be empty, or have only
    the validation of step 0.
    """
    ax = axes_or_new(ax, 6.8, 3.8)
    if curve.empty or curve["step"].max() < 1:
        ax.text(0.5, 0.5, "no step yet", transform=ax.transAxes, ha="center", color=GREY)
        return ax
    points = curve[curve["metric"] == metric].set_index("step")["value"]
    if points.empty:
        known = ", ".join(sorted(curve["metric"].unique())) or "none"
        raise ValueError(f"the curve has no metric {metric!r}; it has {known}")
    ax.plot(points.index, points, "o", color=COLOURS[0], alpha=0.6, markersize=3.5, markeredgewidth=0)
    ax.plot(points.index, running_mean(points), color=COLOURS[0])
    count_axis(ax, "step")
    ax.set_ylabel(label)
    caption = f"line: running mean of {WINDOW} steps; dots: each step"
    return finish(ax, f"{label.partition(':')[0].capitalize()} by step", caption)


def phrase_lives(phrases: pd.DataFrame, turns: int, most: int = 20, ax: Axes | None = None) -> Axes:
    """Draw when each phrase was in memory: one bar per phrase, coloured if the phrase is in the last memory.

    Takes the frame of :meth:`memagent_lib.diagnostics.Provenance.to_frame`. If there are more than ``most`` phrases,
    only the longest-lived are drawn.
    """
    if phrases.empty:
        return without_data(axes_or_new(ax, 9, 2.2), _PHRASES, "no words of the memories come from a chunk")
    # A phrase that was never dropped lives to the end of the last chunk.
    lives = phrases.assign(end=phrases["dropped"].astype(float).fillna(turns + 1))
    lives = lives.assign(length=lives["end"] - lives["brought"])
    # The longest-lived by their length, then in reading order, so that the bars form a staircase.
    lives = lives.nlargest(most, "length", keep="first").sort_values("brought")
    ax = axes_or_new(ax, 9, 1.5 + 0.36 * max(2, len(lives)))
    colours = [COLOURS[2] if at_the_end else GREY for at_the_end in lives["dropped"].isna()]
    ax.barh(range(len(lives)), lives["length"], left=lives["brought"], height=0.5, color=colours)
    ax.set_yticks(range(len(lives)), [shortened(text) for text in lives["text"]])
    ax.set(xlim=(1, turns + 1), ylim=(len(lives) - 0.5, -0.5))
    count_axis(ax, "chunk")
    ax.grid(True, axis="x")
    ax.grid(False, axis="y")
    caption = "green: there at the end; grey: dropped"
    if len(phrases) > most:
        caption += f"; the {most} longest of {len(phrases):,}"
    return finish(ax, _PHRASES, caption)


def cost_by_length(results: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how many tokens a question costs against its document's length: the mean and the middle 80 %.

    There is one line per policy, reader and settings. Prompt and reply tokens both count, even if a prefix cache saved
    them. The dotted line shows a cost that grows linearly with length.
    """
    ax = axes_or_new(ax, 6.8, 4.4)
    rows = keyed(results)
    owners, colours = coloured(rows)  # of all lines, so that a line has one colour in every figure
    # Failed readings have no turns, and their cost is unknown.
    rows = rows[rows["turns"].notna()]
    if rows.empty:
        return without_data(ax, _COST, _ALL_FAILED)
    ax.set_yscale("log")  # with a logarithmic length, a linear cost is a straight line
    logarithmic(ax.yaxis)
    lengths = rows["chunks"]
    rows = _with_a_length(rows)
    # Beside a line whose readings all failed, pandas stores numbers as objects.
    rows = rows.assign(cost=(rows["prompt_tokens"] + rows["reply_tokens"]).astype(float))
    ends: list[LineEnd] = []
    counts: list[int] = []
    linear: pd.Series | None = None
    for number, (line, group) in enumerate(rows.groupby("line", sort=False)):
        cost = group.groupby("chunks")["cost"]
        mean = cost.mean()
        counts += list(cost.size())
        reader = group["reader"].iloc[0]
        colour = colours[owners[line]]
        x = _side_by_side(mean.index.to_series(), rows["chunks"], number, rows["line"].nunique())
        main = reader not in BASELINES
        ax.plot(x, mean, color=colour, **look_of(reader, main))
        if main:
            _band(ax, x, cost.quantile(0.1), cost.quantile(0.9), colour)
            ends.append(LineEnd(x.iloc[-1], mean.iloc[-1], line, colour))
            linear = mean.iloc[0] * mean.index.to_series() / mean.index[0]
    if linear is not None:
        ax.plot(linear.index[[0, -1]], linear.iloc[[0, -1]], ":", color=GREY, linewidth=1.2, zorder=1)
    ax.set_ylabel("tokens per question")
    if rows["cost"].nunique() == 1:  # matplotlib gives a logarithmic axis of a single value no width
        ax.set_ylim(rows["cost"].iloc[0] / 2, rows["cost"].iloc[0] * 2)
    length_axis(ax, lengths, tokens_of_a_chunk(rows))
    label_ends(ax, ends, style_handles(rows["reader"]), colours)
    caption = f"{sample_sizes('per point', counts)}; mean and middle 80 %; dotted: linear in length"
    return finish(ax, _COST, caption)


def score_against_cost(results: pd.DataFrame, cost: str = "tokens", ax: Axes | None = None) -> Axes:
    """Draw each line's accuracy against what a question cost it, on the documents that every line has scored.

    ``cost`` is one of :data:`memagent_lib.evaluation.COSTS`. The grey steps are the Pareto line: no line above or to
    the left of it. Readers without a memory are hollow, and lines at one point are rings around one another. Raises
    ``ValueError`` as :func:`memagent_lib.evaluation.score_and_cost` does.
    """
    points = score_and_cost(results, cost).reset_index(drop=True)
    ax = axes_or_new(ax, 6.8, 4.4)
    owners, colours = coloured(keyed(results))
    handles = []
    above = points.iloc[::-1].groupby([cost, "accuracy"]).cumcount()  # later points of the same values
    for number, point in points.iterrows():
        colour = colours[owners[point["line"]]]
        size = 8 + 4 * above[number]  # the last one would hide the others
        look = {"color": colour, "marker": MARKERS.get(point["reader"], "o"), "markersize": size, "linestyle": "none"}
        if point["reader"] in BASELINES:
            look["markerfacecolor"] = "none"
        ax.vlines(point[cost], point["low"], point["high"], color=colour, alpha=0.35, linewidth=2)
        handles += ax.plot(point[cost], point["accuracy"], label=point["line"], **look)
    best = points[points["pareto"]].sort_values(cost)
    ax.plot(best[cost], best["accuracy"], drawstyle="steps-post", color=GREY, linewidth=1.2, zorder=1)
    cost_axis(ax, points[cost])
    ax.set_xlabel(COSTS[cost])
    share_axis(ax, "accuracy")
    label_ends(ax, (), handles)
    sizes = points[["n", "documents"]].iloc[0]
    common = shared_sizes("questions that all have answered", *([size] for size in sizes))
    caption = f"{common}; {intervals_of(*sizes)}; grey: Pareto line"
    return finish(ax, "Accuracy against cost", caption)


def accuracy_by_depth(results: pd.DataFrame, bins: int = 5, ax: Axes | None = None) -> Axes:
    """Draw a heat map of accuracy by document length and by depth of the last needed evidence.

    Takes the rows of one line. Raises ``ValueError`` if there are several.
    """
    import seaborn as sns

    results = keyed(results)
    line = _only_line(results)
    if "depth" not in results or results["depth"].isna().all():
        return without_data(axes_or_new(ax, 6.0, 1.6), _DEPTH, "no document records where its evidence is")
    scored = results.dropna(subset=["score", "depth"])
    if scored.empty:
        return without_data(axes_or_new(ax, 6.0, 1.6), _DEPTH, _ALL_FAILED)
    mean, n = _cells(_with_a_length(scored), bins)
    ax = axes_or_new(ax, max(6.0, 2.8 + 1.15 * mean.shape[1]), 0.62 * bins + 1.4)
    labels = (100 * mean).map("{:.0f} %".format).astype(str) + "\nn=" + n.astype(str)
    bar = {"label": "accuracy", "format": "{x:.0%}"}
    look = {"cmap": "cividis", "fmt": "", "linewidths": 1.5, "linecolor": "none", "annot_kws": {"fontsize": 9}}
    sns.heatmap(mean, ax=ax, vmin=0, vmax=1, annot=labels, cbar_kws=bar, **look)
    scale = ax.collections[0].colorbar.ax  # seaborn draws it outside the common look
    scale.tick_params(colors=INK)
    scale.yaxis.label.set_color(INK)
    ax.set_yticklabels([f"{100 * i / bins:.0f} to {100 * (i + 1) / bins:.0f} %" for i in range(bins)], rotation=0)
    tokens = tokens_of_a_chunk(results)
    lengths = scored["chunks"]
    ax.set_xticklabels([length_label(chunks, tokens) if lengths.notna().any() else "" for chunks in mean.columns])
    ax.set(xlabel=length_axis_label(lengths, tokens), ylabel="depth of the evidence")
    ax.grid(False)
    ax.tick_params(length=0)
    caption = f"{line}; 0 % is the beginning"
    return finish(ax, _DEPTH, caption)


def _only_line(rows: pd.DataFrame) -> str:
    """Return the name of the only line of keyed rows, shortened."""
    lines = lines_of(rows)
    if len(lines) > 1:
        raise ValueError(f"a heat map takes one line, got {', '.join(map(repr, lines))}; select one")
    return shortened(lines[0], _LONGEST_TITLE)


def _cells(rows: pd.DataFrame, bins: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the mean score and the number of questions, by depth (rows) and length (columns)."""
    # Edges of equal width, so that all heat maps of a report can be compared.
    edges = [i / bins for i in range(bins + 1)]
    depth_bin = pd.cut(rows["depth"], edges, include_lowest=True, labels=range(bins))
    scores = rows["score"].astype(float)  # objects, as in cost_by_length
    cells = scores.groupby([depth_bin, rows["chunks"]], observed=False).agg(["mean", "size"])
    return cells["mean"].unstack("chunks"), cells["size"].unstack("chunks")


def paired_differences(differences: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the paired differences from a baseline, with their 95 % intervals, for each line and length.

    Takes the rows of :func:`memagent_lib.evaluation.paired` or :func:`memagent_lib.evaluation.against`. An interval is
    coloured if it excludes zero, else grey.
    """
    from matplotlib.ticker import FuncFormatter

    rows = differences.to_dict("records")
    if not rows:
        ax = axes_or_new(ax, 7.6, 1.6)
        return without_data(ax, "Paired differences", "no other line has read the same documents")
    left = shortened(rows[0]["left"], _LONGEST_COUNTED)
    rights = list(dict.fromkeys(differences["right"]))
    ax = axes_or_new(ax, 7.6, 1.6 + 0.62 * len(rows))
    ax.axvline(0, color=INK, linewidth=1)
    for y, row in enumerate(rows):
        colour = GREY
        if row["low"] > 0:
            colour = COLOURS[2]
        elif row["high"] < 0:
            colour = COLOURS[1]
        ax.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
        ax.plot(row["difference"], y, "o", color=colour, markersize=8)
        right = shortened(row["right"], _LONGEST_COUNTED)
        counts = f"{right} better on {row['right_only']}, {left} on {row['left_only']}, of {row['n']}"
        ax.text(0.01, y - 0.25, counts, transform=ax.get_yaxis_transform(), va="center", fontsize=8.5, color=INK)
    # Symmetric, so that zero is in the middle; at least ten points, so that noise does not fill the figure.
    reach = max(0.1, 1.08 * float(differences[["low", "high"]].abs().max(axis=None)))
    ax.set(xlim=(-reach, reach), ylim=(len(rows) - 0.5, -0.5), xlabel="difference in accuracy, points")
    # Lengths are whole numbers, and pandas keeps them as floats beside an unknown one.
    lengths = [f"{row['chunks']:,.0f} chunks" if row["chunks"] > 0 else "no set length" for row in rows]
    ax.set_yticks(range(len(rows)), lengths)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:+.6g}" if x else "0"))
    ax.grid(True, axis="x")
    ax.grid(False, axis="y")
    read = shared_sizes("questions", differences["n"], differences.get("documents", differences["n"]))
    caption = f"{read} read by both; 95 % intervals of the paired difference"
    baseline = shortened(rows[0]["left"], _LONGEST_TITLE)
    title = f"Accuracy minus that of {baseline}"
    if len(rights) == 1:
        title = f"Accuracy of {shortened(rights[0], _LONGEST_TITLE)} minus {baseline}"
    return finish(ax, title, caption)
