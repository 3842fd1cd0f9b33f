"""What all figures share: one look, a colour per policy, axes of lengths and shares, matplotlib's own legends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeVar

from memagent_lib.evaluation import with_memory
from memagent_lib.readers import BASELINES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Okabe and Ito's colour-blind safe palette, without its yellow, which vanishes on white.
COLOURS = ("#1f86c9", "#d55e00", "#00a376", "#cc79a7", "#56b4e9", "#e69f00")
GREY = "#8a8a8a"
_MARKERS = {"full": "s", "truncated": "^", "retrieved": "D", "blind": "v"}
_DASHES = {"truncated": "--", "blind": ":", "full": "-."}
_SETTINGS = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    "text.parse_math": False,  # a name may contain dollar signs
}
# Matplotlib's own font lacks these scripts.
_OTHER_SCRIPTS = {"Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Micro Hei", "Hiragino Sans", "Microsoft YaHei"}
_MOST_TICKS = 8

Draw = TypeVar("Draw", bound=Callable[..., Any])


def styled(draw: Draw) -> Draw:
    """Let a function draw in the common look."""

    @wraps(draw)
    def in_style(*args: Any, **kwargs: Any) -> Any:
        import matplotlib as mpl
        import seaborn as sns
        from matplotlib.font_manager import fontManager

        _load_backend()
        other = sorted(_OTHER_SCRIPTS.intersection(fontManager.get_font_names()))
        fonts = {"font.family": ["sans-serif", *other]}
        with mpl.rc_context(sns.axes_style("whitegrid") | _SETTINGS | fonts):
            return draw(*args, **kwargs)

    return in_style


@cache
def _load_backend() -> None:
    """Load matplotlib's backend outside an ``rc_context``, which would undo a notebook's choice when it ends."""
    import matplotlib.pyplot as plt

    plt.close(plt.figure())


def new_plot(width: float, height: float) -> Axes:
    """Create a figure of this size in inches and return its axes."""
    return new_axes(width, height)[0]


def new_axes(width: float, height: float, columns: int = 1, rows: int = 1) -> list[Axes]:
    """Create a figure of this size in inches and return its axes row by row."""
    import matplotlib.pyplot as plt

    _, grid = plt.subplots(rows, columns, figsize=(width, height), squeeze=False)
    return list(grid.ravel())


def finish(ax: Axes, title: str, caption: str) -> Axes:
    """Set the title, and below it in small type the caption that explains the marks."""
    ax.set_title(f"{title}\n", loc="left")
    note = ax.annotate(caption, (0, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points", fontsize=9)
    note.set_in_layout(False)  # a long caption would squeeze the axes
    return ax


def without_data(ax: Axes, title: str, reason: str) -> Axes:
    """Write why nothing is drawn, instead of empty axes."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, reason, transform=ax.transAxes, ha="center", va="center")
    return finish(ax, title, "")


