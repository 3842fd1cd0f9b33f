"""The style that all figures share: colours, line styles, axes, labels.

Figures have a transparent background and grey ink, so that one image is legible on a light and on a dark page.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from memagent_lib.evaluation import with_memory
from memagent_lib.readers import BASELINES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's colour-blind safe palette, without its yellow, which vanishes on white; blue and green are a little
# lighter than the originals, for dark pages.
COLOURS = ("#1f86c9", "#d55e00", "#00a376", "#cc79a7", "#56b4e9", "#e69f00")
GREY = "#8a8a8a"
INK = "#7a7a7a"
MAIN_LINE: dict[str, Any] = {"marker": "o", "markersize": 5, "linewidth": 2.2}
THIN_LINE: dict[str, Any] = {"linewidth": 1.3, "alpha": 0.8, "markersize": 4.5, "markerfacecolor": "none"}
MARKERS = {"full": "s", "truncated": "^", "retrieved": "D", "blind": "v"}
"""The markers of readers without a memory."""
DASHES: dict[str, Any] = {"overwrite": "-", "truncated": (0, (5, 2)), "blind": (0, (1, 1.6)), "full": (0, (5, 2, 1, 2))}
OTHER_DASHES = ((0, (7, 2)), (0, (3, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
BASELINE_WORDS = {
    "full": "whole document at once",
    "truncated": "document truncated to the window",
    "retrieved": "passages retrieved by words",
    "blind": "no document",
}
WINDOW = 5
"""How many steps a running mean covers."""
PLAIN = "{x:,.10g}"
"""How numbers on an axis are written: without an exponent, and without zeros at the end."""
_LABELLED = ((30, (1, 2, 5)), (300, (1, 3)), (math.inf, (1,)))
"""The first digits of the costs that have labels, if the highest cost is up to so many times the lowest one."""
LONGEST_NAME = 48
"""Longer names in a legend are shortened."""
OTHER_SCRIPTS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Source Han Sans", "WenQuanYi Micro Hei"),
    *("Droid Sans Fallback", "Hiragino Sans", "PingFang SC", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic"),
    *("Arial Unicode MS", "Unifont"),
)
"""Fonts for letters that matplotlib's own font lacks, as far as the system has them."""
_LETTERS_PER_INCH = 11
"""Fewer letters of an axis fit into an inch of it, because the axes shrink for what stands beside them."""
_SEED = re.compile(r", seed \d+(?=,|$)")
# matplotlib writes a label with an exponent as a group of spans.
_TEXT_FILL = re.compile(r"(?P<before><(?:text|tspan|g) [^>]*)fill: (?P<colour>#[0-9a-f]{6})")
_ON_CELLS = ("#262626", "#ffffff")
"""The colours of seaborn's labels inside the cells of a heat map, chosen for the cell and not for the page."""
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


def axes_or_new(ax: Axes | None, width: float, height: float) -> Axes:
    """Return ``ax`` or, if it is ``None``, the axes of a new figure of this size in inches."""
    if ax is not None:
        return ax
    return new_axes(width, height)[0]


