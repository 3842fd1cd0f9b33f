"""The numbers that Word displays before paragraphs stand in the text, as mwilliamson/python-mammoth#27 and #59 ask."""

import document_files as files
import pytest
from document_files import docx

from memagent_lib.documents.converters import Source, convert

LEVEL = '<w:lvl w:ilvl="{}"><w:start w:val="{}"/><w:numFmt w:val="{}"/>{}<w:lvlText w:val="{}"/></w:lvl>'


def numbering(*levels: str, more: str = "") -> str:
    lists = f'<w:abstractNum w:abstractNumId="0">{"".join(levels)}</w:abstractNum>'
    used = f'<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>{more}'
    return f"<w:numbering {files.WORD}>{lists}{used}</w:numbering>"


def item(text: str, level: int = 0, num: int = 1) -> str:
    listed = f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{num}"/></w:numPr>'
    return f"<w:p><w:pPr>{listed}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def plain(text: str) -> str:
    return files.paragraph(text)


def converted(body: str, **parts: str) -> tuple[list[str], list[str]]:
    found = convert(Source.memory("a.docx", docx(body, **parts)))
    return [line for piece in found.pieces for line in piece.text.split("\n") if line], list(found.notes)


CLAUSES = numbering(
    LEVEL.format(0, 1, "decimal", "", "%1."),
    LEVEL.format(1, 1, "decimal", "", "%1.%2"),
    LEVEL.format(2, 1, "lowerLetter", "", "(%3)"),
)


def test_paragraphs_between_clauses_do_not_restart_the_count():
    body = item("Rent") + plain("It is due monthly.") + item("Notice") + item("Either party", 1) + item("in writing", 2)
    body += item("by post", 2) + item("The tenant", 1) + item("in time", 2) + item("Law")
    lines = ["1. Rent", "It is due monthly.", "2. Notice", "2.1 Either party", "(a) in writing", "(b) by post"]
    lines += ["2.2 The tenant", "(a) in time", "3. Law"]
    assert converted(body, numbering=CLAUSES) == (lines, [])


@pytest.mark.parametrize(
    ("kind", "start", "label"),
    [
        ("decimal", 7, "7) A"),
        ("decimalZero", 7, "07) A"),
        ("upperRoman", 4, "IV) A"),
        ("lowerRoman", 9, "ix) A"),
        ("upperLetter", 27, "AA) A"),
        ("none", 1, ") A"),
    ],
)
def test_a_number_has_the_format_and_the_start_of_its_level(kind, start, label):
    assert converted(item("A"), numbering=numbering(LEVEL.format(0, start, kind, "", "%1)"))) == ([label], [])


def test_bullets_are_dashes():
    bullets = numbering(LEVEL.format(0, 1, "bullet", "", "\uf0b7"))
    assert converted(item("salt") + item("bread"), numbering=bullets) == (["- salt", "- bread"], [])


def test_a_number_of_an_unknown_format_is_left_out_and_counted():
    odd = numbering(LEVEL.format(0, 1, "aiueo", "", "%1."))
    assert converted(item("A") + item("B"), numbering=odd) == (
        ["A", "B"],
        ["2 paragraph numbers in an unknown format left out from a.docx"],
    )


def test_headings_are_numbered_by_their_style():
    level = LEVEL.format(0, 1, "decimal", '<w:pStyle w:val="Heading1"/>', "Article %1:")
    style = '<w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr>'
    styles = f'<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/>{style}</w:style>'
    heading = '<w:p><w:pPr><w:pStyle w:val="Heading1"/>{}</w:pPr><w:r><w:t>{}</w:t></w:r></w:p>'
    off = '<w:numPr><w:numId w:val="0"/></w:numPr>'
    body = heading.format("", "Rent") + heading.format(off, "Annex") + heading.format("", "Notice")
    lines, notes = converted(body, numbering=numbering(level), styles=f"<w:styles {files.WORD}>{styles}</w:styles>")
    assert ([line.lstrip("# ") for line in lines], notes) == (["Article 1: Rent", "Annex", "Article 2: Notice"], [])


def test_a_list_may_begin_anew_or_go_on_with_another_count():
    override = '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="1"/></w:lvlOverride>'
    more = f'<w:num w:numId="2"><w:abstractNumId w:val="0"/>{override}</w:num>'
    more += '<w:num w:numId="3"><w:abstractNumId w:val="0"/></w:num>'
    level = LEVEL.format(0, 1, "decimal", "", "%1.")
    body = item("A") + item("B") + item("C", num=2) + item("D", num=2) + item("E", num=3)
    assert converted(body, numbering=numbering(level, more=more))[0] == ["1. A", "2. B", "1. C", "2. D", "3. E"]
