"""Convert an HTML page to the text that a person sees, one line per block.

The cells of a row are on one line, separated by `` | ``; terms, options and captions have their own lines. A
superscript becomes ``^2``, a subscript ``_2``, a deletion ``[deleted: 12]``, a picture ``[image: its alternative
text]``, a checked box ``[x]``. Scripts, styles and hidden passages are left out; hidden passages are counted. Adjacent
inline elements are separated only if they would otherwise form a new number or word: ``<i>12</i><i>34</i>``.

The standard library's parser runs once over the page and no tree is built, so neither depth nor missing end tags
matter. Style sheets are ignored, so a passage hidden only by a class is read.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from typing import NamedTuple

from memagent_lib.documents.converters.converted import counted

MAX_SPAN = 100
REPEATED_CELL_CHARS = 200
DATA_CELL_LINES = 6
NESTED_FRAMES = 3
NESTED_RAISED = 8
_XHTML_CHARS = 4096

Attributes = dict[str, str]


def _tags(names: str) -> frozenset[str]:
    return frozenset(names.split())


_BLOCKS = _tags(
    "address article aside blockquote body br caption center dd details dialog dir div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol optgroup option p pre "
    "search section select summary svg table tbody td text textarea tfoot th thead title tr ul"
)
_VOID = _tags("area base br col embed hr img input link meta param source track wbr")
_NOISE = _tags("template datalist noembed noframes rp annotation annotation-xml")
_ALWAYS_APART = _tags("button input label tspan")
_NO_VALUE = _tags("hidden password file")
_TABLE_PARTS = _tags("td th tr tbody tfoot thead caption")
_SCOPES = _tags("table td th ul ol dl select")
"""In these elements, no tag ends an element outside, except the end tag of an element of this list."""
_ENDS = dict.fromkeys(_BLOCKS - _tags("br option optgroup text svg title"), ("p",))
_ENDS |= {"li": ("p", "li"), "dt": ("p", "dt", "dd"), "dd": ("p", "dt", "dd")}
_ENDS |= {"option": ("option",), "optgroup": ("option",)}
"""For each element, the open elements that end where it begins, because pages leave out their end tags."""
_AROUND = {"del": ("[deleted: ", "]"), "rt": ("(", ")"), "q": ('"', '"'), "msqrt": ("√(", ")")}
_AROUND |= dict.fromkeys(("s", "strike"), _AROUND["del"])
_RAISED = {"sup": "^", "sub": "_"}
_BETWEEN = {"mfrac": "/", "msup": "^", "msub": "_", "mover": "^", "munder": "_", "msubsup": "_^", "munderover": "_^"}
"""The signs that separate the parts of a formula's element."""
_FORMULA = _BETWEEN.keys() | _tags("math mrow msqrt mroot mstyle mtable mtr mtd mfenced mpadded semantics")
_IS_HIDING = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
_CHARSET = re.compile(rb"""<(?:meta|\?xml)[^>]{0,300}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_UNREAD = re.compile(r"<!--|<(script|style)(?=[\s/>])", re.IGNORECASE)
_ATTRIBUTES = re.compile(r"""(?:[^>"']|"[^"]*"|'[^']*')*>""")
_XHTML = re.compile(
    r"""\A\s*<\?xml\s|<!DOCTYPE[^>]*\bXHTML\b|<html\b[^>]*\bxmlns\s*=\s*["']http://www\.w3\.org/1999/xhtml""",
    re.IGNORECASE,
)
_INVISIBLE = str.maketrans({"\u00ad": None, "\u200b": None, "\ufeff": None})


class PageText(NamedTuple):
    """The text of a page, and one line for each thing left out of it."""

    text: str
    notes: list[str]


def page_label(page: bytes) -> str | None:
    """Return the encoding that a page declares, by its ``<meta>`` or its XML declaration."""
    declared = _CHARSET.search(page[:4096])
    return declared[1].decode("ascii", errors="replace") if declared else None


def html_text(page: str, is_xml: bool = False) -> PageText:
    """Convert a page to text. ``is_xml`` states that it is XHTML, which is otherwise detected from its beginning."""
    reader = _PageReader(NESTED_FRAMES)
    reader.read(page, is_xml)
    text = "".join(f"{line}\n" for line in reader.lines)
    notes = []
    if reader.hidden:
        notes.append(f"{counted(reader.hidden, 'hidden passage')} ({reader.hidden_chars:,} characters) left out")
    return PageText(text, notes)


def _without_scripts(page: str, is_xml: bool) -> str:
    """Return ``page`` without scripts, styles and comments. A comment that never ends is text.

    ``<script/>`` is whole in XHTML. In other HTML, the script ends at its end tag as in browsers, if there is one.
    """
    is_xml = is_xml or bool(_XHTML.search(page[:_XHTML_CHARS]))
    parts = []
    at = 0
    endless = set()
    for start in _UNREAD.finditer(page):
        if start.start() < at:
            continue
        parts.append(page[at : start.start()])
        if start[1]:
            name = start[1].lower()
            tag = _ATTRIBUTES.match(page, start.end())
            whole = tag if tag and tag[0].endswith("/>") else None
            end = whole if is_xml else None
            if end is None and name not in endless:
                end = re.compile(rf"</{name}[^>]*>", re.IGNORECASE).search(page, start.end())
                if end is None:
                    endless.add(name)  # so that a page of many such tags is searched once
            end = end or whole
            at = end.end() if end else len(page)
        else:
            end_at = page.find("-->", start.start() + 2)  # `<!-->` is a whole comment
            if end_at < 0:
                parts.append(page[start.start() :].replace("<!--", "&lt;!--"))
                return "".join(parts)
            at = end_at + 3
    parts.append(page[at:])
    return "".join(parts)


class _Cell(NamedTuple):
    lines: list[str]
    rows: int
    columns: int
    is_layout: bool
    """Whether the cell contains a table, so that its row arranges a page rather than values."""


@dataclass
class _Table:
    cells: list[_Cell] = field(default_factory=list)
    above: dict[int, tuple[int, str]] = field(default_factory=dict)
    """For each column that a cell above reaches into: for how many more rows, and the cell's value."""

    def end_row(self) -> list[str]:
        """Return the lines of the finished row, and start the next row."""
        cells = self.cells
        self.cells = []
        is_layout = any(cell.is_layout or len(cell.lines) > DATA_CELL_LINES for cell in cells)
        # A row of a layout table is a part of the page, so its lines stay lines.
        if is_layout or (len(cells) == 1 and not self.above):
            return [line for cell in cells for line in cell.lines]
        line = " | ".join(self._columns(cells)).rstrip(" |").lstrip()
        return [line] if line else []

    def _columns(self, cells: list[_Cell]) -> list[str]:
        """Return the row's values by column.

        A cell of several rows is repeated below; a wide cell is followed by "".
        """
        row: list[str] = []
        below: dict[int, tuple[int, str]] = {}

        def reach_down() -> None:
            while len(row) in self.above:
                rows, value = self.above.pop(len(row))
                if rows > 1:
                    below[len(row)] = (rows - 1, value)
                row.append(value)

        for cell in cells:
            reach_down()
            value = " ".join(cell.lines)
            if cell.rows > 1:
                # Repeated, because a chunk that begins below the cell would lack it; a long text is not.
                again = value if len(value) <= REPEATED_CELL_CHARS else ""
                below[len(row)] = (cell.rows - 1, again)
            row += [value, *[""] * (cell.columns - 1)]
        reach_down()
        self.above = {column: under for column, under in self.above.items() if column > len(row)} | below
        return row


@dataclass
class _Element:
    """An open element of the page."""

    tag: str
    attributes: Attributes
    first_word: int
    """The index in the current line at which the element's words begin."""
    line: int
    """The number of the line on which the element began."""
    children: int = 0


class _PageReader(HTMLParser):
    """Collects the page's ``lines``. A table's cell collects its own lines, which its row then joins."""

    def __init__(self, frames: int):
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.hidden = 0
        self.hidden_chars = 0
        self._frames = frames
        self._words: list[str] = []
        self._line = 0
        self._crossed: list[str] = []  # tags since the last words, ends with a slash
        self._open: list[_Element] = []
        self._scopes: list[Counter[str]] = [Counter()]
        self._tables: list[_Table] = []
        self._outside: list[tuple[list[str], bool]] = []  # the lines around each open cell
        self._has_table = False
        self._numbers: list[int | None] = []
        self._label = ""  # of the list item that has begun: its first paragraph follows on the same line
        self._unread: _Element | None = None
        self._unread_chars = 0

    def read(self, page: str, is_xml: bool = False) -> None:
        page = _without_scripts(page.replace("\0", "\ufffd"), is_xml)
        end = page.rfind(">") + 1  # no tag can follow; the parser would search for its end at every `<`
        self.feed(page[:end])
        self.close()
        self.handle_data(unescape(page[end:]))
        while self._open:
            self._end_top()
        self._break()

    # Called by the parser.

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._end_what_ends_before(tag)
        # If an attribute is repeated, the first one counts, as in browsers.
        attributes = {name: value or "" for name, value in reversed(attrs)}
        if self._unread is None:
            self._begin(tag, attributes)
        if tag in _VOID:
            return
        element = _Element(tag, attributes, len(self._words), self._line)
        self._open.append(element)
        self._scopes[-1][tag] += 1
        if tag in _SCOPES:
            self._scopes.append(Counter())
        is_read_already = tag == "math" and "alttext" in attributes
        if self._unread is None and (tag in _NOISE or is_read_already or _is_hidden(tag, attributes)):
            self._unread = element

    def handle_endtag(self, tag: str) -> None:
        # Browsers treat </p> without a paragraph as an empty one, which ends the line.
        if tag == "p" and not self._scopes[-1]["p"]:
            self._break()
            return
        # An end tag ends nothing outside its table cell, as in browsers.
        in_reach = self._scopes[-1][tag] > 0 or (tag in _SCOPES and any(scope[tag] for scope in self._scopes))
        while in_reach and self._end_top() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._unread is not None:
            self._unread_chars += len("".join(data.split()))
        elif self._is_verbatim():
            for number, line in enumerate(data.split("\n")):
                if number:
                    self._break(verbatim=True)
                self._words.append(line)
        else:
            self._add(data)

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Read the text of ``<![CDATA[`` and skip Word's ``<![if ...]>``, at which the parser would stop."""
        if not self.rawdata.startswith("<![CDATA[", i):
            return self.parse_bogus_comment(i)
        end = self.rawdata.find("]]>", i)
        if end < 0:
            return -1
        self.handle_data(self.rawdata[i + len("<![CDATA[") : end])
        return end + 3

    # Lines and words.

    def _add(self, words: str) -> None:
        if not words:
            return
        if self._words and self._crossed and _is_apart(self._words[-1], words, self._crossed):
            self._words.append(" ")
        self._crossed = []
        self._words.append(words)

    def _break(self, verbatim: bool = False) -> None:
        """End the line. An empty line is dropped."""
        # The number of a list item waits for the item's first words.
        if self._label and self._words == [self._label]:
            return
        text = "".join(self._words).translate(_INVISIBLE)
        line = text.rstrip() if verbatim else " ".join(text.split())
        if line:
            self.lines.append(line)
        self._words = []
        self._crossed = []
        self._line += 1

    def _is_verbatim(self) -> bool:
        return bool(self._scopes[-1]["pre"] or self._scopes[-1]["textarea"])

    # Elements.

    def _end_what_ends_before(self, tag: str) -> None:
        if tag in _TABLE_PARTS and self._tables:
            around = _tags("tr table") if tag in ("td", "th") else _tags("table")
            while self._open[-1].tag not in around:
                self._end_top()
            return
        scope = self._scopes[-1]
        for ended in _ENDS.get(tag, ()):
            while scope[ended]:
                self._end_top()

    def _begin(self, tag: str, attributes: Attributes) -> None:
        if self._open and self._open[-1].tag in _FORMULA:
            self._part_of_formula(self._open[-1])
        self._crossed.append(tag)
        if tag in _BLOCKS:
            self._break(self._is_verbatim())
        if tag in _AROUND:
            self._add(_AROUND[tag][0])
        elif tag == "img" or (tag == "input" and attributes.get("type") == "image"):
            alternative = attributes.get("alt", "").strip()
            if alternative:
                self._add(f"[image: {alternative}]")
        elif tag == "input":
            self._add(_input_text(attributes))
        elif tag == "option":
            self._add("[x] " if "selected" in attributes else "[ ] ")
        elif tag == "math" and "alttext" in attributes:
            self._add(attributes["alttext"])
        elif tag == "iframe" and "srcdoc" in attributes and self._frames:
            self._inner_page(attributes["srcdoc"])
        elif tag in ("ol", "ul", "menu", "dir"):
            self._numbers.append(_number(attributes.get("start"), 1) if tag == "ol" else None)
        elif tag == "li":
            self._number_item(attributes)
        elif tag == "table":
            self._tables.append(_Table())
        elif tag == "tr" and self._tables:
            self.lines += self._tables[-1].end_row()
        elif tag in ("td", "th") and self._tables:
            self._outside.append((self.lines, self._has_table))
            self.lines = []
            self._has_table = False

    def _end_top(self) -> str:
        """End the innermost element and return its tag."""
        element = self._open.pop()
        tag = element.tag
        if tag in _SCOPES:
            self._scopes.pop()
        self._scopes[-1][tag] -= 1
        if self._unread is None:
            self._end(element)
        elif self._unread is element:
            self._unread = None
            is_text = bool(self._unread_chars) and _is_hidden(tag, element.attributes)
            self.hidden += is_text
            self.hidden_chars += self._unread_chars * is_text
            self._unread_chars = 0
            self._end(element)
        return tag

    def _end(self, element: _Element) -> None:
        tag = element.tag
        if tag == "li":
            self._label = ""
        if tag in _BLOCKS:
            self._break(self._is_verbatim() or tag in ("pre", "textarea"))
        if tag in _RAISED and element.line == self._line and self._scopes[-1][tag] < NESTED_RAISED:
            self._raise(element)
        elif tag in _AROUND:
            self._words.append(_AROUND[tag][1])
        elif tag == "mrow" and element.children > 1 and element.line == self._line:
            self._words.insert(element.first_word, "(")
            self._words.append(")")
        elif tag in ("ol", "ul", "menu", "dir") and self._numbers:
            self._numbers.pop()
        elif tag == "table" and self._tables:
            self.lines += self._tables.pop().end_row()
            self._has_table = True
        elif tag in ("td", "th") and self._outside:
            self._end_cell(element)
        self._crossed.append(f"/{tag}")

    def _end_cell(self, element: _Element) -> None:
        rows = min(MAX_SPAN, max(1, _number(element.attributes.get("rowspan"), 1)))
        columns = min(MAX_SPAN, max(1, _number(element.attributes.get("colspan"), 1)))
        self._tables[-1].cells.append(_Cell(self.lines, rows, columns, self._has_table))
        self.lines, self._has_table = self._outside.pop()

    def _raise(self, element: _Element) -> None:
        """Mark a superscript or subscript: ``10<sup>6</sup>`` becomes ``10^6``.

        A group of several words gets brackets: ``x<sup>n + 1</sup>`` becomes ``x^(n + 1)``.
        """
        raised = " ".join("".join(self._words[element.first_word :]).split())
        if not raised:
            return
        if re.search(r"\s", raised):
            raised = f"({raised})"
        self._words[element.first_word :] = [f"{_RAISED[element.tag]}{raised}"]

    def _part_of_formula(self, parent: _Element) -> None:
        """Put a sign, or a space, between the parts of a formula: ``<mfrac>1 2</mfrac>`` is ``1/2``."""
        if parent.children:
            signs = _BETWEEN.get(parent.tag, " ")
            self._words.append(signs[min(parent.children, len(signs)) - 1])
        parent.children += 1

    def _number_item(self, attributes: Attributes) -> None:
        number = self._numbers[-1] if self._numbers else None
        if number is None:
            return
        number = _number(attributes.get("value"), number)
        ordered = next(element for element in reversed(self._open) if element.tag == "ol")
        self._label = f"{_list_label(number, ordered.attributes.get('type', '1'))}. "
        self._add(self._label)
        self._numbers[-1] = number + 1

    def _inner_page(self, page: str) -> None:
        self._break()
        inner = _PageReader(self._frames - 1)
        inner.read(page)
        self.lines += inner.lines
        self.hidden += inner.hidden
        self.hidden_chars += inner.hidden_chars


def _is_hidden(tag: str, attributes: Attributes) -> bool:
    if tag in ("html", "body"):  # hidden until a script has run, on some pages
        return False
    return "hidden" in attributes or bool(_IS_HIDING.search(attributes.get("style", "")))


def _is_apart(before: str, after: str, crossed: list[str]) -> bool:
    """Return whether the tags between two texts separate them although no space does."""
    last = before[-1:]
    first = after[0]
    if any(tag.strip("/") in _ALWAYS_APART for tag in crossed):
        return not last.isspace() and (first.isalnum() or first == "[")
    if not (last.isalnum() and first.isalnum()):
        return False
    begins = [tag for tag in crossed if not tag.startswith("/")]
    ends = [tag for tag in crossed if tag.startswith("/")]
    if not (begins and ends):
        return False
    is_new_word = last.isdigit() or first.isdigit() or (last.islower() and first.isupper())
    return is_new_word or ("a" in begins and "/a" in ends)


def _input_text(attributes: Attributes) -> str:
    kind = attributes.get("type", "text").lower()
    if kind in ("checkbox", "radio"):
        return "[x] " if "checked" in attributes else "[ ] "
    if kind in _NO_VALUE:
        return ""
    return attributes.get("value", "")


def _number(text: str | None, otherwise: int) -> int:
    if text and re.fullmatch(r"\s*-?[0-9]{1,9}\s*", text):
        return int(text)
    return otherwise


def _list_label(number: int, kind: str) -> str:
    """Return ``number`` as a list of the HTML ``type`` counts: 1, a, A, i or I."""
    if kind in ("a", "A") and 1 <= number <= 26:
        return chr(ord(kind) + number - 1)
    if kind in ("i", "I") and 1 <= number < 4000:
        roman = roman_number(number)
        return roman if kind == "I" else roman.lower()
    return str(number)


def roman_number(number: int) -> str:
    values = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
    letters = ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I")
    text = ""
    for value, letter in zip(values, letters, strict=True):
        count, number = divmod(number, value)
        text += letter * count
    return text
