"""Small documents of many formats, as bytes. Each reproduces what one public report describes and nothing else."""

import io
import zipfile
from collections.abc import Mapping

FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
PAGE = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] "
FONTS = b"/Resources << /Font << /F1 5 0 R >> >> >>"


def archive(files: Mapping[str, str | bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in files.items():
            written.writestr(name, content, zipfile.ZIP_STORED if name == "mimetype" else None)
    return data.getvalue()


# PDF.


def pdf(*objects: bytes) -> bytes:
    """Return a PDF of these objects, numbered from 1. The first is the catalogue, the second the list of pages."""
    data = b"%PDF-1.7\n"
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    data_end = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    return data + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (size, data_end)


def stream(data: bytes, extra: bytes = b"") -> bytes:
    return b"<< /Length %d %s>>\nstream\n%s\nendstream" % (len(data), extra, data)


def words(text: bytes) -> bytes:
    return stream(b"BT /F1 12 Tf 10 200 Td (%s) Tj ET" % text)


def one_page(*objects: bytes, page: bytes = b"", catalog: bytes = b"", content: bytes = b"Body") -> bytes:
    """Return a PDF with one page that prints ``content``.

    ``objects`` are numbered from 6; ``page`` may refer to them.
    """
    return pdf(
        b"<< /Type /Catalog /Pages 2 0 R " + catalog + b">>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        PAGE + page + b"/Contents 4 0 R " + FONTS,
        words(content),
        FONT,
        *objects,
    )


def form(*fields: bytes, kids: bytes = b"6 0 R") -> bytes:
    return one_page(*fields, page=b"/Annots [" + kids + b"] ", catalog=b"/AcroForm << /Fields [6 0 R] >> ")


def two_pages(second: bytes, kids: bytes = b"3 0 R 4 0 R", resources: bytes = b"") -> bytes:
    """Return a PDF with a page that prints ``Page one``, and a page with the content ``second``."""
    fonts = b"/Resources << /Font << /F1 7 0 R >> " + resources + b">> >>"
    pages = [PAGE + b"/Contents %d 0 R " % number + fonts for number in (5, 6)]
    image = b"/Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8 "
    listed = b"<< /Type /Pages /Kids [%s] /Count 2 >>" % kids
    return pdf(CATALOG, listed, *pages, words(b"Page one"), second, FONT, stream(b"\0", image))


def glyphs(text: bytes, meaning: bytes) -> bytes:
    """Return a PDF with a page whose font maps the letters ``A`` and ``B`` to the characters in ``meaning``."""
    lines = b"1 beginbfrange <61> <7A> <0061> endbfrange\n" + meaning
    mapping = b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap\n1 begincodespacerange <00> <FF> "
    mapping += b"endcodespacerange\n%s\nendcmap end end" % lines
    font = (
        b"<< /Type /Font /Subtype /TrueType /BaseFont /X /FirstChar 32 /LastChar 126 /Widths [%s] /ToUnicode 6 0 R >>"
    )
    return pdf(
        CATALOG,
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        PAGE + b"/Contents 4 0 R " + FONTS,
        words(text),
        font % (b"500 " * 95),
        stream(mapping),
    )


# Word.

WORD = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
)
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def docx(body: str, main: str = "document", **parts: str) -> bytes:
    """Return a Word document whose text is in the file ``main``.

    ``parts`` are footnotes, comments, header1 and others, by the name of their file.
    """
    types = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    kinds = {name: name.rstrip("0123456789") for name in parts}
    overrides = "".join(
        f'<Override PartName="/word/{name}.xml" ContentType="{types}.{kind}+xml"/>' for name, kind in kinds.items()
    )
    relations = "".join(
        f'<Relationship Id="r{name}" Type="{_OFFICE}/{kind}" Target="{name}.xml"/>' for name, kind in kinds.items()
    )
    text = f'<Override PartName="/word/{main}.xml" ContentType="{types}.document.main+xml"/>'
    defaults = (
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/>'
    )
    office = f'<Relationship Id="r1" Type="{_OFFICE}/officeDocument" Target="/word/{main}.xml"/>'
    files = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">{defaults}{text}{overrides}</Types>',
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{office}</Relationships>',
        f"word/{main}.xml": f"<w:document {WORD}><w:body>{body}<w:sectPr/></w:body></w:document>",
        f"word/_rels/{main}.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{relations}</Relationships>',
    }
    return archive(files | {f"word/{name}.xml": content for name, content in parts.items()})


# Spreadsheets and books.


def xlsx(cells: str, hidden: str | None = None) -> bytes:
    """Return a workbook with the sheet ``Rent`` and, if ``hidden`` is set, a hidden sheet ``Secret`` with that text."""
    main = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    sheets = '<sheet name="Rent" sheetId="1" r:id="r1"/>'
    contents = {"xl/worksheets/sheet1.xml": f"<worksheet {main}><sheetData>{cells}</sheetData></worksheet>"}
    if hidden:
        sheets += '<sheet name="Secret" sheetId="2" state="hidden" r:id="r2"/>'
        row = f'<row r="1"><c r="A1" t="inlineStr"><is><t>{hidden}</t></is></c></row>'
        contents["xl/worksheets/sheet2.xml"] = f"<worksheet {main}><sheetData>{row}</sheetData></worksheet>"
    relations = "".join(
        f'<Relationship Id="r{n}" Type="{_OFFICE}/worksheet" Target="worksheets/sheet{n}.xml"/>'
        for n in range(1, len(contents) + 1)
    )
    office = f'<Relationship Id="r1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/>'
    styles = f'<styleSheet {main}><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs></styleSheet>'
    book = f'<workbook {main} xmlns:r="{_OFFICE}"><sheets>{sheets}</sheets></workbook>'
    files = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{office}</Relationships>',
        "xl/workbook.xml": book,
        "xl/styles.xml": styles,
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{relations}</Relationships>',
    }
    return archive(files | contents)


def epub(chapters: Mapping[str, str | bytes], spine: list[str], **more: str) -> bytes:
    """Return a book whose package lists all chapters, and whose spine lists those in ``spine``, in that order."""
    items = "".join(
        f'<item id="i{number}" href="{href}" media-type="application/xhtml+xml"/>'
        for number, href in enumerate(chapters)
    )
    ids = {href: f"i{number}" for number, href in enumerate(chapters)}
    refs = "".join(f'<itemref idref="{ids.get(href, href)}"/>' for href in spine)
    package = (
        f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{refs}</spine></package>'
    )
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OPS/book.opf"/></rootfiles></container>'
    )
    files = {"mimetype": "application/epub+zip", "META-INF/container.xml": container, "OPS/book.opf": package}
    texts = {f"OPS/{href.replace('%20', ' ')}": text for href, text in chapters.items() if text}
    return archive(files | texts | more)
