"""Read tables as records: CSV and TSV files, or a spreadsheet's sheet. The first row names the columns.

Cells of a CSV file stay texts, because ``00123`` would become 123 as a number. An empty cell becomes None.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

CSV_SUFFIXES = (".csv", ".tsv", ".tab")
SHEET_SUFFIXES = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
_DELIMITERS = ",;\t|"
_LONGEST_CELL = 1 << 29  # the csv module's own limit, 131,072 characters, is too low for documents
_EXCEL_CELL = 32_767  # the most characters that Excel stores in a cell
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the fields of each row.

    Excel's ``sep=`` line sets the delimiter. Without it, the delimiter of a TSV file is the tab, and that of a CSV file
    is the comma, semicolon, tab or bar, whichever is most frequent in the first line. Raises ``ValueError`` if a name
    is repeated, if a row has more or fewer cells than there are names, or if a quote is not closed.
    """
    with open(path, "rb") as file:
        encoding = "utf-16" if file.read(2) in _UTF16_MARKS else "utf-8-sig"
    csv.field_size_limit(_LONGEST_CELL)
    with open(path, encoding=encoding, newline="") as file:
        first = file.readline()
        stated = re.fullmatch(r"sep=(.)\s*", first)  # Excel's own line
        begin = 1 if stated else 0
        lines = file if stated else chain([first], file)
        delimiter = stated[1] if stated else _delimiter(path, first)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        names = None
        line = begin + 1
        try:
            for cells in reader:
                if names is None and any(cells):
                    names = _names(cells, f"{path}, line {line}")
                elif any(cells):
                    yield line, _fields(names, cells, f"{path}, line {line}")
                line = begin + reader.line_num + 1
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {line}: not as in a CSV file ({error}); double the quotes in a quoted cell"
            ) from error


def sheet_rows(path: Path, sheet: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the row number and the fields of each row of ``sheet``, by default the only sheet that is not empty.

    Raises ``ValueError`` if there is no such sheet, or if none is named and several are not empty.
    """
    names = None
    for number, row in enumerate(_sheet(path, sheet), 1):
        where = f"{path}, row {number}"
        cells = [_cell(value, where) for value in row]
        while cells and cells[-1] is None:  # sheets are as wide as their widest row ever was
            cells.pop()
        if not cells:
            continue
        if names is None:
            names = _names(["" if cell is None else str(cell) for cell in cells], where)
        else:
            missing = [None] * (len(names) - len(cells))
            yield number, _fields(names, cells + missing, where)


def _sheet(path: Path, sheet: str | None) -> list[list[Any]]:
    from python_calamine import CalamineWorkbook

    try:
        workbook = CalamineWorkbook.from_path(str(path))
        names = [found.name for found in workbook.sheets_metadata if str(found.typ).endswith("WorkSheet")]
        sheets = {name: workbook.get_sheet_by_name(name).to_python(skip_empty_area=False) for name in names}
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in calamine, which is written in Rust, is not an Exception
        raise ValueError(f"{path}: no spreadsheet that can be read ({error}); save it again, or as CSV") from error
    if sheet is not None:
        if sheet not in sheets:
            raise ValueError(f"{path}: has no sheet {sheet!r}; choose from {', '.join(sheets)}")
        return sheets[sheet]
    filled = [name for name, rows in sheets.items() if any(value != "" for row in rows for value in row)]
    if not filled:
        raise ValueError(f"{path}: is empty")
    if len(filled) > 1:
        raise ValueError(f"{path}: has several sheets: {', '.join(filled)}; choose one with sheet=NAME")
    return sheets[filled[0]]


def _delimiter(path: Path, header: str) -> str:
    if path.suffix.lower() != ".csv":
        return "\t"
    return max(_DELIMITERS, key=header.count)


def _names(cells: Sequence[str], where: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    repeated = sorted({name for name in names if name and names.count(name) > 1})
    if repeated:
        raise ValueError(f"{where}: the first row names the columns, and {', '.join(repeated)} comes twice; rename one")
    return names


def _fields(names: Sequence[str], cells: Sequence[Any], where: str) -> dict[str, Any]:
    if len(cells) != len(names):
        raise ValueError(
            f"{where}: {len(cells)} cells, and the first row names {len(names)} columns ({', '.join(names)}); quote a "
            "cell that has the delimiter in it"
        )
    return {name: None if cell == "" else cell for name, cell in zip(names, cells, strict=True) if name}


def _cell(value: Any, where: str) -> Any:
    if isinstance(value, str) and len(value) >= _EXCEL_CELL:
        raise ValueError(
            f"{where}: a cell has {len(value):,} characters, as many as Excel keeps of a longer text; use CSV or JSON "
            "lines for long documents"
        )
    if isinstance(value, float) and value.is_integer():  # a spreadsheet's numbers are all of one kind
        return int(value)
    return None if value == "" else value