def put_legend(*axes: Axes) -> None:
    """Name the labelled lines of a figure's axes in full in a legend below them; the figure grows with it."""
    handles: dict[str, Any] = {}
    for ax in axes:
        drawn, labels = ax.get_legend_handles_labels()
        handles |= dict(zip(labels, drawn, strict=True))
    if handles:
        figure = axes[0].figure
        look = {"fontsize": 9, "frameon": False, "handlelength": 3}
        characters = int(11 * figure.get_figwidth())
        names = [fill(name, characters - 8) for name in handles]
        columns = max(1, min(4, characters // (max(map(len, handles)) + 8)))
        figure.legend(handles.values(), names, loc="outside lower center", ncols=columns, **look)
        figure.set_figheight(figure.get_figheight() + 0.2 * "\n".join(names).count("\n") / columns + 0.2)


def shortened(text: str, most: int = 48) -> str:
    """Return a text in one line of at most ``most`` characters; the middle of a longer one is left out."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    half = most // 2
    return f"{line[: most - half - 1]}…{line[-half:]}"


def save_figure(ax: Axes, path: str | Path) -> list[Path]:
    """Save the figure as the image that ``path`` names and as a PDF beside it; return both paths."""
    paths = [Path(path), Path(path).with_suffix(".pdf")]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    for each in paths:
        ax.figure.savefig(each, dpi=150)
    return paths


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Assign a colour to each name in order of appearance. Names that differ only in their seed share a colour."""
    import seaborn as sns

    order = list(dict.fromkeys(names))
    groups = list(dict.fromkeys(map(_without_seed, order)))
    palette: Sequence[str] = COLOURS
    if len(groups) > len(COLOURS):
        palette = sns.husl_palette(len(groups), s=0.8, l=0.5).as_hex()
    colours = dict(zip(groups, palette, strict=False))
    return {name: colours[_without_seed(name)] for name in order}


def _without_seed(policy: str) -> str:
    return re.sub(r", seed \d+(?=,|$)", "", policy)


def looks_of(rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return how each line of keyed rows is drawn.

    A line with a memory has its own colour; a baseline is thin and hollow, in the colour of its policy. Lines that
    differ only in their training seed share a colour, and all but the first are thin.
    """
    lines = rows[["variant", "reader", "line"]].drop_duplicates().to_dict("records")
    memories = [line for line in lines if line["reader"] not in BASELINES]
    owners = {line["variant"]: line["line"] for line in reversed(memories)}
    names = {line["line"]: owners.get(line["variant"], line["variant"]) for line in lines}
    names |= {line["line"]: line["line"] for line in memories}
    colours = colours_of(names.values())
    main = {_without_seed(line["line"]): line["line"] for line in reversed(memories)}.values()
    looks = {}
    for line in lines:
        name = line["line"]
        look = {"marker": _MARKERS.get(line["reader"], "o"), "linestyle": _DASHES.get(line["reader"], "-")}
        look |= {"color": colours[names[name]], "label": name}
        thin = {"linewidth": 1.2, "markersize": 4, "alpha": 0.8, "markerfacecolor": "none"}
        looks[name] = look | ({"linewidth": 2.2, "markersize": 5} if name in main else thin)
    return looks


def band(ax: Axes, x: Sequence[float], low: Sequence[float], high: Sequence[float], look: dict[str, Any]) -> None:
    """Draw a band around a thick line, and bars at the points of a thin one, or at a single point."""
    if len(x) > 1 and look["linewidth"] > 2:
        ax.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    else:
        ax.vlines(x, low, high, color=look["color"], alpha=0.35, linewidth=1.2 * look["linewidth"])


def sample_sizes(what: str, counts: Iterable[float]) -> str:
    """Return the range of ``counts`` as text, such as ``n = 24 to 400 documents``."""
    sizes = [int(count) for count in counts] or [0]
    numbers = sorted({min(sizes), max(sizes)})
    return f"n = {' to '.join(f'{number:,}' for number in numbers)} {what}"


def shared_sizes(counts: Sequence[int], documents: Sequence[int]) -> str:
    """Return the range of the points' numbers of questions, with that of their documents if questions share some."""
    if sum(documents) == sum(counts):
        return f"{sample_sizes('questions per point', counts)}, 95 % Wilson intervals"
    shared = sample_sizes("documents", documents).removeprefix("n = ")
    return f"{sample_sizes('questions', counts)} on {shared}, 95 % intervals over documents"


def short_count(count: float) -> str:
    """Return a count in short form: 512, 8K, 3.5M. K and M are powers of two, as is usual for tokens."""
    for size, sign in ((1 << 20, "M"), (1 << 10, "K")):
        if count >= size:
            number = f"{count / size:.3g}" if count < 1000 * size else f"{count / size:.0f}"  # not 1.02e+03
            return f"{number}{sign}"
    return f"{count:.0f}"


def percent_axis(axis: Axis) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def plain_numbers(axis: Axis) -> None:
    """Give a logarithmic axis numbers without exponents."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_formatter(NullFormatter())


def length_axis(ax: Axes, chunks: pd.Series, chunk_tokens: int | None) -> None:
    """Label document lengths in chunks, and also in tokens if a chunk's size is known.

    Lengths close to a longer one have no label.
    """
    ax.set_xlabel(length_axis_label(chunks, chunk_tokens))
    ax.set_xscale("log", base=2)
    lengths = sorted(chunks.dropna().unique())
    ticks = lengths[-1:]
    for length in reversed(lengths):
        if length * max(1.5, (lengths[-1] / lengths[0]) ** (1 / _MOST_TICKS)) <= ticks[0]:
            ticks.insert(0, length)
    ax.set_xticks(ticks, [length_label(length, chunk_tokens) for length in ticks])
    ax.set_xticks([], minor=True)
    if len(lengths) <= 1:
        ax.margins(x=0.8)


def length_label(chunks: float, chunk_tokens: int | None) -> str:
    count = f"{int(chunks):,}"
    return f"{count}\n{short_count(chunks * chunk_tokens)}" if chunk_tokens else count


def length_axis_label(chunks: pd.Series, chunk_tokens: int | None) -> str:
    """Return the label of an axis of lengths, with the number of readings whose length is unknown."""
    unknown = int(chunks.isna().sum())
    if unknown == len(chunks):
        return "documents of no set length"
    label = "document length: chunks, tokens" if chunk_tokens else "document length: chunks"
    return label + (f"\n{unknown:,} readings of no set length are left out" if unknown else "")


def with_a_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that can be drawn by length; the axis says how many others there are.

    Documents of other projects have no length in chunks. If no row has one, all rows are drawn at one length.
    """
    known = rows["chunks"].notna()
    return rows[known] if known.any() else rows.assign(chunks=1.0)


def side_by_side(x: pd.Series, number: int, count: int) -> pd.Series:
    """Return where the points of one of ``count`` lines are drawn: beside those of others, so that equal ones show."""
    return x * 1.06 ** (number - (count - 1) / 2)


def tokens_of_a_chunk(results: pd.DataFrame) -> int | None:
    """Return how many tokens a chunk of the readers with a memory has; ``None`` if it is unknown or differs.

    It differs, too, if documents were made for a length in other chunks than those that were read.
    """
    if "chunk_tokens" not in results:
        return None
    memories = with_memory(results)
    # A baseline's chunk is all the text that it reads at once.
    rows = memories if len(memories) else results
    sizes = rows["chunk_tokens"].dropna().unique()
    if len(sizes) != 1:
        return None
    made_for = (rows.get("document_tokens", float("nan")) / rows["chunks"]).max()
    return None if made_for > 1.5 * sizes[0] or made_for < sizes[0] / 2 else int(sizes[0])
