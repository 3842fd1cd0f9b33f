"""The figures: tidy frames in, ``Axes`` out, one look across all.

Colour says which policy, line style says which reader; every interval is drawn. Knows no run and no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from memagent_lib.evaluation.evaluator import summarise, wilson

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which the colour-blind can tell apart, without the yellow that white paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
GREY, INK = "#8a8a8a", "#333333"
DASHES: dict[str, Any] = {"overwrite": "-", "truncated": (0, (5, 2)), "blind": (0, (1, 1.6)), "full": (0, (5, 2, 1, 2))}
OTHER_DASHES = ((0, (7, 2)), (0, (3, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
BASELINE_WORDS = {
    "full": "whole document at once",
    "truncated": "document truncated to the window",
    "blind": "no document",
}
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


def accuracy_by_length(
    results: pd.DataFrame, ax: Axes | None = None, title: str = "Accuracy against document length"
) -> Axes:
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
        ax.plot(
            line["chunks"],
            line["accuracy"],
            color=colour,
            linestyle=_dashes(reader),
            marker="o",
            markersize=5,
            linewidth=2.2,
        )
        ax.fill_between(line["chunks"], line["low"], line["high"], color=colour, alpha=0.15, linewidth=0)
        name = policy if reader == "overwrite" else f"{policy}, {reader}"
        ends.append((line["chunks"].iloc[-1], line["accuracy"].iloc[-1], name, colour))
    _share_axis(ax, "accuracy")
    _length_axis(ax, table["chunks"], _only(results, "chunk_tokens"))
    _label_ends(ax, ends)
    _style_legend(ax, [r for r in BASELINE_WORDS if r in set(table["reader"])])
    n = table["scored"]
    return finish(
        ax, title, f"n = {n.min():,}{f' to {n.max():,}' if n.max() > n.min() else ''} per point, 95 % Wilson intervals"
    )


def capture_and_retention(results: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """The share of documents whose answer was in memory right after its chunk (capture), and at the end (retention)."""
    ax, ends = _axes(ax, 6.8, 4.2), []
    kept = results.dropna(subset=["captured", "retained"])
    colours = _colours(results["policy"])
    for policy, group in kept.groupby("policy", sort=False):
        for column, dashes, name in (
            ("captured", (0, (4, 2)), "in memory after its chunk"),
            ("retained", "-", "in memory at the end"),
        ):
            by = (
                group.groupby("chunks")[column].agg(lambda s: s.astype(float).sum()),
                group.groupby("chunks")[column].size(),
            )
            rates = [wilson(hits, n) for hits, n in zip(*by, strict=True)]
            chunks = by[0].index
            ax.plot(
                chunks, [r.value for r in rates], color=colours[policy], linestyle=dashes, marker="o", markersize=4.5
            )
            ax.fill_between(
                chunks, [r.low for r in rates], [r.high for r in rates], color=colours[policy], alpha=0.12, linewidth=0
            )
            ends.append((chunks[-1], rates[-1].value, f"{policy}: {name}", colours[policy]))
    _share_axis(ax, "share of documents")
    _length_axis(ax, kept["chunks"], _only(results, "chunk_tokens"))
    _label_ends(ax, ends)
    return finish(ax, "Is the fact noted, and is it kept?", "95 % Wilson intervals")


def memory_by_turn(traces: pd.DataFrame, ax: Axes | None = None, by: str = "policy") -> Axes:
    """Memory length in tokens after each chunk: the mean over traces and the middle 80 %. Memories cut at their limit are marked.

    Takes turn rows (:func:`memagent_lib.tracking.runs.load_traces`) with a column ``by`` that names the lines.
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
        ax.fill_between(
            mean.index, turn.quantile(0.1), turn.quantile(0.9), color=colours[name], alpha=0.15, linewidth=0
        )
        cut = group[group["finish_reason"] == "length"]
        ax.plot(cut["turn"], cut["reply_tokens"], "x", color=colours[name], markersize=5, alpha=0.5)
        ends.append((mean.index[-1], mean.iloc[-1], str(name), colours[name]))
    ax.set(xlabel="chunk", ylabel="memory, tokens")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(bottom=0)
    _label_ends(ax, ends)
    return finish(ax, "Memory length by turn", "mean and middle 80 % of traces; x: cut at the token limit")


