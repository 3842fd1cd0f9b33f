"""The figures: tidy frames in, ``Axes`` out, one look across all.

Colour says which policy, line style says which reader; every interval is drawn. Knows no run and no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from memagent_lib.evaluation import Rate, summarise, wilson
from memagent_lib.plots.figure_style import (
    BASELINE_WORDS,
    COLOURS,
    GREY,
    INK,
    MAIN_LINE,
    THIN_LINE,
    WINDOW,
    LineEnd,
    colours_of,
    count_axis,
    counted,
    dashes_of,
    finish,
    label_ends,
    legend_below,
    length_axis,
    length_axis_label,
    length_label,
    line_name,
    new_axes,
    other_seeds,
    running_mean,
    save_figure,
    share_axis,
    style_handles,
    thin_handles,
    tokens_of_a_chunk,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REWARD = "critic/score/mean"
MOST_COLUMNS = 3
_CAPTURED, _RETAINED = "in memory right after its chunk", "of those, in memory at the end"


def accuracy_by_length(results: pd.DataFrame) -> Axes:
    """Accuracy with 95 % Wilson intervals over the number of chunks, one line per policy and reader.

    Takes result rows (``policy, reader, chunks, score, ...``); with a ``chunk_tokens`` column, lengths are given in
    tokens too. Baselines are thin and in their policy's colour; they share one legend of line styles. A policy that
    differs from another in its training seed alone (``trained, seed 1``) has a thin line in that one's colour.
    """
    ax = new_axes(6.8, 4.6)
    ends, told = _accuracy_lines(results, ax, colours_of(results["policy"]))
    label_ends(ax, ends, thin_handles(results["policy"], results["reader"]))
    return finish(ax, "Accuracy against document length", told)


def accuracy_by_task(results: pd.DataFrame) -> Axes:
    """:func:`accuracy_by_length`; of several tasks a panel for each, side by side, with one legend. Returns
    the first panel.
    """
    tasks = list(results["task"].unique())
    if len(tasks) == 1:
        return accuracy_by_length(results)
    columns = min(MOST_COLUMNS, len(tasks))
    rows, colours = -(-len(tasks) // columns), colours_of(results["policy"])
    axes = new_axes(4.3 * columns, 3.3 * rows + 0.6, columns, rows)
    for task, ax in zip(tasks, axes, strict=False):
        _, told = _accuracy_lines(results[results["task"] == task], ax, colours)
        finish(ax, task.replace("_", " "), told)
    for ax in axes[len(tasks) :]:
        ax.remove()
    legend_below(axes[0], colours, results["reader"])
    return axes[0]


def _accuracy_lines(results: pd.DataFrame, ax: Axes, colours: Mapping[str, str]) -> tuple[list[LineEnd], str]:
    """Draw the lines; returns where those with memory end, and what the marks mean."""
    table, ends = summarise(results, by=("policy", "reader", "chunks")), []
    others = other_seeds(colours)
    lines = sorted(table.groupby(["policy", "reader"], sort=False), key=lambda line: list(colours).index(line[0][0]))
    alone = table["chunks"].nunique() == 1
    for number, ((policy, reader), line) in enumerate(lines):
        line, colour = line.sort_values("chunks"), colours[policy]
        beside = 1.06 ** (number - (len(lines) - 1) / 2) if alone else 1.0  # bars would cover one another
        at = beside * line["chunks"]
        main = reader not in BASELINE_WORDS and policy not in others
        look = MAIN_LINE if main else THIN_LINE
        ax.plot(at, line["accuracy"], color=colour, linestyle=dashes_of(reader), **look)
        if main:
            _band(ax, at, line["low"], line["high"], colour)
            ends.append(LineEnd(at.iloc[-1], line["accuracy"].iloc[-1], line_name(policy, reader), colour))
        elif policy not in others:
            ax.vlines(at, line["low"], line["high"], color=colour, alpha=0.35, linewidth=1.2)
    share_axis(ax, "accuracy")
    length_axis(ax, table["chunks"], tokens_of_a_chunk(results))
    if alone:
        ax.margins(x=0.8)
    return ends, f"{counted('per point', table['scored'])}, 95 % Wilson intervals"


def _band(ax: Axes, at: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str) -> None:
    """A band around a line, and a bar around a single point, at which a band has no width."""
    if len(at) == 1:
        ax.vlines(at, low, high, color=colour, alpha=0.35, linewidth=4)
    else:
        ax.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def capture_and_retention(results: pd.DataFrame) -> Axes:
    """The share of needed facts in memory right after their chunk (capture), and of those, at the end (retention)."""
    from matplotlib.lines import Line2D

    ax, ends, counts = new_axes(6.8, 4.4), {}, []
    kept = results.dropna(subset=["capture"])
    colours, dashed = colours_of(results["policy"]), (0, (4, 2))
    for policy, group in kept.groupby("policy", sort=False):
        for column, dashes in (("capture", dashed), ("retention", "-")):
            rates = _rates(group.dropna(subset=[column]), column)
            chunks, colour = list(rates), colours[policy]
            counts += [rate.n for rate in rates.values()]
            low, high = [rate.low for rate in rates.values()], [rate.high for rate in rates.values()]
            ax.plot(chunks, [rate.value for rate in rates.values()], color=colour, linestyle=dashes, **MAIN_LINE)
            _band(ax, chunks, low, high, colour)
            if chunks:
                ends[policy] = LineEnd(chunks[-1], rates[chunks[-1]].value, policy, colour)
    share_axis(ax, "share of facts")
    length_axis(ax, kept["chunks"], tokens_of_a_chunk(results))
    told = ((dashed, _CAPTURED), ("-", _RETAINED))
    label_ends(
        ax, list(ends.values()), [Line2D([], [], color=INK, linestyle=style, label=words) for style, words in told]
    )
    return finish(ax, "Is the fact noted, and is it kept?", f"{counted('per point', counts)}, 95 % Wilson intervals")


def _rates(group: pd.DataFrame, column: str) -> dict[int, Rate]:
    by_length = group.groupby("chunks")[column]
    return {chunks: wilson(float(values.astype(float).sum()), len(values)) for chunks, values in by_length}


def memory_by_turn(traces: pd.DataFrame) -> Axes:
    """Memory length in tokens after each chunk: the mean over traces and the middle 80 %. Memories cut at their limit
    are marked.

    Takes turn rows (:meth:`memagent_lib.trace.Trace.to_frame`); a column ``policy`` names lines.
    """
    ax, ends = new_axes(6.8, 3.8), []
    reads = traces[traces["kind"].isin(("read", "gate", "recall"))]
    reads = reads if "policy" in reads else reads.assign(policy="memory")
    colours, most = colours_of(reads["policy"]), 0
    for name, group in reads.groupby("policy", sort=False):
        turn, colour = group.groupby("turn")["reply_tokens"], colours[name]
        mean, most = turn.mean(), max(most, turn.size().max())
        ax.plot(mean.index, mean, color=colour)
        _band(ax, mean.index, turn.quantile(0.1), turn.quantile(0.9), colour)
        cut = group[group["finish_reason"] == "length"]
        ax.plot(cut["turn"], cut["reply_tokens"], "x", color=colour, markersize=5, alpha=0.5)
        ends.append(LineEnd(mean.index[-1], mean.iloc[-1], str(name), colour))
    count_axis(ax, "chunk")
    ax.set(ylabel="memory, tokens", ylim=(0, None))
    label_ends(ax, ends if len(ends) > 1 else ())
    told = f"mean and middle 80 % of {most:,} readings; " if most > 1 else ""
    return finish(ax, "Memory length by turn", f"{told}x: cut at the token limit")


def reward_curve(curve: pd.DataFrame, metric: str = REWARD, label: str = "reward") -> Axes:
    """A metric over a run's training steps: each step, and its running mean.

    Takes a curve in long form (``metric, step, value``). Without a row, as before the first step of a run, it says so.
    """
    ax = new_axes(6.8, 3.8)
    if curve.empty:
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
    told = f"line: running mean of {WINDOW} steps; dots: each step"
    return finish(ax, f"{label.partition(':')[0].capitalize()} by step", told)


def phrase_lives(phrases: pd.DataFrame, turns: int, most: int = 20) -> Axes:
    """From which chunk to which each phrase was in memory, one bar per phrase; what the memory held at the end is in
    colour.

    Takes :meth:`memagent_lib.diagnostics.Provenance.to_frame`; of more than ``most`` phrases, those that stayed
    longest.
    """
    lives = phrases.assign(end=phrases["dropped"].astype(float).fillna(turns + 1))
    lives = lives.assign(length=lives["end"] - lives["brought"])
    lives = lives.nlargest(most, "length", keep="first").sort_values("brought")
    ax = new_axes(9, 1.5 + 0.36 * max(2, len(lives)))
    colours = [COLOURS[2] if kept else GREY for kept in lives["dropped"].isna()]
    ax.barh(range(len(lives)), lives["length"], left=lives["brought"], height=0.5, color=colours)
    ax.set_yticks(range(len(lives)), [_clipped(text) for text in lives["text"]])
    ax.set(xlim=(1, turns + 1), ylim=(len(lives) - 0.5, -0.5))
    count_axis(ax, "chunk")
    ax.grid(True, axis="x")
    ax.grid(False, axis="y")
    few = f"; the {most} longest of {len(phrases):,}" if len(phrases) > most else ""
    return finish(ax, "What was in memory, and for how long?", f"green: kept to the end; grey: dropped{few}")


def _clipped(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def cost_by_length(results: pd.DataFrame) -> Axes:
    """What a document costs to read over its length, in tokens of prompts and replies together, those that a prefix
    cache saved included: the mean and the middle 80 %, one line per policy and reader.

    A reader whose cost is linear runs along the dotted line.
    """
    rows = results[results["turns"].notna()]
    rows = rows.assign(cost=rows["prompt_tokens"] + rows["reply_tokens"])
    ax, colours, ends, counts = new_axes(6.8, 4.4), colours_of(results["policy"]), [], []
    ax.set_yscale("log")
    for (policy, reader), group in rows.groupby(["policy", "reader"], sort=False):
        spent, colour, main = group.groupby("chunks")["cost"], colours[policy], reader not in BASELINE_WORDS
        mean, look = spent.mean(), MAIN_LINE if main else THIN_LINE
        counts += list(spent.size())
        ax.plot(mean.index, mean, color=colour, linestyle=dashes_of(reader), **look)
        if main:
            _band(ax, mean.index, spent.quantile(0.1), spent.quantile(0.9), colour)
            ends.append(LineEnd(mean.index[-1], mean.iloc[-1], line_name(policy, reader), colour))
            guide = mean
    if ends:
        first, last = guide.index[[0, -1]]
        ax.plot([first, last], [guide.iloc[0], guide.iloc[0] * last / first], ":", color=GREY, linewidth=1.2, zorder=1)
    ax.set_ylabel("tokens per document")
    length_axis(ax, rows["chunks"], tokens_of_a_chunk(results))
    label_ends(ax, ends, style_handles(rows["reader"]))
    told = f"{counted('per point', counts)}; mean and middle 80 %; dotted: linear in length"
    return finish(ax, "Cost against document length", told)


def accuracy_by_depth(results: pd.DataFrame, bins: int = 5) -> Axes:
    """A heat map of one policy and reader: accuracy by document length and depth of the last needed fact."""
    import seaborn as sns

    policy, reader = _only_one(results)
    mean, n = _cells(results, bins)
    ax = new_axes(max(6.0, 2.8 + 1.15 * mean.shape[1]), 0.62 * bins + 1.4)
    shown = (100 * mean).map("{:.0f} %".format).astype(str) + "\nn=" + n.astype(str)
    bar = {"label": "accuracy", "format": "{x:.0%}"}
    look = {"cmap": "cividis", "fmt": "", "linewidths": 1.5, "linecolor": "none", "annot_kws": {"fontsize": 9}}
    sns.heatmap(mean, ax=ax, vmin=0, vmax=1, annot=shown, cbar_kws=bar, **look)
    scale = ax.collections[0].colorbar.ax  # drawn by seaborn, which knows none of the common look
    scale.tick_params(colors=INK)
    scale.yaxis.label.set_color(INK)
    ax.set_yticklabels([f"{100 * i / bins:.0f} to {100 * (i + 1) / bins:.0f} %" for i in range(bins)], rotation=0)
    tokens = tokens_of_a_chunk(results)
    ax.set_xticklabels([length_label(c, tokens) for c in mean.columns])
    ax.set(xlabel=length_axis_label(tokens), ylabel="depth of the fact")
    ax.grid(False)
    ax.tick_params(length=0)
    return finish(ax, "Does the place of the fact matter?", f"{policy}, {reader}; 0 % is the beginning")


def _only_one(results: pd.DataFrame) -> tuple[str, str]:
    """The one policy and reader of rows that say how deep their fact stands."""
    if "depth" not in results or results["depth"].isna().all():
        raise ValueError(
            "no result says how deep its fact stands (column depth); evaluate again, on data that records its evidence"
        )
    pairs = list(results[["policy", "reader"]].drop_duplicates().itertuples(index=False, name=None))
    if len(pairs) > 1:
        listed = ", ".join(f"{policy!r} {reader}" for policy, reader in pairs)
        raise ValueError(f"a heat map shows one policy and reader, got {listed}; select one")
    return pairs[0]


def _cells(results: pd.DataFrame, bins: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean score and number of documents by depth (rows) and length (columns)."""
    rows = results.dropna(subset=["score", "depth"])
    shares = pd.cut(rows["depth"], [i / bins for i in range(bins + 1)], include_lowest=True, labels=range(bins))
    cells = rows.groupby([shares, "chunks"], observed=False)["score"].agg(["mean", "size"])
    return cells["mean"].unstack("chunks"), cells["size"].unstack("chunks")


