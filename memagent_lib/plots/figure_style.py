"""The look that all figures share: colours, line styles, axes, labels. Knows no frame.

Figures have no background and grey ink, so that one image reads on a light and on a dark page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind can tell apart, without the yellow that white paper swallows;
# blue and green a little lighter than theirs, for dark pages.
COLOURS = ("#1f86c9", "#d55e00", "#00a376", "#cc79a7", "#56b4e9", "#e69f00")
GREY, INK = "#8a8a8a", "#7a7a7a"
MAIN_LINE: dict[str, Any] = {"marker": "o", "markersize": 5, "linewidth": 2.2}
THIN_LINE: dict[str, Any] = {"linewidth": 1.3, "alpha": 0.8}
DASHES: dict[str, Any] = {"overwrite": "-", "truncated": (0, (5, 2)), "blind": (0, (1, 1.6)), "full": (0, (5, 2, 1, 2))}
OTHER_DASHES = ((0, (7, 2)), (0, (3, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
BASELINE_WORDS = {
    "full": "whole document at once",
    "truncated": "document truncated to the window",
    "retrieved": "passages retrieved by words",
    "blind": "no document",
}
WINDOW = 5  # steps that a running mean is over
LONGEST_LABEL = 20
"""Longer names go into a legend: beside the lines they would squeeze the plot."""
_LABEL_GAP = 0.062
_SEED = re.compile(r", seed \d+$")
_SETTINGS: dict[str, Any] = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 10.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titlepad": 12,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "font.size": 10.5,
    "grid.alpha": 0.3,
    "grid.color": GREY,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 2.0,
    "savefig.facecolor": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


class LineEnd(NamedTuple):
    """Where a line ends, and what it is called."""

    x: float
    y: float
    name: str
    colour: str


def new_axes(width: float, height: float, columns: int = 1, rows: int = 1) -> Any:
    """Axes of a new figure in the common look: one, or with ``columns`` and ``rows`` an array of them, row by row."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    _load_backend()
    with mpl.rc_context(_SETTINGS):
        made = plt.subplots(rows, columns, figsize=(width, height), squeeze=False)[1].ravel()
    return made if len(made) > 1 else made[0]


@cache
def _load_backend() -> None:
    """Have matplotlib load its backend outside of any ``rc_context``, whose end undoes what a notebook's own sets."""
    import matplotlib.pyplot as plt

    plt.close(plt.figure())


def finish(ax: Axes, title: str, caption: str) -> Axes:
    """Give a figure its title, and below it in small what its marks mean."""
    ax.set_title(title + "\n", loc="left")
    place = {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (0, 5), "textcoords": "offset points"}
    ax.annotate(caption, **place, fontsize=9, color=INK).set_in_layout(False)  # a long one would squeeze the axes
    return ax


def save_figure(ax: Axes, path: str | Path) -> list[Path]:
    """Write a figure as the image that ``path`` names, and beside it as vectors (PDF); returns both paths."""
    image = Path(path)
    image.parent.mkdir(parents=True, exist_ok=True)
    vectors = image.with_suffix(".pdf")
    ax.figure.savefig(image, dpi=150)
    ax.figure.savefig(vectors)
    return [image, vectors]