def new_axes(width: float, height: float, columns: int = 1, rows: int = 1) -> list[Axes]:
    """Create a figure of this size in inches, in the common style, and return its axes row by row."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    _load_backend()
    with mpl.rc_context(_SETTINGS):
        _, grid = plt.subplots(rows, columns, figsize=(width, height), squeeze=False)
    return list(grid.ravel())


@cache
def _load_backend() -> None:
    """Have matplotlib load its backend now.

    If it were first loaded inside an ``rc_context``, a notebook's choice of backend would be undone when that ends.
    """
    import matplotlib.pyplot as plt

    plt.close(plt.figure())


def finish(ax: Axes, title: str, caption: str) -> Axes:
    """Set the title, and below it in small type the caption that explains the marks."""
    ax.set_title(title + "\n", loc="left")
    above_axes = {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (0, 5), "textcoords": "offset points"}
    note = ax.annotate(caption, **above_axes, fontsize=9, color=INK)
    note.set_in_layout(False)  # a long caption would squeeze the axes
    verbatim(ax)
    return ax


def verbatim(artist: Artist) -> None:
    """Display the texts of ``artist`` as they are: ``$`` begins no mathematics, and other scripts have their fonts.

    A letter that no font has is displayed as a box, which says as much as matplotlib's warning about it.
    """
    from matplotlib.font_manager import fontManager
    from matplotlib.text import Text

    warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
    installed = set(fontManager.get_font_names())
    other = [name for name in OTHER_SCRIPTS if name in installed]
    for text in artist.findobj(Text):
        text.set_parse_math(False)
        text.set_fontfamily(list(dict.fromkeys([*text.get_fontfamily(), *other])))


def shortened(text: str, most: int = LONGEST_NAME) -> str:
    """Return a text in one line of at most ``most`` characters.

    The middle of a longer text is left out, because names often differ at their ends.
    """
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    half = most // 2
    return f"{line[: most - half - 1].rstrip()}…{line[-half:].lstrip()}"


def all_shortened(texts: Sequence[str], most: int = LONGEST_NAME) -> list[str]:
    """Return each text :func:`shortened`, but whole if another of the texts would look the same."""
    short = [shortened(text, most) for text in texts]
    return [
        " ".join(text.split()) if short.count(name) > texts.count(text) else name
        for text, name in zip(texts, short, strict=True)
    ]


def without_data(ax: Axes, title: str, reason: str) -> Axes:
    """Write why nothing is drawn, in place of empty axes."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, reason, transform=ax.transAxes, ha="center", va="center", color=INK)
    return finish(ax, title, "")


def save_figure(ax: Axes, path: str | Path) -> list[Path]:
    """Save the figure as the image that ``path`` names and as a PDF beside it; return both paths."""
    image = Path(path)
    image.parent.mkdir(parents=True, exist_ok=True)
    vectors = image.with_suffix(".pdf")
    ax.figure.savefig(image, dpi=150)
    ax.figure.savefig(vectors)
    return [image, vectors]


def svg_markup(figure: Figure, **options: Any) -> str:
    """Return the figure as an ``<svg>`` element, with the titles of its axes as the text for screen readers.

    The figure's own style sheet is removed, because it would apply to the whole page.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", **options)
    svg = file.getvalue()
    # From <svg on: the XML prologue before it has no meaning inside an HTML page.
    svg = re.sub(r"<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    titles = [ax.get_title(loc="left").strip() for ax in figure.axes]
    words = quoteattr("; ".join(filter(None, titles)) or "figure")
    return svg.replace("<svg", f'<svg role="img" aria-label={words}', 1)


def svg_in_page_colours(figure: Figure) -> str:
    """Return the figure as an ``<svg>`` element whose text has the colour of the text around it, and is legible there.

    Grey text takes that colour itself. Coloured text, such as the name beside a line, takes so much of it that its
    contrast is at least 4.5 to 1 on white and on black. Labels inside the cells of a heat map stay as they are.
    """
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):  # text as text, not as outlines
        svg = svg_markup(figure, transparent=True, bbox_inches="tight")
    return _TEXT_FILL.sub(_in_ink, svg)


def _in_ink(text: re.Match[str]) -> str:
    colour = text["colour"]
    if colour in _ON_CELLS:
        return text[0]
    ink = "currentColor"
    if colour not in (INK, GREY):
        ink = f"color-mix(in srgb, currentColor 50%, {colour})"
    return f"{text['before']}fill: {ink}"


def coloured(rows: pd.DataFrame) -> tuple[dict[str, str], dict[str, str]]:
    """Return for each line of keyed rows the line whose colour it has, and the colours of those lines.

    A line with a memory has its own, a baseline that of the first line of its policy and settings, if there is one.
    """
    lines = rows[["variant", "reader", "line"]].drop_duplicates().to_dict("records")
    main: dict[str, str] = {}
    for line in lines:
        if line["reader"] not in BASELINES:
            main.setdefault(line["variant"], line["line"])
    owners = {
        line["line"]: main.get(line["variant"], line["variant"]) if line["reader"] in BASELINES else line["line"]
        for line in lines
    }
    return owners, colours_of(owners.values())


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Assign a colour to each name in order of appearance. Names that differ only in their seed share a colour."""
    order = list(dict.fromkeys(names))
    without_seeds = list(dict.fromkeys(map(without_seed, order)))
    palette: Sequence[str] = COLOURS
    if len(without_seeds) > len(COLOURS):
        import seaborn as sns

        # More policies than colours made by hand: evenly spaced hues of one lightness.
        palette = sns.husl_palette(len(without_seeds), s=0.8, l=0.5).as_hex()
    colours = dict(zip(without_seeds, palette, strict=False))
    return {name: colours[without_seed(name)] for name in order}