def paired_differences(differences: pd.DataFrame) -> Axes:
    """Right minus left on the very same documents, with 95 % intervals, by length
    (:func:`memagent_lib.evaluation.paired`).

    An interval that leaves out zero is drawn in colour, any other one grey.
    """
    from matplotlib.ticker import FuncFormatter

    left, right = differences.attrs.get("names", ("left", "right"))
    ax = new_axes(7.6, 1.6 + 0.62 * len(differences))
    ax.axvline(0, color=INK, linewidth=1)
    for place, row in enumerate(differences.to_dict("records")):
        colour = COLOURS[2] if row["low"] > 0 else COLOURS[1] if row["high"] < 0 else GREY
        ax.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=3, solid_capstyle="butt")
        ax.plot(row["difference"], place, "o", color=colour, markersize=8)
        told = f"{right} better on {row['right_only']}, {left} on {row['left_only']}, of {row['n']}"
        ax.text(0.01, place - 0.25, told, transform=ax.get_yaxis_transform(), va="center", fontsize=8.5, color=INK)
    reach = max(0.1, 1.08 * float(differences[["low", "high"]].abs().max(axis=None)))
    ax.set(xlim=(-reach, reach), ylim=(len(differences) - 0.5, -0.5), xlabel="difference in accuracy, points")
    ax.set_yticks(range(len(differences)), [f"{int(c):,} chunks" for c in differences["chunks"]])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:+.0f}" if x else "0"))
    ax.grid(True, axis="x")
    ax.grid(False, axis="y")
    told = f"{counted('documents', differences['n'])} read by both; 95 % intervals of the paired difference"
    return finish(ax, f"Accuracy of {right} minus {left}", told)


__all__ = [
    "COLOURS",
    "GREY",
    "accuracy_by_depth",
    "accuracy_by_length",
    "accuracy_by_task",
    "capture_and_retention",
    "cost_by_length",
    "memory_by_turn",
    "paired_differences",
    "phrase_lives",
    "reward_curve",
    "save_figure",
]