def reward_curve(
    curve: pd.DataFrame,
    ax: Axes | None = None,
    metric: str = REWARD,
    window: int = 5,
    label: str = "reward",
    by: str | None = None,
) -> Axes:
    """A metric over training steps: each step, and its running mean. Of several ``run_id``, the mean of runs and their range.

    Takes :func:`memagent_lib.tracking.runs.load_curve`'s long form. A column ``by`` (a recipe, say) makes one line of the runs of each
    of its values. Without a row, as before the first step of a run, it says so.
    """
    from matplotlib.ticker import MaxNLocator

    ax, ends = _axes(ax, 6.8, 3.8), []
    if curve.empty:
        ax.text(0.5, 0.5, "no step yet", transform=ax.transAxes, ha="center", color=GREY)
        return ax
    points = curve[curve["metric"] == metric]
    if points.empty:
        known = ", ".join(sorted(curve["metric"].unique())) or "none"
        raise ValueError(f"the curve has no metric {metric!r}; it has {known}")
    points = points if by else points.assign(**{(by := "line"): label})
    colours, most = _colours(points[by]), 1
    for name, group in points.groupby(by, sort=False):
        by_run = group.pivot_table(index="step", columns="run_id", values="value")
        smooth, most = by_run.rolling(window, min_periods=1).mean(), max(most, by_run.shape[1])
        mean = smooth.mean(axis=1)
        if by_run.shape[1] == 1:
            ax.plot(by_run.index, by_run.iloc[:, 0], ".", color=colours[name], alpha=0.35, markersize=5)
        else:
            ax.fill_between(
                smooth.index, smooth.min(axis=1), smooth.max(axis=1), color=colours[name], alpha=0.18, linewidth=0
            )
        ax.plot(mean.index, mean, color=colours[name])
        ends.append((mean.index[-1], mean.iloc[-1], str(name), colours[name]))
    ax.set(xlabel="step", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(ends) > 1:
        _label_ends(ax, ends)
    runs = f"; mean and range of {most} runs" if most > 1 else ""
    return finish(ax, f"{label.capitalize()} by step", f"line: running mean of {window} steps{runs}")


def phrase_lives(phrases: pd.DataFrame, turns: int, ax: Axes | None = None, most: int = 20) -> Axes:
    """From which chunk to which each phrase was in memory, one bar per phrase; what the memory held at the end is in colour.

    Takes :meth:`memagent_lib.diagnostics.provenance.Provenance.to_frame`; of more than ``most`` phrases, those that stayed longest.
    """
    from matplotlib.ticker import MaxNLocator

    lives = phrases.assign(end=phrases["dropped"].astype(float).fillna(turns))
    lives = (
        lives.assign(length=lives["end"] - lives["brought"])
        .nlargest(most, "length", keep="first")
        .sort_values("brought")
    )
    ax = _axes(ax, 7.6, 1.5 + 0.36 * max(2, len(lives)))
    kept = lives["dropped"].isna()
    ax.barh(
        range(len(lives)),
        lives["length"],
        left=lives["brought"],
        height=0.5,
        color=[COLOURS[2] if k else GREY for k in kept],
    )
    ax.set_yticks(range(len(lives)), [_clipped(text) for text in lives["text"]])
    ax.set(xlim=(0, turns), ylim=(len(lives) - 0.5, -0.5), xlabel="chunk")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(True, axis="x")
    ax.grid(False, axis="y")
    few = f"; the {most} that stayed longest of {len(phrases):,}" if len(phrases) > most else ""
    return finish(ax, "What was in memory, and for how long?", f"green: still there at the end; grey: dropped{few}")


def _clipped(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


COSTS = {"tokens": "tokens per document", "seconds": "seconds per document"}


def cost_by_length(results: pd.DataFrame, ax: Axes | None = None, cost: str = "tokens") -> Axes:
    """What a document costs to read over its length: the mean and the middle 80 %, one line per policy and reader.

    ``cost`` is ``tokens`` (prompts and replies together, those that a prefix cache saved included) or ``seconds`` (from the first
    turn to the last, with other documents read beside it). A reader whose cost is linear runs along the dotted line.
    """
    if cost not in COSTS:
        raise ValueError(f"no cost {cost!r}; choose from {', '.join(COSTS)}")
    rows = results[results["turns"].notna()]
    rows = rows.assign(cost=rows["prompt_tokens"] + rows["reply_tokens"] if cost == "tokens" else rows["seconds"])
    ax, colours, ends = _axes(ax, 6.8, 4.4), _colours(results["policy"]), []
    ax.set_yscale("log")
    for (policy, reader), group in rows.groupby(["policy", "reader"], sort=False):
        spent = group.groupby("chunks")["cost"]
        mean, colour, main = spent.mean(), colours[policy], reader not in BASELINE_WORDS
        marks = {"marker": "o", "markersize": 5, "linewidth": 2.2} if main else {"linewidth": 1.3, "alpha": 0.8}
        ax.plot(mean.index, mean, color=colour, linestyle=_dashes(reader), **marks)
        if main:
            ax.fill_between(mean.index, spent.quantile(0.1), spent.quantile(0.9), color=colour, alpha=0.15, linewidth=0)
            ends.append(
                (mean.index[-1], mean.iloc[-1], policy if reader == "overwrite" else f"{policy}, {reader}", colour)
            )
            guide = mean
    if ends:
        first, last = guide.index[[0, -1]]
        ax.plot([first, last], [guide.iloc[0], guide.iloc[0] * last / first], ":", color=GREY, linewidth=1.2, zorder=1)
    ax.set_ylabel(COSTS[cost])
    _length_axis(ax, rows["chunks"], _only(results, "chunk_tokens"))
    _label_ends(ax, ends)
    _style_legend(ax, [r for r in BASELINE_WORDS if r in set(rows["reader"])])
    return finish(
        ax, "Cost against document length", "mean and middle 80 %; dotted: twice the document, twice the cost"
    )


def accuracy_by_depth(results: pd.DataFrame, ax: Axes | None = None, bins: int = 5) -> Axes:
    """A heat map of one policy and reader: accuracy by document length and by how deep in it the last needed fact stands."""
    import pandas as pd
    import seaborn as sns

    if "depth" not in results or results["depth"].isna().all():
        raise ValueError(
            "no result says how deep its fact stands (column depth); evaluate again, on data that records its evidence"
        )
    if len(of := results[["policy", "reader"]].drop_duplicates()) > 1:
        listed = ", ".join(f"{policy!r} {reader}" for policy, reader in of.itertuples(index=False))
        raise ValueError(f"a heat map shows one policy and reader, got {listed}; select one")
    rows = results.dropna(subset=["score", "depth"])
    shares = pd.cut(rows["depth"], [i / bins for i in range(bins + 1)], include_lowest=True, labels=range(bins))
    cells = rows.groupby([shares, "chunks"], observed=False)["score"].agg(["mean", "size"])
    mean, n = cells["mean"].unstack("chunks"), cells["size"].unstack("chunks")
    shown = (100 * mean).map("{:.0f} %".format).astype(str) + "\nn=" + n.astype(str)
    ax = _axes(ax, max(6.0, 2.8 + 1.15 * mean.shape[1]), 0.62 * bins + 1.4)
    bar = {"label": "accuracy", "format": "{x:.0%}"}
    sns.heatmap(
        mean,
        ax=ax,
        vmin=0,
        vmax=1,
        cmap="cividis",
        annot=shown,
        fmt="",
        linewidths=1.5,
        cbar_kws=bar,
        annot_kws={"fontsize": 9},
    )
    ax.set_yticklabels([f"{100 * i / bins:.0f} to {100 * (i + 1) / bins:.0f} %" for i in range(bins)], rotation=0)
    tokens = _only(results, "chunk_tokens")
    ax.set_xticklabels([_length(c, tokens) for c in mean.columns])
    ax.set(xlabel=_length_label(tokens), ylabel="depth of the fact")
    ax.grid(False)
    ax.tick_params(length=0)
    ((policy, reader),) = of.itertuples(index=False)
    return finish(ax, "Does the place of the fact matter?", f"{policy}, {reader}; 0 % is the beginning")


def paired_differences(differences: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Right minus left on the very same documents, with 95 % intervals, by length (:func:`memagent_lib.evaluation.comparison.paired`).

    An interval that leaves out zero is drawn in colour, any other one grey.
    """
    from matplotlib.ticker import FuncFormatter

    left, right = differences.attrs.get("names", ("left", "right"))
    ax = _axes(ax, 7.6, 1.5 + 0.5 * len(differences))
    ax.axvline(0, color=INK, linewidth=1)
    for place, row in enumerate(differences.to_dict("records")):
        colour = COLOURS[2] if row["low"] > 0 else COLOURS[1] if row["high"] < 0 else GREY
        ax.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=3, solid_capstyle="butt")
        ax.plot(row["difference"], place, "o", color=colour, markersize=8)
        told = f"{right} better on {row['right_only']}, {left} on {row['left_only']}, of {row['n']}"
        ax.annotate(
            told,
            (1, place),
            xytext=(10, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    reach = max(0.1, 1.08 * float(differences[["low", "high"]].abs().max(axis=None)))
    ax.set(xlim=(-reach, reach), ylim=(len(differences) - 0.5, -0.5), xlabel="difference in accuracy, points")
    ax.set_yticks(range(len(differences)), [f"{int(c):,} chunks" for c in differences["chunks"]])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:+.0f}" if x else "0"))
    ax.grid(True, axis="x")
    ax.grid(False, axis="y")
    return finish(
        ax, f"Accuracy of {right} minus {left}", "same documents read by both; 95 % intervals of the paired difference"
    )


def new_axes(width: float, height: float, columns: int = 1) -> Any:
    """Axes of a new figure in the common look: one, or with ``columns`` a row of them."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    _load_backend()
    with mpl.rc_context(style()):
        made = plt.subplots(1, columns, figsize=(width, height), squeeze=False)[1][0]
    return made if columns > 1 else made[0]


@cache
def _load_backend() -> None:
    """Have matplotlib load its backend outside of any ``rc_context``, whose end would undo what a notebook's backend sets."""
    import matplotlib.pyplot as plt

    plt.close(plt.figure())


def finish(ax: Axes, title: str, small: str) -> Axes:
    """Give a figure its title, and below it in small what its marks mean."""
    ax.set_title(title + "\n", loc="left")
    ax.text(0, 1.025, small, transform=ax.transAxes, fontsize=9, color=GREY)
    return ax


def short(count: float) -> str:
    """A count in at most four characters: 512, 8K, 3.5M; K and M are powers of two, as the field counts tokens."""
    for size, sign in ((1 << 20, "M"), (1 << 10, "K")):
        if count >= size:
            return f"{count / size:.3g}{sign}"
    return f"{count:.0f}"


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    return new_axes(width, height) if ax is None else ax


def _colours(names: pd.Series) -> dict[str, str]:
    import seaborn as sns

    order = list(dict.fromkeys(names))
    return dict(
        zip(order, COLOURS if len(order) <= len(COLOURS) else sns.husl_palette(len(order), s=0.8, l=0.5), strict=False)
    )


def _dashes(reader: str) -> Any:
    return DASHES.get(reader, OTHER_DASHES[sum(map(ord, reader)) % len(OTHER_DASHES)])


def _style_legend(ax: Axes, baselines: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    if not baselines:
        return
    memory = Line2D([], [], color=INK, marker="o", markersize=4.5, linewidth=2.2, label="with memory")
    others = [
        Line2D([], [], color=INK, linestyle=_dashes(r), linewidth=1.3, label=BASELINE_WORDS[r]) for r in baselines
    ]
    ax.legend(
        handles=[memory, *others], loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=9, frameon=False
    )


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
    ax.set_xticklabels([_length(c, chunk_tokens) for c in at])
    ax.set_xlabel(_length_label(chunk_tokens))


def _length(chunks: float, chunk_tokens: int | None) -> str:
    return f"{int(chunks):,}" + (f"\n{short(chunks * chunk_tokens)}" if chunk_tokens else "")


def _length_label(chunk_tokens: int | None) -> str:
    return "document length: chunks" + (", tokens" if chunk_tokens else "")


def _only(frame: pd.DataFrame, column: str) -> int | None:
    """The one value of a column, if there is a column and it has one value."""
    values = frame[column].dropna().unique() if column in frame else []
    return int(values[0]) if len(values) == 1 else None


def _label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Name each line at its right end, apart from one another. Works in shares of the axes' height, so scales may be logarithmic."""
    ax.autoscale_view()  # the limits that the shares below are of
    height, placed = ax.transLimits, []
    for x, y, name, colour in sorted(ends, key=lambda end: end[1]):
        share = height.transform(ax.transScale.transform((x, y)))[1]
        placed.append((x, max(share, placed[-1][1] + 0.062) if placed else share, name, colour))
    over = max(0.0, placed[-1][1] - 1) if placed else 0.0
    right = max((x for x, *_ in placed), default=0)
    for _, share, name, colour in placed:
        ax.annotate(
            name,
            (right, share - over),
            xycoords=("data", "axes fraction"),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9.5,
            annotation_clip=False,
        )
