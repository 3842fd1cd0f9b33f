"""Pages, tables and mail of which a part was read as markup: scripts in XHTML, odd line ends, lines like separators."""

import document_files as files
import pytest

from memagent_lib.documents.converters import Source, convert
from memagent_lib.documents.converters.html_text import html_text


def text_of(name: str, data: bytes) -> str:
    return "".join(piece.text for piece in convert(Source.memory(name, data)).pieces)


# Pages.

SCRIPT = '<head><title>One</title><script src="a>b.js" type="x"/></head><body><p>Hello</p>'
LATER = "<script>run()</script>End"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        # pgaskin/kepubify#29: pages were blank
        (f"<html>{SCRIPT}", "One\nHello\n"),
        ("<html><style/><p>Hello", "Hello\n"),
        (f"<?xml version='1.0'?><html>{SCRIPT}{LATER}", "One\nHello\nEnd\n"),
        (f'<html lang="en" xmlns="http://www.w3.org/1999/xhtml">{SCRIPT}{LATER}', "One\nHello\nEnd\n"),
        (f'<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN"><html>{SCRIPT}{LATER}', "One\nHello\nEnd\n"),
        # In HTML, a browser reads on to the end tag.
        (f"<!DOCTYPE html><html>{SCRIPT}{LATER}", "One\nEnd\n"),
        ("<html><script data-x='/>'>run()</script>Hello", "Hello\n"),
        ("<html><p>Hello<script>run()", "Hello\n"),
    ],
)
def test_a_script_without_content_ends_where_it_begins(page, text):
    assert html_text(page) == (text, [])


def test_pages_of_books_and_xhtml_files_are_xml():
    page = f"<html>{SCRIPT}{LATER}"
    assert text_of("page.xhtml", page.encode()) == "One\nHello\nEnd\n"
    assert text_of("a.epub", files.epub({"1.html": page}, ["1.html"])) == "One\nHello\nEnd\n"


@pytest.mark.parametrize("text", ["Grüße", "Grüßen"])
def test_an_encoding_that_cannot_be_right_is_not_believed(text):
    # .NET writes the encoding of a string in memory, UTF-16, into files in UTF-8
    assert text_of("a.xml", f'<?xml version="1.0" encoding="utf-16"?><a>{text}</a>'.encode()) == f"{text}\n"


# Tables.


