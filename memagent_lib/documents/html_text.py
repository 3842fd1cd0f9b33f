"""Convert an HTML page to the text that a person sees: inscriptis lays it out, after some changes to lxml's tree.

A cell that covers several rows is repeated in each; a checked box becomes ``[x]``, a superscript ``^2``, a deletion
``[deleted: 12]``, a formula ``[formula]`` or the text that the page has for it. Style sheets are ignored, so a passage
that only a class hides is read.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lxml.html import HtmlElement

LONG_CELL = 300
"""A table with a longer cell arranges a page, and inscriptis would pad every row to its width."""
MOST_SPAN = 100
_BLOCKS = ["address", "dt", "dd", "option", "summary", "caption", "legend", "label", "details", "fieldset"]
_BLOCKS += ["figcaption", "textarea", "svg", "text"]
_AROUND = {"sup": ("^", ""), "sub": ("_", ""), "rt": ("(", ")")}
_AROUND |= dict.fromkeys(("del", "s"), ("[deleted: ", "]"))
_HIDDEN = "//*[@hidden or contains(translate(@style, ' ', ''), 'display:none')]"


def html_text(page: str, name: str, notes: list[str]) -> str:
    """Return the text of a page. A note says how many hidden passages are left out; instructions may stand in them."""
    import lxml.html
    from inscriptis import Inscriptis
    from inscriptis.css_profiles import STRICT_CSS_PROFILE
    from inscriptis.model.config import ParserConfig
    from inscriptis.model.html_element import HtmlElement

    page = re.sub(r"^\s*<\?xml[^>]*>", "", page.replace("\0", "\ufffd"))
    if not re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL).strip():
        return ""
    tree = lxml.html.fromstring(page, parser=lxml.html.HTMLParser(huge_tree=True))
    hidden = [element for element in tree.xpath(_HIDDEN) if element.text_content().strip()]
    if hidden:
        passages = "1 hidden passage" if len(hidden) == 1 else f"{len(hidden):,} hidden passages"
        notes.append(f"{passages} left out from {name}")
    for element in [*tree.xpath(_HIDDEN), *tree.xpath("//rp | //template")]:
        if element.getparent() is not None:
            element.drop_tree()
    _spell_out(tree)
    for table in tree.xpath("//table"):
        if table.xpath(f".//table | .//td[string-length(.) > {LONG_CELL}]"):
            for part in table.xpath("self::* | (. | *)/tr | (. | *)/tr/*"):
                part.tag = "div"
        elif table.xpath(".//*[@rowspan or @colspan]"):
            _repeat_merged_cells(table)
    css = STRICT_CSS_PROFILE | dict.fromkeys(_BLOCKS, STRICT_CSS_PROFILE["div"])
    css |= {tag: HtmlElement(prefix=before, suffix=after) for tag, (before, after) in _AROUND.items()}
    text = Inscriptis(tree, ParserConfig(css=css, display_images=True, table_cell_separator=" | ")).get_text()
    title = " ".join((tree.findtext(".//title") or "").split())
    lines = (re.sub(r"(?<=\S)[ \t]{2,}", " ", line).rstrip(" \t|") for line in text.splitlines())
    return "".join(f"{line}\n" for line in [title, *lines] if line)


def _spell_out(tree: HtmlElement) -> None:
    """Write as text what inscriptis drops: boxes and inputs, formulas, the first number of a list."""
    for box in tree.xpath("//input[@type='checkbox' or @type='radio']"):
        box.tail = f"{'[ ]' if box.get('checked') is None else '[x]'} {box.tail or ''}"
    for box in tree.xpath("//input[@value]"):
        if box.get("type") not in ("hidden", "password", "checkbox", "radio"):
            box.tail = f" {box.get('value')} {box.tail or ''}"
    for option in tree.xpath("//option"):
        option.text = f"{'[ ]' if option.get('selected') is None else '[x]'} {option.text or ''}"
    for formula in tree.xpath("//math"):
        formula.tail = f"{formula.get('alttext') or '[formula]'}{formula.tail or ''}"
        del formula[:]
        formula.text = None
    for item in tree.xpath("//ol[@start]/li[1]"):
        item.set("value", item.getparent().get("start"))


def _repeat_merged_cells(table: HtmlElement) -> None:
    """Copy a cell that covers several rows into each, because a chunk that begins below it would lack its value."""
    above: dict[int, tuple[int, HtmlElement]] = {}
    for row in table.xpath("tr | */tr"):
        cells = []
        waiting = row.xpath("td | th")
        below = {}
        while waiting or len(cells) in above:
            column = len(cells)
            rows, cell = above[column] if column in above else (_span(waiting[0], "rowspan"), waiting.pop(0))
            cells.append(deepcopy(cell))
            if rows > 1:
                below[column] = (rows - 1, cell)
            if column not in above:
                cells += [cell.makeelement("td") for _ in range(_span(cell, "colspan") - 1)]
        above = below
        row[:] = cells


def _span(cell: HtmlElement, name: str) -> int:
    number = cell.get(name, "1")
    return min(MOST_SPAN, int(number)) if number.isdigit() else 1