def without_seed(policy: str) -> str:
    """Return a policy's name without its training seed: ``trained, seed 1`` is ``trained``."""
    return _SEED.sub("", policy)


def other_seeds(policies: Iterable[str]) -> set[str]:
    """Return the policies that repeat another policy with a different training seed.

    Among policies that differ only in their seed, the main policy is the one without a seed in its name, or else the
    first. It is not returned.
    """
    order = list(dict.fromkeys(policies))
    main = {without_seed(policy): policy for policy in reversed(order)}  # reversed, so that the first one stays
    main |= {policy: policy for policy in order if policy == without_seed(policy)}
    return {policy for policy in order if main[without_seed(policy)] != policy}


def look_of(reader: str, main: bool) -> dict[str, Any]:
    """Return the look of a reader's line, which is thin unless it is a ``main`` one.

    Both have markers, because a line of one point would be invisible without. A reader without its own line style
    always gets the same spare one.
    """
    # Not hash(): Python salts it, and the same reader would look different in the next run.
    spare = OTHER_DASHES[sum(map(ord, reader)) % len(OTHER_DASHES)]
    look = MAIN_LINE if main else {"marker": MARKERS.get(reader, "."), **THIN_LINE}
    return {"linestyle": DASHES.get(reader, spare), **look}


def sample_sizes(what: str, counts: Iterable[float]) -> str:
    """Return the range of ``counts`` as text, such as ``n = 24 to 400 documents``."""
    sizes = [int(count) for count in counts] or [0]
    low = min(sizes)
    high = max(sizes)
    if low == high:
        return f"n = {low:,} {what}"
    return f"n = {low:,} to {high:,} {what}"


def shared_sizes(what: str, counts: Sequence[int], documents: Sequence[int]) -> str:
    """Return the range of ``counts`` as text, with that of their documents if questions share some."""
    if sum(documents) == sum(counts):
        return sample_sizes(what, counts)
    _, on = sample_sizes("documents" if max(documents) > 1 else "document", documents).split(" = ")
    return f"{sample_sizes('questions', counts)} on {on}"


def intervals_of(n: int, documents: int) -> str:
    """Return what the intervals of ``n`` questions on so many documents are."""
    return "95 % Wilson intervals" if n == documents else "95 % intervals over documents"


def running_mean(values: pd.Series) -> pd.Series:
    """Return the mean of each step and its neighbours on both sides, so that the line does not lag.

    The first and last steps have fewer neighbours.
    """
    return values.rolling(WINDOW, min_periods=1, center=True).mean()


def short_count(count: float) -> str:
    """Return a count in short form: 512, 8K, 3.5M. K and M are powers of two, as is usual for tokens."""
    for size, sign in ((1 << 20, "M"), (1 << 10, "K")):
        if count >= size:
            number = f"{count / size:.3g}" if count < 1000 * size else f"{count / size:.0f}"  # not 1.02e+03
            return f"{number}{sign}"
    return f"{count:.0f}"


