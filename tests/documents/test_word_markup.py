"""A Word document is read with the text that mammoth would leave out, or the loss is in a note.

mwilliamson/python-mammoth#17 asks for equations; its reader drops each element that it does not know.
"""

import io
import zipfile

import document_files as files
import pytest
from document_files import docx, paragraph

from memagent_lib.documents.converters import Source, convert


def converted(data: bytes) -> tuple[str, list[str]]:
    found = convert(Source.memory("a.docx", data))
    return "".join(piece.text for piece in found.pieces), list(found.notes)


def line(content: str) -> str:
    return f"<w:p>{content}</w:p>"


def run(text: str, more: str = "") -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t>{more}</w:r>'


RUBY = (
    f"<w:r><w:ruby><w:rubyPr/><w:rt>{run('かんじ')}</w:rt><w:rubyBase>{run('漢字')}</w:rubyBase></w:ruby></w:r>"
    f"{run('です')}"
)
CHOSEN = (
    '<w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:ddList>{}<w:listEntry w:val="Basic"/>'
    '<w:listEntry w:val="Gold"/></w:ddList></w:ffData></w:fldChar></w:r>'
    "<w:r><w:instrText> FORMDROPDOWN </w:instrText></w:r>"
    '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (f'{run("Figure ")}<w:fldSimple w:instr=" SEQ ">{run("1")}</w:fldSimple>{run(": Rent")}', "Figure 1: Rent"),
        (f'{run("A ")}<w:bdo w:val="rtl">{run("hidden")}</w:bdo>{run(" end")}', "A hidden end"),
        (f'{run("A ")}<w:dir w:val="rtl">{run("hidden")}</w:dir>{run(" end")}', "A hidden end"),
        (f"{run('A ')}<w:ofTomorrow>{run('new')}</w:ofTomorrow>{run(' end')}", "A new end"),
        (RUBY, "漢字(かんじ)です"),
        (run("Left", "<w:ptab/><w:t>Right</w:t>"), "Left Right"),
        (run("a", "<w:cr/><w:t>b</w:t>"), "a\nb"),
        (run("a", "<w:noBreakHyphen/><w:t>b</w:t><w:softHyphen/><w:t>c</w:t>"), "a\u2011bc"),
        (run("Plan: ") + CHOSEN.format('<w:result w:val="1"/>'), "Plan: Gold"),
        (run("Plan: ") + CHOSEN.format(""), "Plan: Basic"),
        (f"<w:moveFrom>{run('before')}</w:moveFrom><w:moveTo>{run('after')}</w:moveTo>", "after"),
        (f"<w:customXml>{run('a')}</w:customXml><w:sdt><w:sdtContent>{run('b')}</w:sdtContent></w:sdt>", "ab"),
        (run("Body", '<w:pict><v:shape><v:textpath string="DRAFT"/></v:shape></w:pict>'), "Body\nDRAFT"),
    ],
)  # fmt: skip
def test_text_in_elements_that_mammoth_drops_is_read(content, text):
    assert converted(docx(line(content))) == (f"{text}\n", [])


@pytest.mark.parametrize(
    ("kind", "text"), [("footnote", "Due^[1]\n1. see 1\n"), ("comment", "Due^[1]\nComment [1]\nsee 1\n")]
)
def test_notes_and_comments_of_word_are_rewritten_too(kind, text):
    note = line(f"{run('see ')}<w:fldSimple>{run('1')}</w:fldSimple>")
    part = f"<w:{kind}s {files.WORD}><w:{kind} w:id='2'>{note}</w:{kind}></w:{kind}s>"
    body = line(run("Due") + f'<w:r><w:{kind}Reference w:id="2"/></w:r>')
    assert converted(docx(body, **{f"{kind}s": part})) == (text, [])


