"""Tables of result rows: rates with intervals, accuracy per group, several evaluations together, two policies compared.

Knows frames of result rows; knows no agent and no store of runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.errors import MissingFile
from memagent_lib.evaluation.results import Result
from memagent_lib.paths import absolute, replacing

if TYPE_CHECKING:
    import pandas as pd

SAME = ["example", "document"]
"""What says that two rows are about one document: ids alone are the same for other settings of a task."""
_MEANS = ("capture", "retention", "turns", "cut_memories", "prompt_tokens")


class Rate(NamedTuple):
    """A share of successes with its 95 % Wilson interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}] (n={self.n})"


def wilson(successes: float, n: int) -> Rate:
    """Wilson's score interval for a share (Wilson 1927). ``successes`` may be a sum of fractional scores."""
    if n < 1:
        return Rate(math.nan, math.nan, math.nan, 0)
    z = NormalDist().inv_cdf(0.975)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Rate(share, max(0.0, round(centre - half, 12)), min(1.0, round(centre + half, 12)), n)


def summarise(frame: pd.DataFrame, by: Sequence[str] = ("reader", "chunks")) -> pd.DataFrame:
    """Per group, accuracy with its 95 % Wilson interval (not a number where every example failed), means and counts."""
    import pandas as pd

    def summary(group: pd.DataFrame) -> pd.Series:
        scored = group["score"].dropna()
        rate = wilson(scored.sum(), len(scored))
        counts = {"scored": rate.n, "failed": int(group["error"].notna().sum())}
        means = {name: group[name].astype(float).mean() for name in _MEANS}
        return pd.Series({"accuracy": rate.value, "low": rate.low, "high": rate.high} | counts | means)

    summed = frame.groupby(list(by), dropna=False).apply(summary, include_groups=False).reset_index()
    return summed.astype({"scored": int, "failed": int})


def table(results: pd.DataFrame) -> pd.DataFrame:
    """Accuracy with its interval, n and failures: a row per policy and reader (and task), a column per length."""
    lines = ["task"] * (results["task"].nunique() > 1) + ["policy", "reader"]
    summary = summarise(results, by=(*lines, "chunks"))
    summary["shown"] = [shown(row) for row in summary.to_dict("records")]
    wide = summary.pivot(index=lines, columns="chunks", values="shown").fillna("")
    order = list(results[lines].drop_duplicates().itertuples(index=False, name=None))
    return wide.reindex(order).rename(columns=lambda c: f"{int(c):,} chunks").rename_axis(columns=None).reset_index()


def overview(results: pd.DataFrame) -> pd.DataFrame:
    """A row per task, reader and file or length: n, failures, score with its interval, capture and retention."""
    import pandas as pd

    lengths = "chunks" if results["chunks"].notna().all() else "document_chars"
    by = ["task", "reader", "file" if results["file"].notna().all() else lengths]
    summary = summarise(results, by)
    summary["score"] = [shown(row) for row in summary.to_dict("records")]
    summary["n"] = summary["scored"] + summary["failed"]
    for name in ("capture", "retention"):
        summary[name] = ["" if pd.isna(share) else f"{100 * share:.1f} %" for share in summary[name]]
    return summary[[*by, "n", "failed", "score", "capture", "retention"]]


def shown(row: Mapping[str, Any]) -> str:
    """One cell of a table: a rate with its interval and n, and how many failed; no rate where all did."""
    failed = f", {row['failed']} failed" if row["failed"] else ""
    rate = Rate(row["accuracy"], row["low"], row["high"], row["scored"])
    return f"{rate if row['scored'] else 'none scored'}{failed}"


