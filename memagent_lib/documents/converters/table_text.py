"""Convert tables to text, one line per row: spreadsheets (.xlsx, .xls, .xlsb, .ods, by calamine) and CSV.

Cells are separated by `` | ``; an empty cell stays empty, so that columns keep their order. If the first row is a
header, it is repeated every :data:`ROWS_PER_HEADER` rows, because a chunk from a long table would otherwise lack it.
A line of a CSV file with a quotation mark that is never closed is a row of its own, and is reported.
"""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, BinaryIO

from memagent_lib.documents.converters.archives import member, open_archive
from memagent_lib.documents.converters.converted import (
    MAX_BYTES,
    Converted,
    ConverterOptions,
    Lazily,
    Piece,
    Source,
    Unreadable,
    counted,
)
from memagent_lib.documents.converters.encodings import decoded
from memagent_lib.documents.converters.plain_text import encoding_of

ROWS_PER_HEADER = 40
MAX_ROW_LINES = 100
"""The most lines of a CSV file that one row may have: a quotation mark that is open for longer is a stray one."""
_DELIMITERS = ",;\t|"
_SNIFFED_LINES = 20
_ROWS_PER_PIECE = 1000
_BESIDE_CELLS = (  # names of files in an .xlsx, and what marks one thing in them
    ("comment", r"xl/(?:[^/]+/)?comments?\d*\.xml", rb"<(?:\w+:)?comment[\s>]"),
    ("drawn text", r"xl/drawings/[^/]+\.xml", rb"<a:t(?: [^>]*)?>[^<]"),
    ("chart", r"xl/charts/chart\d*\.xml", rb"<(?:\w+:)?chartSpace[\s/>]"),
)
_CELL = re.compile(rb"<c((?: [^>]*[^/>])?)>(.*?)</c>", re.DOTALL)


def csv_text(source: Source, options: ConverterOptions) -> Converted:
    """Convert a CSV file of any size.

    The delimiter is the one in a ``sep=`` line, or a tab if the file's name says so, or else the one that divides the
    first lines most evenly.
    """
    encoding, notes = encoding_of(source, options)
    with source.open() as stream:
        head = next(decoded(stream, encoding.codec), "").lstrip("\ufeff")
    # The default limit of 128 KB stops at long texts in a cell.
    csv.field_size_limit(MAX_BYTES)
    delimiter = _delimiter(head, source.name)
    unclosed: list[int] = []
    with source.open() as stream:
        for _ in _rows(_lines(stream, encoding.codec), delimiter, unclosed):
            pass
    if unclosed:
        others = f" and {counted(len(unclosed) - 1, 'more line')}" if len(unclosed) > 1 else ""
        notes.append(f"a quotation mark is never closed on line {unclosed[0]:,}{others} of {source.name}")

    def pieces() -> Iterator[Piece]:
        with source.open() as stream:
            rows = _rows(_lines(stream, encoding.codec), delimiter, [])
            lines = []
            for line in _row_lines(row for row in rows if row):
                lines.append(line)
                if len(lines) == _ROWS_PER_PIECE:
                    yield Piece("".join(lines))
                    lines = []
            yield Piece("".join(lines))

    return Converted(Lazily(pieces), notes)


def _lines(stream: BinaryIO, codec: str) -> Iterator[str]:
    """Yield the lines of a CSV file without its byte order mark. The ``sep=`` line for Excel is an empty line."""
    rest = ""
    is_first = True
    for block in decoded(stream, codec):
        lines = _split_lines(rest + block)
        rest = lines.pop() if lines else ""
        for line in lines:
            if is_first:
                line = line.lstrip("\ufeff")
                is_first = False
                if re.fullmatch(r"sep=.\s*", line):
                    line = ""
            yield line.replace("\0", "\ufffd")
    yield rest.lstrip("\ufeff") if is_first else rest


def _split_lines(text: str) -> list[str]:
    """Return the lines with their ends. ``str.splitlines`` would also split at U+2028 and others, as no CSV does."""
    return list(io.StringIO(text, newline=""))