@pytest.mark.parametrize("character", "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
def test_rows_of_csv_end_at_line_ends_only(character):
    # awslabs/gluonts#920
    table = f"a,b,c\n1,x{character}y,3\n4,{'5' * 50},6\n"
    assert text_of("a.csv", table.encode()) == f"a | b | c\n1 | x y | 3\n4 | {'5' * 50} | 6\n"


def test_odd_characters_do_not_change_the_delimiter():
    table = "".join(f"{number};a" + "\u2028b,c" * (number % 3 + 1) + "\n" for number in range(9))
    assert text_of("a.csv", table.encode()).split("\n")[0] == "0 | a b,c"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_end_alike_across_the_blocks_of_a_file(end):
    rows = [f"{number},{'x' * 19}" for number in range(20_000)]
    lines = text_of("a.csv", end.join(rows).encode()).split("\n")
    assert lines == [*(row.replace(",", " | ") for row in rows), ""]


# Mail.

HEAD = b"From: o@example.org\nSubject: r\nMIME-Version: 1.0\nContent-Type: "


@pytest.mark.parametrize(
    ("kind", "report"),
    [
        # nodemailer/mailparser#288
        (
            b"delivery-status",
            b"Reporting-MTA: dns; example.org\n\nFinal-Recipient: rfc822; odo@example.org\nStatus: 5.1.1\n"
            b"Diagnostic-Code: smtp; 550\n  no such user\n\nFinal-Recipient: rfc822; ada@example.org\n",
        ),
        (b"disposition-notification", b"Final-Recipient: rfc822; odo@example.org\nDisposition: displayed\n"),
    ],
)
def test_a_report_about_mail_is_its_header_lines(kind, report):
    parts = b"--B\nContent-Type: text/plain\n\nSee below\n--B\nContent-Type: message/%s\n\n%s\n--B--\n" % (kind, report)
    text = text_of("a.eml", HEAD + b"multipart/report; boundary=B\n\n" + parts)
    lines = report.decode().replace("\n  ", " ").replace("\n\n", "\n")
    assert text == f"From: o@example.org\nSubject: r\n\nSee below\n{lines}"


def test_mail_within_mail_and_xhtml_are_known_by_their_types():
    inner = b"--B\nContent-Type: message/global\n\nSubject: inner\nContent-Type: text/xhtml\n\n%s\n--B--\n"
    data = HEAD + b"multipart/mixed; boundary=B\n\n" + inner % f"<html>{SCRIPT}{LATER}".encode()
    pieces = list(convert(Source.memory("a.eml", data)).pieces)[1:]
    assert pieces == [("Subject: inner\n\n", "forwarded mail"), ("One\nHello\nEnd\n", "forwarded mail")]


MAIL = "Return-Path: <a@b>\nX-Gm3: 1\nMessage-ID: <1>\nSubject: r\n\nThe rent is 1200\n\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "separator",
    [
        # mozilla/releases-comm-central and eneam/mboxviewer#9 list forms that occur
        "From MAILER-DAEMON Fri Jul  8 12:08:34 2011",
        "From user@host Sat Jan  3 01:05:34 1996",
        "From - Mon Jul 11 12:08:34 2011",
        "From 1234567890123@xxx Mon Jan 01 00:00:00 +0000 2020",
        "From jwz  Fri, Jul 01 09:13:09 1994",
        "From jwz  Fri Jul  1 09:13:09 1994 (+0700)",
        "From jwz Fri Jul  1 09:13:09 PST 1994",
        "From foo!bar Thu Jan  1 00:00 GMT 1998 remote from x",
        "From Odo Blau <odo@example.org>  Wed Jan  2 16:34:35 2019",
        "From odo at example.org  Fri Jul  1 09:13:09 2011",
        "From ???@??? Mon Mar 02 10:00:00 2026",
        "From  Mon Mar  2 10:00:00 2026",
        "From odo@example.org Mon, 2 Mar 2026 10:00:00 +0100",
        "From odo@example.org 2026-03-02T10:00:00+00:00",
        "From odo@example.org lun. mars 02 10:00:00 2026",
        "From - 2026-03-02 10:00:00",
        # dcarrero/mboxshell#16: nothing but the word
        "From ",
        "From -",
        "From odo@example.org",
    ],
)
def test_a_separator_of_any_program_begins_a_mail(separator, end):
    box = (f"{separator}\n{MAIL}" * 3).replace("\n", end)
    pieces = list(convert(Source.memory("a.mbox", box.encode())).pieces)
    assert {piece.where for piece in pieces} == {"mail 1", "mail 2", "mail 3"}
    assert "".join(piece.text for piece in pieces) == "Subject: r\n\nThe rent is 1200\n" * 3


@pytest.mark.parametrize(
    "line",
    [
        # robertklep/node-mbox#12
        "From now on the rent is 1200.",
        "From Monday on, the shop opens at 10:00.",
        "From 10:00 on Mon 5 May 2020 it is closed.",
        "From odo@example.org I heard it in 2020.",
        "From Odo",
    ],
)
def test_lines_of_a_body_that_begin_with_from_are_read(line):
    body = f"{line}\nNote: it is due on the first.\n"
    box = f"From a@b Mon Mar  2 10:00:00 2026\n{MAIL}{body}\nFrom a@b Mon Mar  2 10:00:00 2026\n{MAIL}"
    pieces = list(convert(Source.memory("a.mbox", box.encode())).pieces)
    first = "".join(piece.text for piece in pieces if piece.where == "mail 1")
    assert first == f"Subject: r\n\nThe rent is 1200\n\n{body}"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_mail_that_an_editor_has_saved_keeps_its_headers(encoding):
    # Python's parser takes a mark before the first header for a body
    body = "Content-Transfer-Encoding: base64\n\nR3LDvMOfZQ==\n"
    for name, start in (("a.eml", ""), ("a.mbox", "From a@b Mon Mar  2 10:00:00 2026\n")):
        data = f"{start}From: Odo\nSubject: Größe\n{body}".encode(encoding)
        assert text_of(name, data) == "From: Odo\nSubject: Größe\n\nGrüße\n"


def test_a_header_that_is_repeated_is_read_whole():
    mail = "From: Odo\nTo: Ann\nTo: Ben\nSubject: r\nSubject: r\n\nHello\n"
    assert text_of("a.eml", mail.encode()) == "From: Odo\nTo: Ann, Ben\nSubject: r\n\nHello\n"


def test_a_first_line_of_another_form_is_no_part_of_a_mail():
    assert text_of("a.mbox", f"From the archive of Odo\n{MAIL}".encode()) == "Subject: r\n\nThe rent is 1200\n"
