"""Result rows: which of them may be added up, and the files that hold them.

Each row records its policy, reader and ``settings`` when it is made (:func:`memagent_lib.tracking.settings_of`). These
are its key: rows with the same key are one *line* of a table or figure, and no question counts twice in a line. This
module depends on frames of result rows, not on agents or runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.errors import MissingFile, UserError, nearest, nearest_path
from memagent_lib.paths import absolute, lock_beside, replacing
from memagent_lib.readers import BASELINES
from memagent_lib.scoring import judge_name

if TYPE_CHECKING:
    import pandas as pd

ALL_TASKS = "all tasks"
LINE = ["policy", "reader", "varied"]
"""The columns by which tables and figures group rows; :func:`keyed` adds ``varied``."""
FINGERPRINTS = ("weights", "wording")
"""Columns with hashes of the model and of the prompts. They name a line only where one policy has several."""
_QUESTION = ("task", "example", "question", "document")


class MixedRowsError(UserError, ValueError):
    """Two rows of one line are about the same question, so adding them up would be wrong."""


def row_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as the column ``settings`` of result rows, the part of a row's key beside policy and reader."""
    return json.dumps(settings, sort_keys=True, ensure_ascii=False)


def question_columns(*frames: pd.DataFrame) -> list[str]:
    """Return the columns that tell one question from another, as far as all ``frames`` have them."""
    return [name for name in _QUESTION if all(name in frame for frame in frames)]


def keyed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the columns ``varied``, ``variant`` and ``line``; keyed rows are returned unchanged.

    ``varied`` names the settings that differ between rows of one policy and reader (``memory 16, temperature 0.7``),
    ``variant`` is the policy with them, and ``line`` the variant with its reader, unless that is ``overwrite``. Where
    several points of a sweep fall into one cell of a line, their names are added. Raises :class:`MixedRowsError` if a
    line still has two readings of one question.
    """
    import pandas as pd

    if {"line", "variant", "varied"} <= set(rows.columns):
        return rows
    numbered = rows.reset_index(drop=True)  # frames put together may have one index twice
    groups = [settings_in_words(group) for _, group in numbered.groupby(LINE[:2], sort=False, dropna=False)]
    varied = pd.concat(groups).sort_index() if groups else pd.Series("", numbered.index)
    if "point" in numbered:
        line = [numbered["policy"], numbered["reader"], varied]
        cells = numbered["point"].groupby([*line, numbered["task"], numbered["chunks"]], dropna=False)
        several = (cells.transform("nunique") > 1).groupby(line).transform("any")
        named = numbered["point"].astype(str).where(varied == "", varied + ", " + numbered["point"].astype(str))
        varied = varied.where(~several, named.str.removesuffix(", "))
    variant = [", ".join(filter(None, pair)) for pair in zip(rows["policy"], varied, strict=True)]
    line = [line_name(*pair) for pair in zip(variant, rows["reader"], strict=True)]
    made = rows.assign(varied=varied.to_list(), variant=variant, line=line)
    same = question_columns(made)
    twice = made[made.duplicated(["line", *same], keep=False)] if {"example", "document"} <= set(same) else made[:0]
    for name, group in twice.groupby("line", sort=False):
        runs = ", ".join(map(str, group["run_id"].unique())) if "run_id" in group else "not recorded"
        raise MixedRowsError(
            f"{name!r} has read {len(group[same].drop_duplicates()):,} questions more than once (runs {runs}); leave "
            "one evaluation out, or give it another policy name"
        )
    return made


def settings_in_words(rows: pd.DataFrame) -> pd.Series:
    """Return for each row the settings that differ anywhere in the rows, in words: ``memory 16, temperature 0.7``.

    Hashes (:data:`FINGERPRINTS`) are named if they differ within a policy.
    """
    import pandas as pd

    texts = rows["settings"].fillna("{}") if "settings" in rows else pd.Series("{}", rows.index)
    settings = pd.DataFrame([json.loads(text) for text in texts], index=rows.index)
    hashes = [name for name in FINGERPRINTS if name in rows]
    words = pd.Series("", rows.index)
    for name, values in pd.concat([settings, rows[hashes]], axis="columns").items():
        values = values.map(_as_text, na_action="ignore").fillna("")
        count = values.groupby(rows["policy"]).transform("nunique") if name in FINGERPRINTS else values.nunique()
        setting = str(name).removesuffix("_tokens").replace("_", " ")
        words += (f", {setting} " + values).where((count > 1) & (values != ""), "")
    return words.str.removeprefix(", ")


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value == int(value):  # a column with missing values holds whole numbers as floats
        value = int(value)
    return json.dumps(value, ensure_ascii=False)


def line_name(variant: str, reader: str) -> str:
    """Return a line's name: the variant of a policy, and its reader unless that is ``overwrite``."""
    return variant if reader == "overwrite" else f"{variant}, {reader}"


def lines_of(rows: pd.DataFrame) -> list[str]:
    """Return the names of the lines of keyed rows, in order of appearance."""
    return list(dict.fromkeys(rows["line"]))