def save_rows(frame: pd.DataFrame, folder: str | Path, name: str, add: bool = False) -> Path:
    """Keep result rows as ``NAME.parquet``, atomically, for :func:`gather_rows`.

    With ``add``, rows that are there stay, but for those of the same reader and data file.
    """
    import pandas as pd

    path = absolute(folder) / f"{name}.parquet"
    if add and path.is_file():
        before, read = pd.read_parquet(path), set(zip(frame["reader"], frame["file"], strict=True))
        others = [pair not in read for pair in zip(before["reader"], before["file"], strict=True)]
        frame = pd.concat([before[others], frame], ignore_index=True)
    with replacing(path) as unfinished:
        frame.to_parquet(unfinished, index=False)
    return path


def gather_rows(folder: str | Path, first: Sequence[str] = ()) -> pd.DataFrame:
    """All result rows in a folder and the folders of a sweep's points in it, the policies named in ``first`` first;
    their order is the order of colours and rows.

    Points of one policy with other readers or documents are parts of one evaluation. Where two have read the same with
    the same reader, something else differs: the policy is told apart by the points' names.
    """
    import pandas as pd

    files = sorted([*absolute(folder).glob("*.parquet"), *absolute(folder).rglob("*=*/*.parquet")])
    if not files:
        made = "make some with: memagent evaluate DATA --out FOLDER, or with 03_evaluate"
        raise MissingFile(f"no results in {absolute(folder)}; {made}")
    points = ["" if file.parent == absolute(folder) else file.parent.name for file in files]
    frames = [pd.read_parquet(file).assign(point=point) for file, point in zip(files, points, strict=True)]
    if odd := [str(file) for file, frame in zip(files, frames, strict=True) if "policy" not in frame]:
        raise ValueError(f"{odd[0]} holds no results of an evaluation; move it out of {absolute(folder)}")
    frame = pd.concat(frames, ignore_index=True)
    readings = frame.groupby(["policy", "reader", *SAME], dropna=False)["point"]
    twice = frame.loc[readings.transform("nunique") > 1, "policy"]
    apart = frame["policy"].isin(twice) & (frame["point"] != "")
    frame.loc[apart, "policy"] += ", " + frame["point"]
    frame = frame.drop(columns="point")
    known = list(frame["policy"].unique())
    if missing := [name for name in first if name not in known]:
        raise ValueError(
            f"no results of {', '.join(map(repr, missing))} in {absolute(folder)}; there are {', '.join(known)}"
        )
    rank = {name: at for at, name in enumerate(dict.fromkeys([*first, *known]))}
    return frame.sort_values("policy", key=lambda names: names.map(rank), kind="stable", ignore_index=True)


def failure_reasons(results: pd.DataFrame) -> list[str]:
    """Why readings failed, the most frequent reason first; of those that differ in numbers alone, one."""
    failed = results[["reader", "error"]].dropna()
    groups = failed.groupby(["reader", failed["error"].str.replace(r"\d[\d.,]*", "#", regex=True)])["error"]
    reasons = sorted(((len(errors), reader, errors.iloc[0]) for (reader, _), errors in groups), reverse=True)
    return [f"{count} failed ({reader}): {why}" for count, reader, why in reasons]


def mixtures(results: pd.DataFrame) -> list[str]:
    """What a reader of a table must know of its rows: that several judges or versions of the code are mixed."""
    found = []
    for task, rows in results.groupby("task", sort=False):
        if len(rules := sorted(rows["rule"].dropna().unique())) > 1:
            found.append(f"{task} was judged by several rules: {', '.join(rules)}")
    if len(codes := sorted(results["code"].dropna().unique())) > 1:
        found.append(f"results of {len(codes)} versions of the code are mixed: {', '.join(codes)}")
    return found


def fates_at_the_end(readings: Mapping[str, Sequence[Result]]) -> pd.DataFrame:
    """How many readings ended with the facts in memory, lost, or never noted; a row per policy."""
    import pandas as pd

    counts = {}
    for policy, found in readings.items():
        ends = [str(r.diagnosis.fate) for r in found if r.trace and r.diagnosis.fate]
        counts[policy] = pd.Series(ends, dtype=object).value_counts()
    return pd.DataFrame(counts).T.fillna(0).astype(int).rename_axis("at the end the facts are")


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