def maths(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


def brackets(text: str, signs: str = "") -> str:
    return f"<m:d><m:dPr>{signs}</m:dPr><m:e>{maths(text)}</m:e></m:d>"


ROW = "<m:mr><m:e>{}</m:e><m:e>{}</m:e></m:mr>"


@pytest.mark.parametrize(
    ("equation", "text"),
    [
        (maths("x=1"), "x=1"),
        (f"{maths('f')}{brackets('x')}", "f(x)"),
        (brackets("a", '<m:begChr m:val="["/><m:endChr m:val=""/>'), "[a"),
        (f"<m:sSup><m:e>{brackets('a+b')}</m:e><m:sup>{maths('2')}</m:sup></m:sSup>", "(a+b)^2"),
        (
            f'<m:nary><m:naryPr><m:chr m:val="∑"/></m:naryPr><m:sub>{maths("i=1")}</m:sub><m:sup>{maths("n")}</m:sup>'
            f"<m:e>{maths('i')}</m:e></m:nary>",
            "∑_(i=1)^n i",
        ),
        (f"<m:rad><m:deg/><m:e>{maths('x')}</m:e></m:rad>", "√(x)"),
        (f"<m:rad><m:deg>{maths('3')}</m:deg><m:e>{maths('x')}</m:e></m:rad>", "x^(1/3)"),
        (f"<m:m>{ROW.format(maths('1'), maths('2'))}{ROW.format(maths('3'), maths('4'))}</m:m>", "1, 2; 3, 4"),
    ],
)
def test_an_equation_on_its_own_line_is_text(equation, text):
    body = line(f"<m:oMathPara><m:oMath>{equation}</m:oMath></m:oMathPara>")
    assert converted(docx(body)) == (f"{text}\n", [])


HEADER = f"<w:hdr {files.WORD}>{{}}</w:hdr>"
CHOICE = '<w:r><mc:AlternateContent><mc:Choice Requires="wps">{}</mc:Choice>{}</mc:AlternateContent></w:r>'
OLDER = (
    "<mc:Fallback><w:pict><v:{0}><v:textbox><w:txbxContent>{1}</w:txbxContent></v:textbox></v:{0}></w:pict>"
    "</mc:Fallback>"
)


def drawn(content: str) -> str:
    """A text box in the newer form."""
    box = f"<wps:wsp><wps:txbx><w:txbxContent>{content}</w:txbxContent></wps:txbx></wps:wsp>"
    inline = f"<wp:inline><a:graphic><a:graphicData>{box}</a:graphicData></a:graphic></wp:inline>"
    return f"<w:drawing>{inline}</w:drawing>"


IN_BOX = paragraph("In the box")


def test_of_two_forms_without_text_the_older_one_is_read():
    forms = CHOICE.format("<w:ofTomorrow/>", "<mc:Fallback><w:noBreakHyphen/></mc:Fallback>")
    assert converted(docx(line(run("a") + forms + run("b")))) == ("a\u2011b\n", [])


# langgenius/dify#42414, docling-project/docling#1529, yfedoseev/office_oxide#140; #195 (a header longer than the body)
@pytest.mark.parametrize(
    "box",
    [
        CHOICE.format(drawn(IN_BOX), OLDER.format("shape", IN_BOX)),
        CHOICE.format(drawn(IN_BOX), OLDER.format("oval", IN_BOX)),
        CHOICE.format(drawn(IN_BOX), "<mc:Fallback/>"),
        CHOICE.format(drawn(IN_BOX), ""),
        f"<w:r>{drawn(IN_BOX)}</w:r>",
    ],
)
def test_a_text_box_in_any_form_is_read_once(box):
    content = line(f"{run('Before')}{box}{run(' after')}")
    assert converted(docx(content)) == ("Before after\nIn the box\n", [])
    assert converted(docx(paragraph("Body"), header1=HEADER.format(content))) == (
        "Before after\nIn the box\nBody\n",
        [],
    )


def test_a_header_is_read_with_its_tabs_and_hyphens():
    # An insertion moved here and a stamp across the page are text as well.
    parts = "<w:ptab/><w:t>Contract2024</w:t><w:noBreakHyphen/><w:t>01</w:t><w:cr/><w:t>Rent</w:t>"
    moved = f"<w:moveFrom>{run(' old')}</w:moveFrom><w:moveTo>{run(' new')}</w:moveTo>"
    stamp = '<w:r><w:pict><v:shape><v:textpath string="DRAFT"/></v:shape></w:pict></w:r>'
    header = HEADER.format(line(run("Acme", parts) + moved + stamp))
    assert converted(docx(paragraph("Body"), header1=header)) == ("Acme Contract2024-01 Rent new DRAFT\nBody\n", [])


@pytest.mark.parametrize(
    ("font", "code", "text"),
    [
        ("Segoe UI Symbol", "2610", "a☐b\n"),
        ("Segoe UI Emoji", "1F60A", "a😊b\n"),
        ("Arial", "00A7", "a§b\n"),
        ("Symbol", "0061", "aαb\n"),
        ("Wingdings", "F0FE", "a🗹b\n"),
    ],
)
def test_a_symbol_is_its_character(font, code, text):
    symbol = f'<w:r><w:sym w:font="{font}" w:char="{code}"/></w:r>'
    assert converted(docx(line(run("a") + symbol + run("b")))) == (text, [])


CHART = "http://schemas.openxmlformats.org/drawingml/2006/chart"


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ('<w:p><w:r><w:sym w:font="Arial" w:char="F0B7"/></w:r></w:p>', "1 unknown symbol left out from a.docx"),
        ('<w:altChunk r:id="r9"/>', "1 embedded document left out from a.docx"),
        (
            f"<w:p><w:r><w:drawing><wp:inline><a:graphic><a:graphicData><c:chart xmlns:c='{CHART}'/></a:graphicData>"
            "</a:graphic></wp:inline></w:drawing></w:r></w:p>",
            "1 chart left out from a.docx",
        ),
    ],
)
def test_what_word_shows_and_no_text_states_is_noted(content, note):
    assert converted(docx(paragraph("Body") + content)) == ("Body\n", [note])


