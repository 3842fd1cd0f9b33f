"""Convert e-mail to text: the headers that a person reads, the body, forwarded messages and attachments.

If a body is present both as plain text and as HTML, the plain text is read if it has most of the words of the HTML;
otherwise the HTML is read, because many plain bodies contain only "please view in HTML". An attachment is converted by
its own format, or reported as left out. Style sheets and scripts, which saved web pages (.mht) contain, are left out.
"""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.message import EmailMessage

from memagent_lib.documents.converters.converted import (
    Converted,
    ConverterOptions,
    Piece,
    Source,
    Unreadable,
    printable,
)
from memagent_lib.documents.converters.encodings import codec_of, marked_encoding
from memagent_lib.documents.converters.html_text import PageText, html_text, page_label
from memagent_lib.documents.converters.plain_text import part_text
from memagent_lib.text import whole_characters

HEADERS = ("From", "To", "Cc", "Date", "Subject")
MAX_DEPTH = 8
SAME_WORDS = 0.7
_NOTHING = PageText("", [])
_NOT_TO_READ = ("text/css", "text/javascript", "application/javascript", "application/x-javascript")
_SIZE_LINE = re.compile(rb"[ \t]*(\d+)[ \t]*\r?\n")
_NEXT_MAIL = re.compile(
    rb"""
    (?:^|\n)\r?\n?From[ ](?=[^\n]{0,400}\n)(?:
        # A sender, which may be missing, and a date: Mon Mar  2 10:00:00 CET 2026, or Mon, 2 Mar 2026 10:00:00 +0100.
        (?:[^\n]*[ ])?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),?[ ]+(?:[A-Z][a-z]{2}[ ]+\d\d?|\d\d?[ ]+[A-Z][a-z]{2})[ ]
        [^\n]*\d:\d\d[^\n]*\n(?=[!-9;-~]+:)
        # An address, or the dash of Thunderbird, and a date in another form.
      | (?=-[ ]|[^\n]*\S@\S)(?=[^\n]*\d:\d\d)(?=[^\n]*\b(?:19|20)\d\d)[^\n]*\n(?=[!-9;-~]+:)
        # At most a sender, where headers follow that no person writes.
      | \S*[ \t]*\r?\n(?=(?:[!-9;-~]+:[^\n]*\n(?:[ \t][^\n]*\n)*)*?
        (?i:Received|Message-ID|MIME-Version|Return-Path|Delivered-To|X-Mozilla-Status):)
    )""",
    re.VERBOSE,
)
"""A line that begins a mail in a mailbox. Many programs leave lines of a body that begin with ``From `` as they are."""

Attachment = Callable[[Source, ConverterOptions], Converted]


def mail_text(source: Source, options: ConverterOptions, attachment: Attachment) -> Converted:
    """Convert one message, or every message in a mailbox. The function ``attachment`` converts their attachments."""
    data = source.read()
    marked = marked_encoding(data)
    if marked:  # saved by a text editor; the parser would take every header for a part of the text
        data = data.decode(marked, errors="replace").encode()
    # Apple Mail (.emlx) writes the size of the message before it, and a property list after it.
    size = _SIZE_LINE.match(data)
    if size:
        data = data[size.end() : size.end() + int(size[1])]
    reader = _MailReader(source.name, options, attachment)
    if data.startswith(b"From "):
        _, _, rest = data.partition(b"\n")
        mails = [mail for mail in _NEXT_MAIL.split(rest) if mail.strip()]
        for number, mail in enumerate(mails, 1):
            reader.read(_parsed(mail), f"mail {number}")
    else:
        reader.read(_parsed(data), "")
    return Converted(reader.pieces, reader.notes)


def _parsed(data: bytes) -> EmailMessage:
    return email.message_from_bytes(data, policy=email.policy.default)