def svg_markup(figure: Figure, **options: Any) -> str:
    """A figure as an ``<svg>`` element, without the style sheet that would style the whole page around it."""
    file = io.StringIO()
    figure.savefig(file, format="svg", **options)
    svg = file.getvalue()
    return re.sub(r"<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)


def colours_of(names: pd.Series) -> dict[str, str]:
    """A colour for each name, in order of appearance; names that differ in their training seed share one."""
    import seaborn as sns

    order = list(dict.fromkeys(names))
    alike = list(dict.fromkeys(map(without_seed, order)))
    many = len(alike) > len(COLOURS)
    colours = dict(zip(alike, sns.husl_palette(len(alike), s=0.8, l=0.5) if many else COLOURS, strict=False))
    return {name: colours[without_seed(name)] for name in order}


def without_seed(policy: str) -> str:
    """What policies are called that differ in nothing but their training seed: ``trained, seed 1`` is ``trained``."""
    return _SEED.sub("", policy)


def other_seeds(policies: Iterable[str]) -> set[str]:
    """Those of the policies that differ in their training seed alone from the one whose name has no seed; where there
    is none, from the first of them.
    """
    order = list(dict.fromkeys(policies))
    main = {without_seed(policy): policy for policy in reversed(order)}
    main |= {policy: policy for policy in order if policy == without_seed(policy)}
    return {policy for policy in order if main[without_seed(policy)] != policy}


def dashes_of(reader: str) -> Any:
    return DASHES.get(reader, OTHER_DASHES[sum(map(ord, reader)) % len(OTHER_DASHES)])


def line_name(policy: str, reader: str) -> str:
    return policy if reader == "overwrite" else f"{policy}, {reader}"


def counted(what: str, counts: Iterable[float]) -> str:
    """``n = 24 to 400 documents``."""
    low, *_, high = sorted([*(found := [int(n) for n in counts]), *found]) or [0, 0]
    return f"n = {low:,}{f' to {high:,}' if high > low else ''} {what}"


def running_mean(values: pd.Series) -> pd.Series:
    """The mean of the steps around each, so that a line does not lag; of fewer at both ends."""
    return values.rolling(WINDOW, min_periods=1, center=True).mean()


def short(count: float) -> str:
    """A count in at most four characters: 512, 8K, 3.5M; K and M are powers of two, as the field counts tokens."""
    for size, sign in ((1 << 20, "M"), (1 << 10, "K")):
        if count >= size:
            return f"{count / size:.3g}{sign}"
    return f"{count:.0f}"


def percent_axis(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def share_axis(ax: Axes, label: str) -> None:
    ax.set(ylim=(-0.03, 1.03), ylabel=label, yticks=[0, 0.25, 0.5, 0.75, 1])
    percent_axis(ax.yaxis)


def count_axis(ax: Axes, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.set_xlabel(label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def length_axis(ax: Axes, chunks: pd.Series, chunk_tokens: int | None) -> None:
    """Document lengths in chunks, and in tokens where a chunk's size is known; of close ones the first."""
    from matplotlib.ticker import FixedLocator, NullLocator

    at: list[float] = []
    lengths = sorted(chunks.dropna().unique())
    for length in lengths:
        if not at or length / at[-1] >= (lengths[-1] / lengths[0]) ** 0.1:
            at.append(length)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(at))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([length_label(c, chunk_tokens) for c in at])
    ax.set_xlabel(length_axis_label(chunk_tokens))


def length_label(chunks: float, chunk_tokens: int | None) -> str:
    return f"{int(chunks):,}" + (f"\n{short(chunks * chunk_tokens)}" if chunk_tokens else "")


def length_axis_label(chunk_tokens: int | None) -> str:
    return "document length: chunks" + (", tokens" if chunk_tokens else "")


def label_ends(ax: Axes, ends: Sequence[LineEnd], more: Sequence[Any] = ()) -> None:
    """Name each line at its right end, apart from one another; long names, and ``more``, in a legend below.

    Works in shares of the axes' height, so scales may be logarithmic.
    """
    if any(len(end.name) > LONGEST_LABEL for end in ends):
        more = [*_line_handles({end.name: end.colour for end in ends}), *more]
        ends = ()
    if more:
        _legend(ax, more, 2)
    ax.autoscale_view()  # the limits that the shares below are of
    right = max((end.x for end in ends), default=0)
    for share, end in _spread(ax, ends):
        ax.annotate(
            end.name,
            (right, share),
            xycoords=("data", "axes fraction"),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            color=end.colour,
            fontsize=9.5,
            annotation_clip=False,
        )


def legend_below(ax: Axes, colours: Mapping[str, str], readers: Iterable[str]) -> None:
    """One legend for all axes of a figure: the lines' names, and the line styles of the baselines among ``readers``."""
    _legend(ax, [*_line_handles(colours), *thin_handles(colours, readers)], 4)


def thin_handles(policies: Iterable[str], readers: Iterable[str]) -> list[Any]:
    """Legend entries for thin lines: baselines among ``readers``, other training seeds among ``policies``."""
    from matplotlib.lines import Line2D

    seeds = [Line2D([], [], color=INK, **THIN_LINE, label="other training seeds")] if other_seeds(policies) else []
    return [*style_handles(readers), *seeds]


def _line_handles(colours: Mapping[str, str]) -> list[Any]:
    from matplotlib.lines import Line2D

    others = other_seeds(colours)
    lines = {name: colour for name, colour in colours.items() if name not in others}
    return [Line2D([], [], color=colour, marker="o", markersize=4.5, label=name) for name, colour in lines.items()]


def _legend(ax: Axes, handles: Sequence[Any], columns: int) -> None:
    look = {"frameon": False, "labelcolor": INK, "fontsize": 9}
    ax.figure.legend(handles=handles, loc="outside lower center", ncols=columns, **look)


def _spread(ax: Axes, ends: Sequence[LineEnd]) -> list[tuple[float, LineEnd]]:
    """A height for each label: its line's, moved up off the one below, and all moved down where the top is passed."""
    placed: list[tuple[float, LineEnd]] = []
    for end in sorted(ends, key=lambda end: end.y):
        share = ax.transLimits.transform(ax.transScale.transform((end.x, end.y)))[1]
        placed.append((max(share, placed[-1][0] + _LABEL_GAP) if placed else share, end))
    over = max(0.0, placed[-1][0] - 1) if placed else 0.0
    return [(share - over, end) for share, end in placed]


def style_handles(readers: Iterable[str]) -> list[Any]:
    """Legend entries for the line styles of the baselines among ``readers``; none where there is no baseline."""
    from matplotlib.lines import Line2D

    found = [reader for reader in BASELINE_WORDS if reader in set(readers)]
    if not found:
        return []
    memory = Line2D([], [], color=INK, marker="o", markersize=4.5, linewidth=2.2, label="with memory")
    return [
        memory,
        *(Line2D([], [], color=INK, linestyle=dashes_of(r), linewidth=1.3, label=BASELINE_WORDS[r]) for r in found),
    ]


def tokens_of_a_chunk(results: pd.DataFrame) -> int | None:
    """How many tokens a chunk of the readings with a memory has, if that is one number: a baseline's chunk is what it
    may see at once.
    """
    if "chunk_tokens" not in results:
        return None
    with_memory = ~results["reader"].isin(BASELINE_WORDS)
    sizes = results.loc[with_memory if with_memory.any() else slice(None), "chunk_tokens"].dropna().unique()
    return int(sizes[0]) if len(sizes) == 1 else None
