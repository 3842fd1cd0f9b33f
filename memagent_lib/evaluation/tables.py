"""Tables from result rows: accuracy with its interval per group, overviews, costs, paired comparisons, two-hop cases.

This module depends on results and frames of their rows, not on agents or stores of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from memagent_lib.diagnostics import EvidenceHistory, Fate
from memagent_lib.evaluation.intervals import RATE, Rate, paired_interval, rate, sample_size
from memagent_lib.evaluation.results import COLUMNS, Result
from memagent_lib.evaluation.rows import (
    ALL_TASKS,
    LINE,
    keyed,
    lines_of,
    natural,
    question_columns,
    rows_of,
    with_all_tasks,
    with_memory,
)
from memagent_lib.readers import BASELINES
from memagent_lib.scoring import NOTHING_STATED, judge_name

if TYPE_CHECKING:
    import pandas as pd

DIFFERENCE = ["left", "right", "chunks", "difference", "low", "high", "n", "documents", "right_only", "left_only"]
"""The columns of paired differences."""
COSTS = ["tokens", "turns", "seconds", "seconds_95"]
"""The costs of a question: mean tokens of prompts and replies, mean turns, median and 95th percentile of seconds.

Tokens count even if a prefix cache has saved their computation. Seconds are those of one reading among all that ran at
the same time, or a question's part of a reading for several.
"""


def summarise(frame: pd.DataFrame, by: Sequence[str] = ("reader", "chunks")) -> pd.DataFrame:
    """Return one row per group: accuracy with its 95 % interval, counts, and means of other columns.

    ``scored_documents`` counts the documents of the ``scored`` questions; ``failed`` readings have no score, and on
    ``unclear`` ones the judge, a model, did not decide. :data:`COLUMNS` declares which columns are averaged.
    """
    import pandas as pd

    averaged = [name for name, column in COLUMNS.items() if column.mean and name in frame]
    rows = []
    for key, group in frame.groupby(list(by), dropna=False):
        failed = group["error"].notna()
        unclear = group["score"].isna() & ~failed
        rows.append((*key, *rate_of(group), failed.sum(), unclear.sum(), *group[averaged].astype(float).mean()))
    return pd.DataFrame(rows, columns=[*by, *RATE, "failed", "unclear", *averaged])


def rate_of(rows: pd.DataFrame, column: str = "score") -> Rate:
    """Return the mean of a column with its interval, of the rows that have a value there.

    Failed readings have no score: they are counted as failed, not as wrong.
    """
    rows = rows[rows[column].notna()]
    return rate(rows[column].astype(float).tolist(), _documents(rows))


def _documents(rows: pd.DataFrame) -> list[Any]:
    return rows["document"].tolist() if "document" in rows else list(range(len(rows)))


def rate_cell(row: Mapping[str, Any]) -> str:
    """Return a table cell: a rate with its interval and n, and how many have no score; no rate if none has one."""
    notes = [f"{row[why]:,} {why}" for why in ("failed", "unclear") if row[why]]
    return ", ".join([str(Rate.of(row)), *notes])


def table(results: pd.DataFrame, cell: Callable[[Mapping[str, Any]], str] = rate_cell) -> pd.DataFrame:
    """Tabulate accuracy with interval, n and failures: a row per line and judge, a column per length.

    Rows name policy, reader and, if any varied, the settings. With several tasks, the first rows are over all tasks,
    and each task's rows follow. If replies were no memory, or answers cut, last columns count them. ``cell`` makes a
    cell of its row of :func:`summarise`.
    """
    import pandas as pd

    rows = by_judge(with_all_tasks(keyed(results), LINE))
    names = [*(name for name in LINE if name != "varied" or rows["varied"].any()), "judge"]
    if rows["task"].nunique() > 1:
        names.insert(0, "task")
    summary = summarise(rows, by=(*names, "chunks"))
    summary["cell"] = pd.Series(map(cell, summary.to_dict("records")), dtype=object)
    wide = _by_length(summary, rows[names].drop_duplicates())
    if "task" in names:
        # Stable, and all tasks come first, so lines stay in their order.
        wide = wide.sort_values("task", key=lambda tasks: tasks.factorize()[0], kind="stable", ignore_index=True)
    return _with_faults(wide, rows, names).rename(columns={"varied": "settings"})


def _by_length(cells: pd.DataFrame, order: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each row of ``order`` and a column for each length, with the column ``cell`` of ``cells``."""
    names = list(order)
    # unstack sorts by name; unlike pivot, it leaves markup as it is.
    wide = cells.set_index([*names, "chunks"])["cell"].unstack(fill_value="").sort_index(axis="columns")
    wide = wide.reindex(list(order.itertuples(index=False, name=None)))
    return wide.rename(columns=_length_name).rename_axis(columns=None).reset_index()


