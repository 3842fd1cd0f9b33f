"""Lines: which result rows may be added up, found from the settings with which they were read.

A line of a table or a figure is a policy, a reader and whatever else varied. Two readings of one document are never in
the same line, so no document counts twice in one n. This module depends on frames of result rows, not on agents or
files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from memagent_lib.errors import UserError
from memagent_lib.paths import shortest_ends
from memagent_lib.readers import BASELINES
from memagent_lib.scoring import judge_name

if TYPE_CHECKING:
    import pandas as pd

SAME = ["example", "document"]
"""What every row has of its question. Ids alone do not tell: another setting of a task makes the same ids."""
OWN_TASK = "own_task"
"""The task of a row that :func:`with_all_tasks` has put among those of all tasks."""
LINE = ["policy", "reader", "varied"]
"""The columns by which tables and figures group rows; :func:`keyed` adds ``varied``."""
SETTINGS = {
    "template": "template",
    "chunk_tokens": "chunk",
    "memory_tokens": "memory",
    "answer_tokens": "answer",
    "question_tokens": "question",
    "temperature": "temperature",
    "top_p": "top_p",
    "sampling_seed": "sampling seed",
    "chat_template": "chat template",
    "extra": "request",
    "thinking_tokens": "thought",
    "on_bad_memory": "bad memories",
    "shared_reading": "reading",
    "shared_question": "read with",
}
"""Columns of settings that change replies, and their names in words."""
WRITTEN_IF_USED = (
    "chat_template",
    "extra",
    "thinking_tokens",
    "on_bad_memory",
    "shared_reading",
    "shared_question",
)
"""Settings that rows have only where they are used. Without a value, in rows of an older version too, they were not."""
FINGERPRINTS = {"weights": "weights", "wording": "texts of one template"}
"""Columns with hashes of what the replies depend on. A hash means nothing to a person, so it never names a line."""
ALL_TASKS = "all tasks"
CELL = ["task", "chunks"]
"""The columns that tell one cell of a table from another in a line."""
POINT_HASH = "point"
"""The part of a point that names it if another point of the same name differs only in what the name leaves out."""
DOCUMENTS = ("data", POINT_HASH)
"""The parts of a point that choose other documents, which are not added up in one cell."""
_POINT_PARTS = re.compile(r",[ _](?=\w+=)")
_POINT_HASH = re.compile(r"-[0-9a-f]{8}$")  # which a sweep appends to names that are no file names
_UNKNOWN = "not recorded"


class MixedRowsError(UserError, ValueError):
    """Rows of one line differ in something that no column names, so adding them up would be wrong."""


def keyed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the columns ``varied``, ``variant`` and ``line``; keyed rows are returned unchanged.

    ``varied`` names in words the settings that differ between rows of one policy and reader (``memory 16, temperature
    0.7``), ``variant`` is the policy with them, and ``line`` the variant with its reader, unless that is ``overwrite``.
    Settings are the columns of :data:`SETTINGS`; where these do not tell two readings of a document apart, the parts of
    a sweep's ``point`` do. So does the data that a point has read, if other points have read other documents of the
    same task and length. A document that is in several data files of one run counts once. Raises
    :class:`MixedRowsError` for rows that still cannot be told apart.
    """
    if {"line", "variant", *LINE} <= set(rows.columns):
        return rows
    rows = rows[~in_several_files(rows)]
    numbered = rows.reset_index(drop=True)  # frames put together may have one index twice
    words = numbered["policy"].map(lambda _: [])
    for _, group in numbered.groupby(LINE[:2], sort=False, dropna=False):
        settings = settings_columns(group)
        for name in _differing(settings, settings.columns):
            _append(words, settings[name], name)
        parts = _point_columns(group)
        twice = _read_twice(group, words)
        for name in _differing(parts[twice], parts.columns):
            _append(words, parts[name], name)
        for name in [name for name in DOCUMENTS if name in parts]:
            mixed = parts[name][_in_mixed_cells(group, words, parts[name])]
            _append(words, parts[name].where(parts[name].isin(mixed), ""), name)
    varied = [", ".join(of_row) for of_row in words]
    variant = [variant_name(*pair) for pair in zip(rows["policy"], varied, strict=True)]
    line = [line_name(*pair) for pair in zip(variant, rows["reader"], strict=True)]
    made = rows.assign(varied=varied, variant=variant, line=line)
    _require_unmixed(made)
    return made


def in_several_files(rows: pd.DataFrame) -> pd.Series:
    """Return which rows repeat a reading of the same run, because a document is in several of its data files."""
    import pandas as pd

    same = question_columns(rows)
    if not same or "run_id" not in rows:
        return pd.Series(False, index=rows.index)
    return rows.duplicated([name for name in ("run_id", *LINE[:2], *same) if name in rows])


