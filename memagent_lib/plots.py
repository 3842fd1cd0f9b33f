"""The figures: tidy frames in, ``Axes`` out, one look across all.

Colour says which policy, line style says which reader; every interval is drawn. Knows no run and no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memagent_lib.evaluate import summarise

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which the colour-blind can tell apart, without the yellow that white paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
GREY, INK = "#8a8a8a", "#333333"
DASHES: dict[str, Any] = {"overwrite": "-", "truncated": (0, (5, 2)), "blind": (0, (1, 1.6)), "full": (0, (5, 2, 1, 2))}
OTHER_DASHES = ((0, (7, 2)), (0, (3, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
BASELINE_WORDS = {"full": "whole document at once", "truncated": "document truncated to the window", "blind": "no document"}
REWARD = "critic/score/mean"


def style() -> dict[str, Any]:
    """The common look, as matplotlib settings; every plot here applies it to itself."""
    return {
        "axes.edgecolor": "#999999",
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.labelcolor": INK,
        "axes.labelsize": 10.5,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 12,
        "axes.titlepad": 12,
        "figure.constrained_layout.use": True,
        "figure.facecolor": "white",
        "font.size": 10.5,
        "grid.color": "#e6e6e6",
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "lines.linewidth": 2.0,
        "savefig.facecolor": "white",
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }


def accuracy_by_length(results: pd.DataFrame, ax: Axes | None = None, title: str = "Accuracy against document length") -> Axes:
    """Accuracy with 95 % Wilson intervals over the number of chunks, one line per policy and reader.

    Takes result rows (``policy, reader, chunks, score, ...``); with a ``chunk_tokens`` column, lengths are given in tokens too.
    Baselines are thin and in their policy's colour; they share one legend of line styles.
    """
    table = summarise(results, by=("policy", "reader", "chunks"))
    ax, colours, ends = _axes(ax, 6.8, 4.6), _colours(results["policy"]), []
    for (policy, reader), line in table.groupby(["policy", "reader"], sort=False):
        line, colour = line.sort_values("chunks"), colours[policy]
        if reader in BASELINE_WORDS:
            ax.plot(line["chunks"], line["accuracy"], color=colour, linestyle=_dashes(reader), linewidth=1.3, alpha=0.8)
            ax.vlines(line["chunks"], line["low"], line["high"], color=colour, alpha=0.35, linewidth=1.2)
            continue
        ax.plot(line["chunks"], line["accuracy"], color=colour, linestyle=_dashes(reader), marker="o", markersize=5, linewidth=2.2)
        ax.fill_between(line["chunks"], line["low"], line["high"], color=colour, alpha=0.15, linewidth=0)
        name = policy if reader == "overwrite" else f"{policy}, {reader}"
        ends.append((line["chunks"].iloc[-1], line["accuracy"].iloc[-1], name, colour))
    _share_axis(ax, "accuracy")
    _length_axis(ax, table["chunks"], _only(results, "chunk_tokens"))
    _label_ends(ax, ends)
    _style_legend(ax, [r for r in BASELINE_WORDS if r in set(table["reader"])])
    n = table["scored"]
    _title(ax, title, f"n = {n.min():,}{f' to {n.max():,}' if n.max() > n.min() else ''} per point, 95 % Wilson intervals")
    return ax


def capture_and_retention(results: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """The share of documents whose answer was in memory right after its chunk (capture), and at the end (retention)."""
    from memagent_lib.evaluate import wilson

    ax, ends = _axes(ax, 6.8, 4.2), []
    kept = results.dropna(subset=["captured", "retained"])
    colours = _colours(results["policy"])
    for policy, group in kept.groupby("policy", sort=False):
        for column, dashes, name in (("captured", (0, (4, 2)), "in memory after its chunk"), ("retained", "-", "in memory at the end")):
            by = group.groupby("chunks")[column].agg(lambda s: s.astype(float).sum()), group.groupby("chunks")[column].size()
            rates = [wilson(hits, n) for hits, n in zip(*by, strict=True)]
            chunks = by[0].index
            ax.plot(chunks, [r.value for r in rates], color=colours[policy], linestyle=dashes, marker="o", markersize=4.5)
            ax.fill_between(chunks, [r.low for r in rates], [r.high for r in rates], color=colours[policy], alpha=0.12, linewidth=0)
            ends.append((chunks[-1], rates[-1].value, f"{policy}: {name}", colours[policy]))
    _share_axis(ax, "share of documents")
    _length_axis(ax, kept["chunks"], _only(results, "chunk_tokens"))
    _label_ends(ax, ends)
    _title(ax, "Is the fact noted, and is it kept?", "95 % Wilson intervals")
    return ax


def memory_by_turn(traces: pd.DataFrame, ax: Axes | None = None, by: str = "policy") -> Axes:
    """Memory length in tokens after each chunk: the mean over traces and the middle 80 %. Memories cut at their limit are marked.

    Takes turn rows (:func:`memagent_lib.tracking.load_traces`) with a column ``by`` that names the lines.
    """
    from matplotlib.ticker import MaxNLocator

    ax, ends = _axes(ax, 6.8, 3.8), []
    reads = traces[traces["kind"] == "read"]
    reads = reads if by in reads else reads.assign(**{by: "memory"})
    colours = _colours(reads[by])
    for name, group in reads.groupby(by, sort=False):
        turn = group.groupby("turn")["reply_tokens"]
        mean = turn.mean()
        ax.plot(mean.index, mean, color=colours[name])
        ax.fill_between(mean.index, turn.quantile(0.1), turn.quantile(0.9), color=colours[name], alpha=0.15, linewidth=0)
        cut = group[group["finish_reason"] == "length"]
        ax.plot(cut["turn"], cut["reply_tokens"], "x", color=colours[name], markersize=5, alpha=0.5)
        ends.append((mean.index[-1], mean.iloc[-1], str(name), colours[name]))
    ax.set(xlabel="chunk", ylabel="memory, tokens")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(bottom=0)
    _label_ends(ax, ends)
    _title(ax, "Memory length by turn", "mean and middle 80 % of traces; x: cut at the token limit")
    return ax


def reward_curve(curve: pd.DataFrame, ax: Axes | None = None, metric: str = REWARD, window: int = 5, label: str = "reward") -> Axes:
    """A metric over training steps: each step, and its running mean. With several ``run_id``, the mean of runs and their range.

    Takes :func:`memagent_lib.tracking.load_curve`'s long form.
    """
    from matplotlib.ticker import MaxNLocator

    ax = _axes(ax, 6.8, 3.8)
    points = curve[curve["metric"] == metric]
    if points.empty:
        known = ", ".join(sorted(curve["metric"].unique())) or "none"
        raise ValueError(f"the curve has no metric {metric!r}; it has {known}")
    by_run = points.pivot_table(index="step", columns="run_id", values="value")
    smooth = by_run.rolling(window, min_periods=1).mean()
    if by_run.shape[1] == 1:
        ax.plot(by_run.index, by_run.iloc[:, 0], ".", color=COLOURS[0], alpha=0.35, markersize=5)
    else:
        ax.fill_between(smooth.index, smooth.min(axis=1), smooth.max(axis=1), color=COLOURS[0], alpha=0.18, linewidth=0)
    ax.plot(smooth.index, smooth.mean(axis=1), color=COLOURS[0])
    ax.set(xlabel="step", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    runs = f"; mean and range of {by_run.shape[1]} runs" if by_run.shape[1] > 1 else ""
    _title(ax, f"{label.capitalize()} by step", f"line: running mean of {window} steps{runs}")
    return ax


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    if ax is not None:
        return ax
    mpl.get_backend()  # chosen now: chosen inside rc_context, a notebook's backend would lose its settings with it
    with mpl.rc_context(style()):
        return plt.subplots(figsize=(width, height))[1]


def _colours(names: pd.Series) -> dict[str, str]:
    import seaborn as sns

    order = list(dict.fromkeys(names))
    return dict(zip(order, COLOURS if len(order) <= len(COLOURS) else sns.husl_palette(len(order), s=0.8, l=0.5), strict=False))


def _dashes(reader: str) -> Any:
    return DASHES.get(reader, OTHER_DASHES[sum(map(ord, reader)) % len(OTHER_DASHES)])


def _title(ax: Axes, title: str, small: str) -> None:
    ax.set_title(title + "\n", loc="left")
    ax.text(0, 1.025, small, transform=ax.transAxes, fontsize=9, color=GREY)


def _style_legend(ax: Axes, baselines: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    if not baselines:
        return
    memory = Line2D([], [], color=INK, marker="o", markersize=4.5, linewidth=2.2, label="with memory")
    others = [Line2D([], [], color=INK, linestyle=_dashes(r), linewidth=1.3, label=BASELINE_WORDS[r]) for r in baselines]
    ax.legend(handles=[memory, *others], loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=9, frameon=False)


def _share_axis(ax: Axes, label: str) -> None:
    from matplotlib.ticker import PercentFormatter

    ax.set(ylim=(-0.03, 1.03), ylabel=label, yticks=[0, 0.25, 0.5, 0.75, 1])
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def _length_axis(ax: Axes, chunks: pd.Series, chunk_tokens: int | None) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    at = sorted(chunks.dropna().unique())
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(at))
    ax.xaxis.set_minor_locator(NullLocator())
    tokens = [f"\n{_short(c * chunk_tokens)}" if chunk_tokens else "" for c in at]
    ax.set_xticklabels([f"{int(c):,}{t}" for c, t in zip(at, tokens, strict=True)])
    ax.set_xlabel("document length: chunks" + (", tokens" if chunk_tokens else ""))


def _short(tokens: float) -> str:
    for size, sign in ((1 << 20, "M"), (1 << 10, "K")):
        if tokens >= size:
            return f"{tokens / size:.3g}{sign}"
    return f"{tokens:.0f}"


def _only(frame: pd.DataFrame, column: str) -> int | None:
    """The one value of a column, if there is a column and it has one value."""
    values = frame[column].dropna().unique() if column in frame else []
    return int(values[0]) if len(values) == 1 else None


def _label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Name each line at its right end, apart from one another."""
    low, high = ax.get_ylim()
    gap, placed = (high - low) * 0.062, []
    for x, y, name, colour in sorted(ends, key=lambda end: end[1]):
        placed.append((x, max(y, placed[-1][1] + gap) if placed else y, name, colour))
    over = max(0.0, placed[-1][1] - high) if placed else 0.0
    right = max((x for x, *_ in placed), default=0)
    for _, y, name, colour in placed:
        ax.annotate(
            name,
            (right, y - over),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9.5,
            annotation_clip=False,
        )
