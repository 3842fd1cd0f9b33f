"""Result rows in files: one per policy, to which evaluations add, and which reports gather.

This module depends on lines of rows, not on tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.errors import MissingFile, one_line
from memagent_lib.evaluation.lines import (
    FINGERPRINTS,
    in_order,
    keyed,
    natural,
    question_columns,
    settings_columns,
    sources,
)
from memagent_lib.paths import absolute, lock_beside, replacing, shortest_ends

if TYPE_CHECKING:
    import pandas as pd

_SAME_RESULT = ("reader", "score", "answer", "code", *FINGERPRINTS)
"""The columns in which a row repeats an earlier one about the same question."""
_VERDICTS = ("model_judge", "model_verdict")


def save_rows(frame: pd.DataFrame, folder: str | Path, name: str) -> list[str]:
    """Add result rows to ``NAME.parquet``, atomically, for :func:`gather_rows`; return notes on what they replace.

    Rows already in the file stay, except those of the same reader, settings and data file, or of the same question
    and rule. There is a note for each reader of which the file loses a score. Data files of one name in different
    folders get the folders into their names. Several processes may add to one file at once. Raises ``ValueError`` if
    the file is damaged, or holds something else.
    """
    import pandas as pd

    path = absolute(folder) / f"{name}.parquet"
    notes = []
    with lock_beside(path):
        if path.is_file():
            before = _read(path)
            again = _evaluated_again(before, frame)
            notes = _replaced_notes(before[again], frame, path.name)
            frame = _with_file_names(pd.concat([before[~again], frame], ignore_index=True))
        with replacing(path) as unfinished:
            frame.to_parquet(unfinished, index=False)
    return notes


def _evaluated_again(before: pd.DataFrame, frame: pd.DataFrame) -> pd.Series:
    """Return which rows of ``before`` the rows of ``frame`` replace instead of doubling them."""
    again = before["reader"].map(lambda _: False)
    # The same questions in another file, or made in memory, are known by themselves, unless another rule judges them.
    repeated = _found_in(frame, before, ["reader", *question_columns(frame, before), "rule"])
    known = settings_columns(before)
    new_settings = settings_columns(frame)
    names = [name for name in known if name in new_settings]
    kinds = new_settings[names].assign(reader=frame["reader"], file=frame["file"], path=_paths(frame)).drop_duplicates()
    for new in kinds.to_dict("records"):
        same = _of_file(before, new["file"], new["path"]) | repeated
        same &= before["reader"] == new["reader"]
        for name in names:
            # Rows that do not record a setting are from before it was recorded.
            same &= (known[name] == new[name]) | known[name].isna()
        again |= same
    return again


def _paths(rows: pd.DataFrame) -> pd.Series:
    """Return where each row's data file was; rows of an older version have none."""
    import pandas as pd

    return rows["path"] if "path" in rows else pd.Series(None, rows.index, dtype=object)


def _of_file(rows: pd.DataFrame, name: str, path: str | None) -> pd.Series:
    """Return which rows are of a data file: by its path where both are known, else by its name."""
    paths = _paths(rows)
    by_name = rows["file"] == name
    return (paths == path).where(paths.notna(), by_name) if isinstance(path, str) else by_name


def _with_file_names(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the shortest names that tell their data files apart, as in one evaluation of all of them."""
    paths = _paths(rows)
    names = shortest_ends(paths.dropna().unique())
    return rows.assign(file=[names.get(path, file) for path, file in zip(paths, rows["file"], strict=True)])


def _replaced_notes(replaced: pd.DataFrame, frame: pd.DataFrame, file_name: str) -> list[str]:
    """Return a sentence per reader with ``replaced`` scores or verdicts that ``frame`` does not repeat exactly."""
    notes = []
    same = question_columns(frame, replaced)
    verdicts = _verdicts_lost(replaced, frame, same)
    scores = replaced["score"].notna() & ~_found_in(frame, replaced, [*same, *_SAME_RESULT])
    for reader, rows in replaced[scores | verdicts].groupby("reader", sort=False):
        unread = int((~_found_in(frame, rows, same)).sum())
        files = list(rows["file"].unique())
        of_files = files[0] if len(files) == 1 else f"{len(files)} data files"
        note = f"{len(rows):,} earlier results of {reader} on {of_files} are replaced in {file_name}{sources(rows)}"
        others = [words for name, words in FINGERPRINTS.items() if _others(rows, frame, name)]
        note += f"; they were read with other {' and '.join(others)}" if others else ""
        judged = rows[verdicts[rows.index]]
        note += f"; with them {len(judged):,} verdicts of {judged['model_judge'].iloc[0]}" if len(judged) else ""
        notes.append(note + (f"; {unread:,} of these questions were not read this time" if unread else ""))
    return notes


def _verdicts_lost(replaced: pd.DataFrame, frame: pd.DataFrame, same: Sequence[str]) -> pd.Series:
    """Return which ``replaced`` rows have a model's verdict that ``frame`` does not repeat."""
    if "model_judge" not in replaced:
        return replaced["score"].map(lambda _: False)
    judged = replaced["model_judge"].notna()
    if "model_judge" not in frame:
        return judged
    return judged & ~_found_in(frame, replaced, [*same, *_VERDICTS])


def _others(rows: pd.DataFrame, frame: pd.DataFrame, name: str) -> bool:
    """Return whether a column has values in ``rows`` that it does not have in ``frame``."""
    return name in rows and name in frame and bool(set(rows[name].dropna()) - set(frame[name].dropna()))


def _found_in(frame: pd.DataFrame, rows: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    """Return which ``rows`` are also in ``frame``, by the columns of ``names`` that both have."""
    import pandas as pd

    same = [name for name in names if name in rows and name in frame]
    known = set(frame[same].astype(str).itertuples(index=False, name=None))
    found = [row in known for row in rows[same].astype(str).itertuples(index=False, name=None)]
    return pd.Series(found, rows.index, dtype=bool)


def gather_rows(folder: str | Path, first: Sequence[str] = ()) -> pd.DataFrame:
    """Return all result rows in a folder and in the folders of a sweep's points below it, keyed by line.

    Policies, variants or lines named in ``first`` come first; colours and rows follow this order. ``varied`` names what
    differed between rows of one policy and reader (:func:`~memagent_lib.evaluation.lines.keyed`).
    """
    rows = read_rows(folder)
    try:
        return in_order(keyed(rows), first)
    except ValueError as failure:
        raise type(failure)(f"{absolute(folder)}: {failure}") from None


def read_rows(folder: str | Path) -> pd.DataFrame:
    """Return all result rows in a folder and in the folders of a sweep's points below it, as they were saved."""
    import pandas as pd

    folder = absolute(folder)
    files = sorted([*folder.glob("*.parquet"), *folder.rglob("*=*/*.parquet")], key=lambda file: natural(str(file)))
    if not files:
        fix = "make some with: memagent evaluate DATA --out FOLDER, or with 03_evaluate"
        raise MissingFile(f"no results in {folder}; {fix}")
    frames = []
    for file in files:
        point = "" if file.parent == folder else file.parent.name
        frames.append(_read(file).assign(point=point))
    return pd.concat(frames, ignore_index=True)


def _read(file: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        frame = pd.read_parquet(file)
    except (ValueError, OSError) as failure:  # pyarrow's, for a damaged end and for a damaged middle
        reason = one_line(failure)
        raise ValueError(f"{file} is damaged, or no parquet file ({reason}); move it out of {file.parent}") from None
    if "policy" not in frame:
        raise ValueError(f"{file} holds no results of an evaluation; move it out of {file.parent}")
    return frame