def question_columns(*frames: pd.DataFrame) -> list[str]:
    """Return the columns that tell one question from another in all ``frames``; none if their rows do not name them.

    Two files of questions about the same documents may number them alike, so task and question count too. Rows of an
    older version have no ``question``.
    """
    if not all(set(SAME) <= set(frame) for frame in frames):
        return []
    task = OWN_TASK if all(OWN_TASK in frame for frame in frames) else "task"
    known = [name for name in (task, "question") if all(name in f and f[name].notna().all() for f in frames)]
    return [*known, *SAME]


def with_all_tasks(rows: pd.DataFrame, line: Sequence[str], emptied: Sequence[str] = ()) -> pd.DataFrame:
    """Put rows of the task :data:`ALL_TASKS` before the others: the rows of every line that has read several tasks.

    ``line`` names the columns that tell lines apart. A document counts once in all tasks of a line, by its first row.
    The column ``judge`` is added: a row's rule, or in all tasks all rules of the line. The columns in ``emptied``, such
    as the file, have no value in all tasks.
    """
    import pandas as pd

    line = list(line)
    rows = rows.assign(judge=rows["rule"].fillna("").map(judge_name), **{OWN_TASK: rows["task"]})
    several = rows[rows.groupby(line, dropna=False)["task"].transform("nunique") > 1]
    same = question_columns(rows)
    if same:
        several = several.drop_duplicates([*line, *same])
    doubled = pd.concat([several, rows], ignore_index=True)
    own = pd.Series(doubled.index >= len(several))
    doubled["task"] = doubled["task"].where(own, ALL_TASKS)
    doubled["judge"] = doubled["judge"].where(own, doubled.groupby(line, dropna=False)["judge"].transform(_listed))
    for name in emptied:
        doubled[name] = doubled[name].where(own)
    return doubled


def _listed(names: pd.Series) -> str:
    return ", ".join(sorted(set(filter(None, names))))