def test_hidden_text_of_word_is_counted_once_and_everywhere():
    hidden = line("<w:r><w:rPr><w:vanish/></w:rPr><w:t>secret</w:t></w:r>")
    shown = line('<w:r><w:rPr><w:vanish w:val="0"/></w:rPr><w:t>seen</w:t></w:r>')
    field = line("<w:r><w:rPr><w:vanish/></w:rPr><w:instrText> XE </w:instrText></w:r>")
    box = CHOICE.format(drawn(hidden + shown), OLDER.format("shape", hidden + shown))
    data = docx(line(box) + field, header1=HEADER.format(hidden))
    assert converted(data) == ("seen\n", ["2 hidden passages left out from a.docx"])


def test_paragraphs_of_a_new_text_box_are_numbered():
    level = '<w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl>'
    lists = f'<w:abstractNum w:abstractNumId="0">{level}</w:abstractNum>'
    used = '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
    item = (
        '<w:p><w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr></w:pPr><w:r><w:t>{}</w:t></w:r></w:p>'
    )
    body = line(f"<w:r>{drawn(item.format('Rent'))}</w:r>") + item.format("Notice")
    data = docx(body, numbering=f"<w:numbering {files.WORD}>{lists}{used}</w:numbering>")
    assert converted(data) == ("1. Rent\n2. Notice\n", [])


@pytest.mark.parametrize(
    "changes",
    [
        # The strict form of the format, and prefixes that another program chose.
        {
            b"http://schemas.openxmlformats.org/wordprocessingml/2006/main": b"http://purl.oclc.org/ooxml/wordprocessingml/main",
            b"http://schemas.openxmlformats.org/officeDocument/2006/math": b"http://purl.oclc.org/ooxml/officeDocument/math",
        },
        {b"<w:": b"<ns0:", b"</w:": b"</ns0:", b"xmlns:w=": b"xmlns:ns0=", b"m:": b"ns1:", b"xmlns:m=": b"xmlns:ns1="},
    ],
)  # fmt: skip
def test_the_strict_form_and_other_prefixes_are_read_alike(changes):
    hidden = "<w:r><w:rPr><w:vanish/></w:rPr><w:t>secret</w:t></w:r>"
    equation = f"<m:oMath>{maths('x')}</m:oMath>"
    with zipfile.ZipFile(io.BytesIO(docx(line(f"{run('A ')}<w:dir>{run('b')}</w:dir>{equation}{hidden}")))) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    for old, new in changes.items():
        parts["word/document.xml"] = parts["word/document.xml"].replace(old, new)
    assert converted(files.archive(parts)) == ("A b x\n", ["1 hidden passage left out from a.docx"])