class _MailReader:
    def __init__(self, name: str, options: ConverterOptions, attachment: Attachment):
        self.pieces: list[Piece] = []
        self.notes: list[str] = []
        self._name = name
        self._options = options
        self._attachment = attachment

    def read(self, mail: EmailMessage, where: str, depth: int = 0) -> None:
        values = {name: _header(mail, name) for name in HEADERS}
        headers = [f"{name}: {value}\n" for name, value in values.items() if value]
        self.pieces.append(Piece("".join([*headers, "\n"]), where))
        self._part(mail, where, depth)

    def _part(self, part: EmailMessage, where: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.notes.append(f"parts nested more than {MAX_DEPTH} deep left out from {self._name}")
            return
        kind = part.get_content_type()
        children = part.get_payload() if part.is_multipart() else None
        if kind in ("message/rfc822", "message/global") and children:
            self.read(children[0], _joined(where, "forwarded mail"), depth + 1)
        elif kind == "multipart/alternative" and children:
            self._alternatives(children, where, depth)
        elif children:
            for child in children:
                # A report about a mail consists of headers: which address failed, and why.
                if part.get_content_maintype() == "message":
                    self._add(PageText(_header_lines(child), []), where)
                self._part(child, where, depth + 1)
        elif _is_attached(part):
            self._attached(part, where, depth)
        elif kind not in _NOT_TO_READ:
            self._add(self._body(part, where), where)

    def _alternatives(self, parts: list[EmailMessage], where: str, depth: int) -> None:
        """Read the plain text if it has most of the words of the richest text; otherwise read the richest text.

        Attachments are read as well. Apple Mail has them inside the HTML alternative, between parts of its text.
        """
        plain = _NOTHING
        others = []
        rest = []
        for part in parts:
            inside = list(_inside(part, depth))
            bodies = [leaf for leaf in inside if _is_body(leaf)]
            rest += [leaf for leaf in inside if not _is_body(leaf)]
            text = self._joined_bodies(bodies, where)
            if not plain.text and all(leaf.get_content_type() == "text/plain" for leaf in bodies):
                plain = text
            else:
                others.append(text)
        richest = max(others, key=lambda body: len(body.text), default=_NOTHING)
        words = set(re.findall(r"\w+", richest.text))
        shared = words & set(re.findall(r"\w+", plain.text))
        # Not all words: HTML has some of its own, such as those of buttons.
        self._add(plain if len(shared) >= SAME_WORDS * len(words) else richest, where)
        for part in rest:
            self._part(part, where, depth + 1)

    def _joined_bodies(self, parts: list[EmailMessage], where: str) -> PageText:
        bodies = [self._body(part, where) for part in parts]
        return PageText("\n".join(body.text for body in bodies), [note for body in bodies for note in body.notes])

    def _attached(self, part: EmailMessage, where: str, depth: int) -> None:
        kind = part.get_content_type()
        name = printable(part.get_filename() or kind)
        here = _joined(where, f"attachment {name}")
        data = part.get_payload(decode=True) or b""
        try:
            # Messages attached to messages could nest without end.
            if depth >= MAX_DEPTH:
                raise Unreadable("nested too deep")
            label = _charset(part)
            options = replace(self._options, encoding=None) if label else self._options
            converted = self._attachment(Source.memory(name, data, label), options)
        except Unreadable as reason:
            self.notes.append(f"{here} of {self._name} left out: it is {reason}")
            return
        self.pieces.append(Piece(f"\n[{name}]\n", here))
        self.pieces += [Piece(piece.text, _joined(here, piece.where)) for piece in converted.pieces]
        self.notes += [f"{note} ({self._name})" for note in converted.notes]

    def _body(self, part: EmailMessage, where: str) -> PageText:
        """Return the text of a part, with its notes.

        The standard library would fail at an unknown charset, and would not guess a missing one.
        """
        data = part.get_payload(decode=True) or b""
        kind = part.get_content_subtype()
        is_page = kind in ("html", "xhtml")
        label = _charset(part) or (page_label(data) if is_page else None)
        name = f"{where} of {self._name}" if where else self._name
        text, notes = part_text(Source.memory(name, data), self._options, label)
        if not is_page:
            return PageText(text.replace("\r\n", "\n"), notes)
        text, left_out = html_text(text, is_xml=kind == "xhtml")
        return PageText(text, [*notes, *(f"{note} from {name}" for note in left_out)])

    def _add(self, body: PageText, where: str) -> None:
        self.notes += body.notes
        if body.text.strip():
            self.pieces.append(Piece(f"{body.text.rstrip()}\n", where))


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _header(mail: EmailMessage, name: str) -> str:
    try:
        value = ", ".join(dict.fromkeys(map(str, mail.get_all(name, []))))
    except Exception:  # the standard library's parser fails for some malformed headers
        value = str(dict(mail.raw_items()).get(name, ""))
    return " ".join(whole_characters(value).split())


def _header_lines(part: EmailMessage) -> str:
    return "".join(f"{name}: {_header(part, name)}\n" for name in dict.fromkeys(part.keys()))


def _inside(part: EmailMessage, depth: int) -> Iterator[EmailMessage]:
    """Yield the parts of one alternative: itself, or all those in it if it is a page with its pictures and files."""
    is_group = part.get_content_type() in ("multipart/related", "multipart/mixed") and part.is_multipart()
    if not is_group or depth > MAX_DEPTH:
        yield part
        return
    for child in part.get_payload():
        yield from _inside(child, depth + 1)


def _is_body(part: EmailMessage) -> bool:
    """Return whether a part is a text that can stand for the whole mail. An invitation (iCalendar) cannot."""
    is_text = part.get_content_maintype() == "text" and part.get_content_disposition() != "attachment"
    return is_text and part.get_content_type() not in (*_NOT_TO_READ, "text/calendar")


def _is_attached(part: EmailMessage) -> bool:
    is_text = part.get_content_maintype() in ("text", "multipart")  # a multipart without its boundary is text
    return part.get_content_disposition() == "attachment" or not is_text or bool(part.get_filename())


def _charset(part: EmailMessage) -> str | None:
    try:
        charset = part.get_param("charset")
    except Exception:  # as for headers
        return None
    if isinstance(charset, tuple):  # charset, language and value of an encoded parameter (RFC 2231)
        charset = charset[2]
    if not isinstance(charset, str) or not codec_of(charset):
        return None
    return charset