def with_memory(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose reader has a memory."""
    return rows[~rows["reader"].isin(BASELINES)]


def rows_of(rows: pd.DataFrame, name: str, reader: str = "") -> pd.DataFrame:
    """Return the rows of one line, by its name or by the name of its policy or variant.

    ``reader`` selects one of several readers; without it, ``overwrite`` is meant where a policy has several. Raises
    ``ValueError`` if there is no such line, or more than one.
    """
    rows = keyed(rows)
    wanted = line_name(name, reader or "overwrite")
    named = rows[(rows[["policy", "variant", "line"]] == name).any(axis="columns")]
    if reader:
        named = named[named["reader"] == reader]
    exact = named[named["line"] == wanted]
    found = exact if len(exact) else named
    if found["line"].nunique() != 1:
        known = ", ".join(map(repr, lines_of(found if len(found) else rows)))
        raise ValueError(f"{wanted!r} is not one line; choose from {known}{nearest(wanted, lines_of(rows))}")
    return found


def in_order(rows: pd.DataFrame, first: Sequence[str]) -> pd.DataFrame:
    """Sort keyed rows: lines of the policies, variants or lines in ``first`` come first, then policies as they appear.

    Raises ``ValueError`` for an unknown name.
    """
    names = rows[["policy", "variant", "line"]]
    missing = [name for name in first if not (names == name).any(axis=None)]
    if missing:
        known = f"{', '.join(lines_of(rows))}{nearest(missing[0], lines_of(rows))}"
        raise ValueError(f"no results of {', '.join(map(repr, missing))}; there are {known}")
    policies = list(rows["policy"].unique())
    ranks = [
        (min([first.index(name) for name in row if name in first], default=len(first)), policies.index(row[0]))
        for row in names.to_numpy()
    ]
    # sorted is stable: rows of one line stay as they are.
    return rows.iloc[sorted(range(len(rows)), key=ranks.__getitem__)].reset_index(drop=True)


def natural(text: str) -> list[tuple[int, float, str]]:
    """Return a sort key by which numbers inside a text sort by their value: ``memory 8`` before ``memory 16``."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(0, float(part), "") if at % 2 else (1, 0.0, part) for at, part in enumerate(parts) if part]


def with_all_tasks(rows: pd.DataFrame, line: Sequence[str], emptied: Sequence[str] = ()) -> pd.DataFrame:
    """Put rows of the task :data:`ALL_TASKS` before the others: the rows of every line that has read several tasks.

    ``line`` names the columns that tell lines apart. The column ``judge`` is added: a row's rule, or in all tasks all
    rules of the line. The columns in ``emptied``, such as the file, have no value in all tasks.
    """
    import pandas as pd

    line = list(line)
    rows = rows.assign(judge=rows["rule"].fillna("").map(judge_name))
    several = rows[rows.groupby(line, dropna=False)["task"].transform("nunique") > 1]
    same = question_columns(rows)
    if {"example", "document"} <= set(same):
        several = several.drop_duplicates([*line, *same])
    listed = several.groupby(line, dropna=False)["judge"].transform(lambda names: ", ".join(sorted(set(names) - {""})))
    over_all = several.assign(task=ALL_TASKS, judge=listed, **dict.fromkeys(emptied))
    return pd.concat([over_all, rows], ignore_index=True) if len(over_all) else rows.reset_index(drop=True)


def save_rows(frame: pd.DataFrame, folder: str | Path, name: str) -> list[str]:
    """Add result rows to ``NAME.parquet``, atomically, for :func:`gather_rows`; return notes on what they replace.

    Rows already in the file stay, except those of the same reader, settings and question, judged by the same rule, and
    those of an earlier version of the same data file (column ``data``: 8 digits for its path and 8 for its content).
    Several processes may add to one file at once.
    """
    import pandas as pd

    path = absolute(folder) / f"{name}.parquet"
    replaced = 0
    verdicts = [] if "model_judge" in frame else ["model_judge", "model_verdict"]  # else they are lost
    with lock_beside(path):
        if path.is_file():
            frame = pd.concat([_read(path), frame], ignore_index=True)
            same = [*_QUESTION, "reader", "settings", "rule"]
            columns = [*same, *FINGERPRINTS, "score", "answer", *verdicts]
            text = frame.reindex(columns=columns).astype(str)
            again = text.duplicated(same, keep="last")
            replaced = int((again & ~text.duplicated(keep="last")).sum())
            frame = frame[~again]
        if "data" in frame:
            judge = frame["rule"].map(judge_name, na_action="ignore")
            cells = [frame["data"].str[:8], judge, *(frame[name] for name in ("task", "chunks", "reader", "settings"))]
            newest = frame["data"].groupby(cells, dropna=False).transform("last")
            older = frame["data"].notna() & (frame["data"] != newest)
            replaced += int(older.sum())
            frame = frame[~older]
        with replacing(path) as unfinished:
            frame.to_parquet(unfinished, index=False)
    return [f"{replaced:,} earlier results are replaced in {path.name}"] if replaced else []


def gather_rows(folder: str | Path, first: Sequence[str] = ()) -> pd.DataFrame:
    """Return all result rows in a folder and in the folders of a sweep's points below it, keyed by line.

    Policies, variants or lines named in ``first`` come first; colours and rows follow this order.
    """
    return in_order(keyed(read_rows(folder)), first)


def read_rows(folder: str | Path) -> pd.DataFrame:
    """Return all result rows in a folder and in the folders of a sweep's points below it, as they were saved.

    Rows of a sweep have the name of their point in the column ``point``.
    """
    import pandas as pd

    folder = absolute(folder)
    files = sorted([*folder.glob("*.parquet"), *folder.rglob("*=*/*.parquet")], key=lambda file: natural(str(file)))
    if not files:
        fix = "make some with: memagent evaluate DATA --out FOLDER, or with 03_evaluate"
        raise MissingFile(f"no results in {folder}; {fix}{nearest_path(folder)}")
    frames = [_read(file).assign(point="" if file.parent == folder else file.parent.name) for file in files]
    return pd.concat(frames, ignore_index=True)


def _read(file: Path) -> pd.DataFrame:
    import pandas as pd

    frame = pd.read_parquet(file)
    if "policy" not in frame:
        raise ValueError(f"{file} holds no results of an evaluation; move it out of {file.parent}")
    return frame
