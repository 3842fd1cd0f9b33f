"""Two policies on the documents that both have read: by how much they differ, with an interval. Knows result rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memagent_lib.evaluation.tables import wilson

if TYPE_CHECKING:
    import pandas as pd

SAME = ["example", "document"]
"""What says that two rows are about one document: ids alone are the same for other settings of a task."""


def paired(results: pd.DataFrame, left: str, right: str, reader: str = "overwrite") -> pd.DataFrame:
    """Policy ``right`` minus policy ``left`` on the documents that both read, one row per length.

    Columns: ``difference`` of the mean scores, its 95 % interval ``low, high``, ``n`` documents, and on how many of
    them one alone scored higher (``right_only``, ``left_only``). A document that failed for either is left out.
    """
    import pandas as pd

    rows = results[(results["reader"] == reader) & results["score"].notna()]
    of_left, of_right = (rows[rows["policy"] == policy].set_index(SAME) for policy in (left, right))
    both = of_left[["chunks"]].assign(left=of_left["score"]).join(of_right["score"].rename("right"), how="inner")
    if both.empty:
        raise ValueError(
            f"{left!r} and {right!r} have read no document in common with the reader {reader!r}; "
            "evaluate both on the same data"
        )
    made = []
    for chunks, of in both.groupby("chunks"):
        a, b = of["left"], of["right"]
        low, high = paired_interval(a.tolist(), b.tolist())
        made.append((int(chunks), b.mean() - a.mean(), low, high, len(of), int((b > a).sum()), int((a > b).sum())))
    frame = pd.DataFrame(made, columns=["chunks", "difference", "low", "high", "n", "right_only", "left_only"])
    frame.attrs["names"] = (left, right)
    return frame


def paired_interval(left: Sequence[float], right: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of mean(right) - mean(left) for scores of the same documents (Newcombe 1998, method 10).

    Wilson's intervals of the two shares, joined with regard to how they go together. Holds for few documents and for
    shares of 0 and 1, where a bootstrap has nothing to draw from; made for shares, and used for fractional scores too.
    """
    n = len(left)
    a, b = wilson(sum(left), n), wilson(sum(right), n)
    joint = n * sum(x * y for x, y in zip(left, right, strict=True)) - sum(left) * sum(right)
    if joint > 0:
        joint = max(0.0, joint - n / 2)
    spread = math.sqrt(sum(left) * (n - sum(left)) * sum(right) * (n - sum(right)))
    phi = joint / spread if spread else 0.0

    def half(up: float, down: float) -> float:
        return math.sqrt(max(0.0, up * up - 2 * phi * up * down + down * down))

    difference = b.value - a.value
    return difference - half(b.value - b.low, a.high - a.value), difference + half(b.high - b.value, a.value - a.low)