def with_memory(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose reader has a memory."""
    return rows[~rows["reader"].isin(BASELINES)]


def lines_of(rows: pd.DataFrame) -> list[str]:
    """Return the names of the lines of keyed rows, in order of appearance."""
    return list(dict.fromkeys(rows["line"]))


def rows_of(rows: pd.DataFrame, name: str, reader: str = "") -> pd.DataFrame:
    """Return the rows of one line, by its name or by the name of its policy or variant.

    ``reader`` selects one of several readers; without it, ``overwrite`` is meant where a policy has several. Raises
    ``ValueError`` if there is no such line, or more than one; the message names the lines to choose from.
    """
    rows = keyed(rows)
    named = rows[(rows[["policy", "variant", "line"]] == name).any(axis="columns")]
    if reader:
        named = named[named["reader"] == reader]
    exact = named[named["line"] == line_name(name, reader or "overwrite")]
    found = exact if len(exact) else named
    if found["line"].nunique() != 1:
        wanted = f"{name!r} with the reader {reader!r}" if reader else repr(name)
        what = "are several lines" if len(found) else "is no line of the results"
        known = ", ".join(map(repr, lines_of(found if len(found) else rows)))
        raise ValueError(f"{wanted} {what}; choose from {known}")
    return found


def variant_name(policy: str, varied: str) -> str:
    """Return the policy's name followed by the settings that varied."""
    return f"{policy}, {varied}" if varied else policy


def line_name(variant: str, reader: str) -> str:
    """Return a line's name: the variant of a policy, and its reader unless that is ``overwrite``."""
    return variant if reader == "overwrite" else f"{variant}, {reader}"


def settings_in_words(rows: pd.DataFrame) -> pd.Series:
    """Return for each row the settings that differ anywhere in the rows, in words: ``memory 16, temperature 0.7``."""
    settings = settings_columns(rows.reset_index(drop=True))
    words = settings.index.to_series().map(lambda _: [])
    for name in _differing(settings, settings.columns):
        _append(words, settings[name], name)
    return words.map(", ".join).set_axis(rows.index)


def settings_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of :data:`SETTINGS`, with "" for a setting of :data:`WRITTEN_IF_USED` that was not used.

    Another setting without a value was not recorded, and stays missing.
    """
    import pandas as pd

    columns = {name: rows[name] for name in SETTINGS if name in rows}
    if {"sampling_seed", "temperature"} <= set(columns):  # greedy replies do not depend on a seed
        columns["sampling_seed"] = rows["sampling_seed"].astype(object).where(rows["temperature"] != 0, "")
    for name in WRITTEN_IF_USED:
        values = columns.get(name, pd.Series("", rows.index)).astype(object)
        columns[name] = values.where(values.notna(), "")
    return pd.DataFrame(columns, index=rows.index)


def natural(text: str) -> list[tuple[int, float, str]]:
    """Return a sort key by which numbers inside a text sort by their value: ``memory 8`` before ``memory 16``."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(0, float(part), "") if at % 2 else (1, 0.0, part) for at, part in enumerate(parts) if part]


def _differing(rows: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """Return the columns with more than one value. A missing value was not recorded and does not count."""
    return [name for name in names if rows[name].map(str).where(rows[name].notna()).nunique() > 1]


def _append(words: pd.Series, values: pd.Series, name: str) -> None:
    """Append to each row's list of words the setting ``name`` with the row's value, unless that is empty.

    The words are ``memory 16``, ``template short``. Of a path they have the end that no other value has.
    """
    setting = SETTINGS.get(name, name.replace("_", " "))
    texts = values.map(_as_text, na_action="ignore").where(values.notna(), _UNKNOWN)
    # A parameter may be a path of a model or a folder, whose beginning is the same for most points.
    ends = shortest_ends(text for text in texts.unique() if " " not in text)
    for at, text in texts.items():
        if text:
            words.at[at].append(f"{setting} {ends[text] if '/' in text and text in ends else text}")


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


def _point_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of each row's sweep point as columns, from its label or from the name of its folder."""
    import pandas as pd

    if "point" not in rows:
        return pd.DataFrame(index=rows.index)
    parts = {}
    for point in rows["point"].unique():
        named = [part.partition("=") for part in _POINT_PARTS.split(_POINT_HASH.sub("", str(point)))]
        parts[point] = {name: value for name, sign, value in named if sign}
    alike = Counter(str(of_point) for of_point in parts.values())
    for point, of_point in parts.items():
        cut = _POINT_HASH.search(str(point))
        if cut and alike[str(of_point)] > 1:
            of_point[POINT_HASH] = cut[0].removeprefix("-")
    columns = pd.DataFrame([parts[point] for point in rows["point"]], index=rows.index)
    return columns.fillna("")  # a parameter that a point does not name has its default there


def _read_twice(group: pd.DataFrame, words: pd.Series) -> pd.Series:
    """Return which rows of one policy and reader are about a document that another row with the same words has too."""
    same = question_columns(group)
    if not same:
        return group["policy"].map(lambda _: False)
    return group[same].assign(words=words[group.index].map(tuple)).duplicated(keep=False)


def _in_mixed_cells(group: pd.DataFrame, words: pd.Series, values: pd.Series) -> pd.Series:
    """Return which rows of one policy and reader are in a cell with rows of the same words but another value."""
    cells = group[CELL].assign(words=words[group.index].map(tuple), value=values)
    return cells.groupby([*CELL, "words"], dropna=False)["value"].transform("nunique") > 1


def _require_unmixed(rows: pd.DataFrame) -> None:
    """Raise for a line with two readings of one document, or with two values in a column of :data:`FINGERPRINTS`."""
    for line, group in rows.groupby("line", sort=False):
        for name in _differing(group, [name for name in FINGERPRINTS if name in group]):
            found = " and ".join(sorted(map(str, group[name].dropna().unique())))
            raise MixedRowsError(
                f"rows of {line!r} differ in their {FINGERPRINTS[name]} ({found}), so they are not one line; evaluate "
                f"the older ones again, or give one of the two another policy name{sources(group, name)}"
            )
        same = question_columns(group)
        twice = group[group.duplicated(same, keep=False)] if same else group.head(0)
        if len(twice):
            rules = sorted(twice["rule"].dropna().unique()) if "rule" in twice else []
            why = "and the rows name no setting in which these readings differ"
            if len(rules) > 1:
                why = f"once for each of the judges {' and '.join(rules)}"
            raise MixedRowsError(
                f"{len(twice[same].drop_duplicates()):,} questions of {line!r} were read more than once, {why}; take "
                f"one of the evaluations out, or give one another policy name{sources(twice, 'run_id')}"
            )


def sources(rows: pd.DataFrame, name: str = "run_id") -> str:
    """Return which runs the rows are from, one per value of ``name``, as the end of a message; "" if not recorded."""
    if "run_id" not in rows:
        return ""
    runs = rows.drop_duplicates(name)["run_id"]
    return f" (runs {', '.join(map(str, runs))})"


def in_order(rows: pd.DataFrame, first: Sequence[str]) -> pd.DataFrame:
    """Sort keyed rows: lines of the policies, variants or lines in ``first`` come first, then policies as they appear.

    Within a policy, what varied goes from the smallest number to the largest. Raises ``ValueError`` for an unknown
    name.
    """
    known = {name for column in ("policy", "variant", "line") for name in rows[column]}
    missing = [name for name in first if name not in known]
    if missing:
        lines = ", ".join(map(repr, lines_of(rows)))
        raise ValueError(f"no results of {', '.join(map(repr, missing))}; there are {lines}")
    order = list(dict.fromkeys([*first, *rows["policy"]]))

    def rank(policy: str, variant: str, line: str) -> int:
        return min(order.index(name) for name in (policy, variant, line) if name in order)

    ranks = [
        (rank(policy, variant, line), natural(varied))
        for policy, variant, line, varied in zip(
            rows["policy"], rows["variant"], rows["line"], rows["varied"], strict=True
        )
    ]
    # sorted is stable: rows of one line stay as they are.
    return rows.iloc[sorted(range(len(rows)), key=ranks.__getitem__)].reset_index(drop=True)