def _rows(lines: Iterator[str], delimiter: str, unclosed: list[int]) -> Iterator[list[str]]:
    """Yield the rows of a CSV file.

    A line that opens a quotation mark which is not closed within :data:`MAX_ROW_LINES` lines is a row of its own, whose
    number is added to ``unclosed``. Otherwise, all lines after it would be one cell.
    """
    numbered = enumerate(lines, 1)
    again: deque[tuple[int, str]] = deque()
    taken: list[tuple[int, str]] = []

    def feed() -> Iterator[str]:
        while len(taken) < MAX_ROW_LINES:
            line = again.popleft() if again else next(numbered, None)
            if line is None:
                return
            taken.append(line)
            yield line[1]
        raise csv.Error("a cell of too many lines")

    # A strict reader raises an error if the lines end inside quotation marks.
    reader = csv.reader(feed(), delimiter=delimiter, strict=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error:
            (number, line), *rest = taken
            again.extendleft(reversed(rest))
            row, is_closed = _row_of_line(line, delimiter)
            if not is_closed:
                unclosed.append(number)
            reader = csv.reader(feed(), delimiter=delimiter, strict=True)
        if row is None:
            return
        taken.clear()
        yield row


def _row_of_line(line: str, delimiter: str) -> tuple[list[str], bool]:
    """Return the cells of a single line, and whether its quotation marks are closed; if not, they are letters."""
    try:
        rows = list(csv.reader([line, ""], delimiter=delimiter))
    except csv.Error:  # a cell beyond the limit
        rows = []
    # An open quotation mark takes the empty line into its cell.
    if len(rows) == 2:
        return rows[0], True
    return line.rstrip("\r\n").split(delimiter), False


def _delimiter(head: str, name: str) -> str:
    stated = re.match(r"sep=(.)\s*\n", head)
    if stated:
        return stated[1]
    # The cells of such a file may have as many commas in every row.
    if name.lower().endswith((".tsv", ".tab")) and "\t" in head:
        return "\t"
    lines = _split_lines(head)[:_SNIFFED_LINES]
    return max(_DELIMITERS, key=lambda delimiter: _evenness(lines, delimiter))


def _evenness(lines: Sequence[str], delimiter: str) -> tuple[float, int]:
    """Return the share of rows that have the most frequent number of cells, and that number."""
    widths = Counter(len(row) for row in _rows(iter(lines), delimiter, []) if row)
    # A row of one cell shows only that the delimiter does not occur in it.
    widths.pop(1, None)
    if not widths:
        return 0.0, 0
    width, count = widths.most_common(1)[0]
    return count / len(lines), width


def _row_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield one line per row, with the header again every :data:`ROWS_PER_HEADER` rows."""
    header = ""
    for number, row in enumerate(rows):
        cells = [" ".join(cell.split()) for cell in row]
        line = " | ".join(cells).rstrip(" |")
        # A first row with an empty cell or a number is data, not a header.
        if number == 0 and len(cells) > 1 and all(cell and not _is_number(cell) for cell in cells):
            header = f"{line}\n"
        elif header and number % ROWS_PER_HEADER == 0:
            yield header
        if line:
            yield f"{line}\n"


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"[-+]?[\d.,' ]*\d[\d.,' ]*%?", cell))


def spreadsheet_text(source: Source, _: ConverterOptions) -> Converted:
    """Convert every sheet, with the values that were last calculated. Hidden sheets are included and reported."""
    from python_calamine import CalamineWorkbook

    with source.open() as stream:
        unsaved, errors, beside = _odd_parts(stream)
        stream.seek(0)
        try:
            workbook = CalamineWorkbook.from_filelike(stream)
            sheets = [
                (sheet.name, str(sheet.visible), workbook.get_sheet_by_name(sheet.name))
                for sheet in workbook.sheets_metadata
                if str(sheet.typ).endswith("WorkSheet")
            ]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as broken:  # a panic of Rust is no Exception
            raise Unreadable(f"no spreadsheet that calamine can read ({broken}); save it again, or as CSV") from broken
        pieces = []
        notes = []
        for name, visibility, sheet in sheets:
            rows = _filled(sheet)
            text = "".join(_row_lines([_cell(value) for value in row] for row in rows))
            if not text:
                notes.append(f"sheet {name} of {source.name} is empty")
                continue
            if not visibility.endswith("Visible") or "Hidden" in visibility:
                notes.append(f"sheet {name} of {source.name} is hidden; it is read all the same")
            pieces.append(Piece(f"Sheet {name}\n{text}\n", f"sheet {name}"))
    if unsaved:
        notes.append(f"{counted(unsaved, 'formula')} of {source.name} without a saved value; open the file and save it")
    if errors:
        kinds = ", ".join(sorted(errors))
        notes.append(f"{counted(errors.total(), 'cell')} of {source.name} with an error ({kinds}) left empty")
    notes += [f"{counted(number, noun)} left out from {source.name}" for noun, number in beside.items()]
    return Converted(pieces, notes)


def _filled(sheet: Any) -> list[list[Any]]:
    """Return the rows. A cell that is merged over several rows has its value in each of them."""
    rows = sheet.to_python(skip_empty_area=False)
    for (top, left), (bottom, _) in sheet.merged_cell_ranges or []:
        for number in range(top + 1, min(bottom + 1, len(rows))):
            # The file stores a merged value once, in the topmost cell.
            if left < len(rows[number]) and rows[number][left] == "":
                rows[number][left] = rows[top][left]
    return [row for row in rows if any(value != "" for value in row)]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return _digits(value)
    if isinstance(value, datetime.datetime):
        if value.time() == datetime.time():
            return value.date().isoformat()
        return value.isoformat(" ")
    return str(value)


def _digits(value: float) -> str:
    """Return a number with the 15 digits that spreadsheets store, without an exponent if it is readable so."""
    text = f"{value:.15g}"
    # 0.1 + 0.2 is 0.3 in a spreadsheet, and so it is here.
    if 1e-6 <= abs(value) < 1e21:
        return f"{Decimal(text):f}"
    return text


def _odd_parts(stream: BinaryIO) -> tuple[int, Counter[str], Counter[str]]:
    """Return what calamine does not read of an .xlsx.

    That is how many formulas have no value, how many cells have each error, such as ``#DIV/0!``, and how many comments,
    drawn texts and charts there are beside the cells. A formula has no value if the program that wrote the file
    calculates nothing. Its value may also be an empty text.
    """
    count = 0
    errors: Counter[str] = Counter()
    beside: Counter[str] = Counter()
    if stream.read(2) != b"PK":
        return count, errors, beside
    stream.seek(0)
    archive = open_archive(stream)
    for name in archive.namelist():
        for noun, file, mark in _BESIDE_CELLS:
            if re.fullmatch(file, name):
                beside[noun] += len(re.findall(mark, member(archive, name)))
        if re.fullmatch(r"xl/worksheets/[^/]+\.xml", name):
            for found in _CELL.finditer(member(archive, name)):
                attributes, content = found.groups()
                value = re.search(rb"<v(?: [^>]*)?>([^<]+)", content)
                if b't="e"' in attributes and value:
                    errors[value[1].decode("utf-8", errors="replace")] += 1
                is_text = b't="str"' in attributes
                count += not value and not is_text and bool(re.search(rb"<f[ />]", content))
    return count, errors, +beside