def percent_axis(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def share_axis(ax: Axes, label: str) -> None:
    # A little beyond 0 and 1, so that markers there are whole.
    ax.set(ylim=(-0.03, 1.03), ylabel=label, yticks=[0, 0.25, 0.5, 0.75, 1])
    percent_axis(ax.yaxis)


def logarithmic(axis: Axis, digits: Sequence[int] = (1, 2, 5)) -> None:
    """Give a logarithmic axis plain numbers, at ``digits`` times each power of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_formatter(NullFormatter())


def cost_axis(ax: Axes, costs: pd.Series) -> None:
    """Give the horizontal axis plain numbers with room for each; it is logarithmic if the costs differ much."""
    from matplotlib.ticker import MaxNLocator

    least = costs.min()
    most = costs.max()
    # A logarithmic axis labels costs that are close together with a dozen long numbers, one over the other.
    if most >= 3 * least > 0:
        ax.set_xscale("log")
        logarithmic(ax.xaxis, next(digits for times, digits in _LABELLED if most <= times * least))
    else:
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.xaxis.set_major_formatter(PLAIN)


def count_axis(ax: Axes, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.set_xlabel(label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def length_axis(ax: Axes, chunks: pd.Series, chunk_tokens: int | None) -> None:
    """Label document lengths in chunks, and also in tokens if a chunk's size is known.

    Unknown lengths are counted below them. Without two known lengths, there is room beside the points of one.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    lengths = sorted(chunks.dropna().unique())
    ax.set_xlabel(length_axis_label(chunks, chunk_tokens))
    ax.set_xscale("log", base=2)
    labels = {length: length_label(length, chunk_tokens) for length in lengths}
    ticks = _apart(labels, _LETTERS_PER_INCH * ax.bbox.width / ax.figure.dpi) if labels else []
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([labels[length] for length in ticks])
    if len(lengths) <= 1:
        ax.margins(x=0.8)


def _apart(labels: Mapping[float, str], letters: float) -> list[float]:
    """Return the lengths whose labels do not overlap on a logarithmic axis with room for so many ``letters``.

    Of lengths that are too close, the longest stays.
    """
    widths = {length: max(map(len, label.split("\n"))) for length, label in labels.items()}
    longest = max(labels)
    span = math.log(longest / min(labels))
    chosen = [longest]
    for length in sorted(labels, reverse=True)[1:]:
        room = letters * math.log(chosen[-1] / length) / span
        if room > (widths[length] + widths[chosen[-1]]) / 2 + 1:
            chosen.append(length)
    return chosen[::-1]


def length_label(chunks: float, chunk_tokens: int | None) -> str:
    count = f"{int(chunks):,}"
    if not chunk_tokens:
        return count
    return f"{count}\n{short_count(chunks * chunk_tokens)}"


def length_axis_label(chunks: pd.Series, chunk_tokens: int | None) -> str:
    """Return the label of an axis of lengths, with the number of readings whose length is unknown."""
    unknown = int(chunks.isna().sum())
    if unknown == len(chunks):
        return "documents of no set length"
    label = "document length: chunks, tokens" if chunk_tokens else "document length: chunks"
    return label + (f"\n{unknown:,} readings of no set length are left out" if unknown else "")


def tokens_of_a_chunk(results: pd.DataFrame) -> int | None:
    """Return how many tokens a chunk has; ``None`` if the rows differ or do not record it.

    If there are readers with a memory, only they count, because a baseline's chunk is all the text that it reads at
    once.
    """
    if "chunk_tokens" not in results:
        return None
    memories = with_memory(results)
    rows = memories if len(memories) else results
    sizes = rows["chunk_tokens"].dropna().unique()
    if len(sizes) != 1:
        return None
    return int(sizes[0])
