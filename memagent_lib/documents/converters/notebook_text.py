"""Convert a Jupyter notebook to text: its cells, and those outputs that are text."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from memagent_lib.documents.converters.converted import Converted, ConverterOptions, Piece, Source, Unreadable, counted
from memagent_lib.documents.converters.html_text import html_text
from memagent_lib.documents.converters.plain_text import whole_text

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def notebook_text(source: Source, options: ConverterOptions) -> Converted:
    """Convert a notebook of any version. Code is fenced as in Markdown; pictures are counted as left out."""
    import nbformat

    # Notebooks are UTF-8 by their specification, whatever the text files beside them are.
    text, notes = whole_text(source, ConverterOptions(), options.encoding)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cells without an id, which nearly all notebooks have
            pieces, silent = _cells(nbformat.reads(text, as_version=4).cells)
    except Exception as broken:  # nbformat checks little, so a malformed cell may raise any error
        raise Unreadable(f"no notebook that nbformat can read ({str(broken)[:120]}); save it again") from broken
    if silent:
        notes.append(f"{counted(silent, 'output')} of {source.name} left out (pictures, or no text)")
    return Converted(pieces, notes)


def _cells(cells: Sequence[Any]) -> tuple[list[Piece], int]:
    """Return the text of each cell with its outputs, and how many outputs have no text."""
    pieces = []
    silent = 0
    for number, cell in enumerate(cells, 1):
        outputs = [(output, "".join(_output(output))) for output in cell.get("outputs", [])]
        silent += sum(not text for _, text in outputs)
        text = str(cell.get("source", "")).rstrip()
        if cell.cell_type == "code" and text:
            text = f"```\n{text}\n```"
        parts = [text, *(text.rstrip() for _, text in outputs)]
        whole = "\n".join(part for part in parts if part)
        if whole:
            pieces.append(Piece(f"{whole}\n\n", f"cell {number}"))
    return pieces, silent


def _output(output: Any) -> Iterator[str]:
    kind = output.get("output_type")
    if kind == "stream":
        yield _COLOURS.sub("", str(output.get("text", "")))
    elif kind == "error":
        yield f"{output.get('ename', 'Error')}: {_COLOURS.sub('', str(output.get('evalue', '')))}\n"
    else:
        data = output.get("data", {})
        if "text/html" in data and "<table" in data["text/html"]:
            yield html_text(str(data["text/html"])).text
        elif "text/markdown" in data:
            yield str(data["text/markdown"])
        elif "text/plain" in data and not any(kind.startswith("image/") for kind in data):
            yield _COLOURS.sub("", str(data["text/plain"]))