def _length_name(chunks: float) -> str:
    if math.isnan(chunks):  # files of other projects are not made for a length in chunks
        return "of no set length"
    return f"{int(chunks):,} chunks"


def _with_faults(wide: pd.DataFrame, rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Add columns that count replies that were no memory, and answers cut at their limit, if there are any."""
    for name in ("bad_memories", "cut_answers"):
        if name in rows and rows[name].fillna(0).any():
            counts = rows.groupby(list(by), dropna=False)[name].sum().astype(int)
            wide = wide.merge(counts.rename(name.replace("_", " ")).reset_index(), on=list(by), how="left")
    return wide


def by_judge(results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of :func:`with_all_tasks`, then those that a model judged, with its verdict as score."""
    import pandas as pd

    if "model_verdict" not in results:
        return results
    by_model = results[results["model_judge"].notna()]
    by_model = by_model.assign(judge=by_model["model_judge"], score=by_model["model_verdict"].astype(float))
    return pd.concat([results, by_model], ignore_index=True)


def agreement(results: pd.DataFrame) -> list[str]:
    """Return a sentence per reader: on how many of a model judge's verdicts the rule agrees."""
    if "model_verdict" not in results:
        return []
    decided = results[results["model_verdict"].notna()]
    agree = ((decided["score"] >= 1) == (decided["model_verdict"] >= 1)).groupby(decided["reader"], sort=False)
    return [
        f"the rule agrees on {100 * same.mean():.1f} % of the model judge's {len(same):,} verdicts on {reader}"
        for reader, same in agree
    ]


def overview(results: pd.DataFrame) -> pd.DataFrame:
    """Return one row per task, reader, file and judge: n, failures, score with interval, evidence, :data:`COSTS`.

    With several tasks, the first rows, one per reader, are over all of them; their file is "", as that of examples made
    in memory. ``capture`` is the share of the evidence that was captured, and ``retention`` the share of that which was
    retained. A model judge has rows of its own. If replies were no memory, or answers cut, last columns count them.
    """
    by = ["task", "reader", "file", "judge"]
    rows = with_all_tasks(results, ["reader"], ["file"])
    rows = by_judge(rows.assign(file=rows["file"].fillna("")))
    summary = summarise(rows, by).drop(columns="turns").merge(costs(rows, by).drop(columns="n"), "left", by)
    summary["score"] = [rate_cell(row) for row in summary.to_dict("records")]
    summary["n"] = summary["scored"] + summary["failed"] + summary["unclear"]
    for name in ("capture", "retention"):
        summary[name] = ["" if math.isnan(share) else f"{100 * share:.1f} %" for share in summary[name]]
    readers = list(results["reader"].unique())

    def place(at: int) -> tuple[Any, ...]:
        task, reader, file = (summary.at[at, name] for name in by[:3])
        return task != ALL_TASKS, natural(task), readers.index(reader), natural(file)

    summary = summary.loc[
        sorted(summary.index, key=place), [*by, "n", "failed", "score", "capture", "retention", *COSTS]
    ]
    return _with_faults(summary, rows, by).reset_index(drop=True)


def failure_reasons(results: pd.DataFrame) -> list[str]:
    """Return why readings failed, the most frequent reason first. Reasons that differ only in numbers count as one."""
    failed = results[["reader", "error"]].dropna()
    without_numbers = failed["error"].str.replace(r"\d[\d.,]*", "#", regex=True)
    groups = failed.groupby(["reader", without_numbers])["error"]
    reasons = sorted(((len(errors), reader, errors.iloc[0]) for (reader, _), errors in groups), reverse=True)
    return [f"{count} failed ({reader}): {reason}" for count, reader, reason in reasons]


def mixtures(results: pd.DataFrame) -> list[str]:
    """Return warnings about rows that differ in more than their columns say.

    They were judged by several rules for one task, or by several versions of the code, a judge found no answer to read,
    or a server refused a sampling setting.
    """
    warnings = []
    for task, rows in results.groupby("task", sort=False):
        rules = sorted(set(map(judge_name, rows["rule"].dropna())))
        if len(rules) > 1:
            warnings.append(f"{task} was judged by several rules: {', '.join(rules)}")
    # Readers and judges of several files are compared with one another, so a version is that of one of each.
    judges = results["rule"].map(judge_name, na_action="ignore")
    code = results["code"].dropna()
    versions = [code.str[:8].groupby(judges).unique(), code.groupby([judges, results["reader"]]).unique()]
    for codes in dict.fromkeys(", ".join(sorted(codes)) for codes in chain(*versions) if len(codes) > 1):
        warnings.append(f"results of several versions of the code are mixed: {codes}")
    unread = int((results["reason"] == NOTHING_STATED).sum()) if "reason" in results else 0
    if unread:
        form = "state no answer in a form that their judge reads, such as \\boxed{}, and count as wrong"
        warnings.append(f"{unread:,} of {len(results):,} replies {form}")
    for settings, count in results["sampling_left_out"].value_counts().items():
        warnings.append(f"the server refused {settings} in {count:,} of {len(results):,} readings")
    return warnings


def paired(results: pd.DataFrame, left: str, right: str) -> pd.DataFrame:
    """Compare the line ``right`` with the line ``left`` on the documents that both have read, one row per length.

    Columns: ``left`` and ``right``, the ``difference`` of the mean scores (right minus left), its 95 % interval
    ``low, high``, the number of questions ``n`` and of their ``documents``, and the numbers of questions on which one
    line scored higher (``right_only``, ``left_only``). A question that failed for either line, or that two rules
    judged, is left out.
    """
    rows = keyed(results)
    names = [rows_of(rows, name)["line"].iloc[0] for name in (left, right)]
    made = _differences(rows[rows["score"].notna()], *names)
    if made.empty:
        raise ValueError(f"{names[0]!r} and {names[1]!r} have no question in common that one rule has judged")
    return made


def against(results: pd.DataFrame, baseline: str = "") -> pd.DataFrame:
    """Compare every line with ``baseline``, as :func:`paired` does, one row per pair of lines and length.

    The default is the first line whose reader has a memory, or else the first line. By default, a line without a memory
    is compared with a memory of the same model if there is one: the difference is the memory's line minus this line.
    Pairs that have read no document in common are left out.
    """
    import pandas as pd

    rows = keyed(results)
    memories = with_memory(rows)
    left = rows_of(rows, baseline or lines_of(memories if len(memories) else rows)[0])["line"].iloc[0]
    owners = {} if baseline else memories.drop_duplicates("variant").set_index("variant")["line"]
    scored = rows[rows["score"].notna()]
    pairs = [
        (line, owners[variant]) if reader in BASELINES and variant in owners else (left, line)
        for line, reader, variant in rows[["line", "reader", "variant"]].drop_duplicates().itertuples(index=False)
    ]
    compared = [_differences(scored, *pair) for pair in pairs if pair != (left, left)]
    found = [frame for frame in compared if len(frame)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=DIFFERENCE)


def in_points(differences: pd.DataFrame) -> pd.DataFrame:
    """Tabulate paired differences in points, with interval and n: a row per pair of lines, a column per length."""
    points = differences.assign(**(100 * differences[["difference", "low", "high"]].astype(float)))
    cells = [
        f"{row.difference:+.1f} [{row.low:+.1f}, {row.high:+.1f}] (n={sample_size(row.n, row.documents)})"
        for row in points.itertuples()
    ]
    named = differences.assign(cell=cells).rename(columns={"right": "line", "left": "minus"})
    return _by_length(named, named[["line", "minus"]].drop_duplicates())


def _differences(scored: pd.DataFrame, left: str, right: str) -> pd.DataFrame:
    """Return a row per length with the paired difference of two lines; none without a document in common."""
    import pandas as pd

    # Scores of two rules are never subtracted.
    same = [*question_columns(scored), *(["rule"] if "rule" in scored else [])]
    of_left, of_right = (scored[scored["line"] == name].set_index(same) for name in (left, right))
    both = of_left[["chunks"]].assign(left=of_left["score"]).join(of_right["score"].rename("right"), how="inner")
    made = []
    for chunks, pairs in both.reset_index().groupby("chunks", dropna=False):
        documents = _documents(pairs)
        low, high = paired_interval(pairs["left"].tolist(), pairs["right"].tolist(), documents)
        comparison = {
            "left": left,
            "right": right,
            "chunks": chunks if math.isnan(chunks) else int(chunks),
            "difference": pairs["right"].mean() - pairs["left"].mean(),
            "low": low,
            "high": high,
            "n": len(pairs),
            "documents": len(set(documents)),
            "right_only": int((pairs["right"] > pairs["left"]).sum()),
            "left_only": int((pairs["left"] > pairs["right"]).sum()),
        }
        made.append(comparison)
    return pd.DataFrame(made, columns=DIFFERENCE)


def costs(results: pd.DataFrame, by: Sequence[str] = ("line", "chunks")) -> pd.DataFrame:
    """Return one row per group with its number of questions ``n`` and :data:`COSTS`.

    Groups have the order of the rows, but the values of the last column, such as lengths, ascend. Failed readings are
    left out, because they were stopped early.
    """
    rows = keyed(results) if "line" in by else results
    rows = rows[rows["turns"].notna()]
    # Columns with missing values hold objects.
    tokens = rows["prompt_tokens"].astype(float) + rows["reply_tokens"].astype(float)
    rows = rows.assign(turns=rows["turns"].astype(float), seconds=rows["seconds"].astype(float), tokens=tokens)
    grouped = rows.groupby(list(by), sort=False, dropna=False)
    table = (
        grouped[["tokens", "turns"]]
        .mean()
        .assign(seconds=grouped["seconds"].median(), seconds_95=grouped["seconds"].quantile(0.95))
    )
    table.insert(0, "n", grouped.size())
    table = table.reset_index()
    # Rows have the longest documents first, as they are read.
    *others, last = by
    table["group"] = table.groupby(others, sort=False, dropna=False).ngroup()
    return table.sort_values(["group", last], ignore_index=True).drop(columns="group")


def two_hop_outcomes(results: Iterable[Result]) -> pd.DataFrame:
    """Return one row per reading of a two-hop question: ``example, right, waited``, and the fates of its two facts.

    The *lead* is the needed fact that comes first in the document, before anything has revealed that it will matter.
    ``waited`` is for how many turns it stayed in memory until the last fact was read (:func:`turns_waited`).
    ``lead_captured`` and ``lead_retained`` describe the lead; ``last_captured`` and ``last_retained`` describe the last
    needed fact. Failed readings are left out.
    """
    import pandas as pd

    rows = []
    for result in (result for result in results if result.trace is not None):
        row = {"example": result.example.id, "right": result.correct, "waited": turns_waited(result)}
        for name, history in zip(("lead", "last"), _lead_and_last(result), strict=True):
            row |= {f"{name}_captured": history.captured, f"{name}_retained": history.retained}
        rows.append(row)
    return pd.DataFrame(rows).astype({"waited": "Int64"})


def turns_waited(result: Result) -> int | None:
    """Return for how many turns the lead stayed in memory until the last needed fact was read.

    Returns ``None`` if the lead was out of memory in between, if one chunk contains both the lead and the last fact, or
    if either was never read.
    """
    lead, last = _lead_and_last(result)
    if lead.read is None or last.read is None or last.read <= lead.read:
        return None
    # The turn that reads the last fact is not part of the wait: it needs the lead only in its prompt.
    stayed = all(fate is Fate.IN_MEMORY for fate in lead.fates[lead.read : last.read])
    return last.read - lead.read if stayed else None


def two_hop_case(results: Sequence[Result]) -> tuple[str, Result]:
    """Return the right reading whose lead waited longest, else the first wrong one, else the first one; and why.

    The rule is fixed before anyone sees the readings. Raises ``ValueError``, with the first error, if all have failed.
    """
    read = [result for result in results if result.trace is not None]
    if not read:
        raise ValueError(f"no document was read; the first error is: {results[0].error if results else 'no document'}")
    best = max(read, key=lambda result: (turns_waited(result) or 0) if result.correct else 0)
    if best.correct and turns_waited(best):
        return "the lead waited longest", best
    wrong = [result for result in read if not result.correct]
    if wrong:
        return "no lead survived: the first wrong answer", wrong[0]
    return "no lead had to wait: the first right answer", read[0]


def _lead_and_last(result: Result) -> tuple[EvidenceHistory, EvidenceHistory]:
    # By position in the document, which need not be the order of the hops.
    histories = sorted(result.diagnosis.histories, key=lambda history: history.span or (0, 0))
    return histories[0], histories[-1]
