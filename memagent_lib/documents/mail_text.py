"""Convert e-mail to text: the headers that a person reads, the body, forwarded messages and attachments.

Of a body in plain text and in HTML, the plain text is read if it has most of the words of the HTML; many plain bodies
contain only "please view in HTML". An attachment is converted by its own format, or reported as left out.
"""

from __future__ import annotations

import email
import email.policy
import io
import re
from collections.abc import Callable, Iterator
from email.message import EmailMessage

from memagent_lib.documents.encodings import Converted, Piece, Source, Unreadable
from memagent_lib.documents.html_text import html_text
from memagent_lib.errors import one_line

HEADERS = ("From", "To", "Cc", "Date", "Subject")
SAME_WORDS = 0.7
# A line that begins a mail in a mailbox. Many programs leave lines of a body that begin with "From " as they are.
_NEXT_MAIL = re.compile(rb"(?:^|\n)\r?\nFrom [^\n]*\b(?:19|20)\d\d\b[^\n]*\n(?=[!-9;-~]+:)")


def mail_text(source: Source, convert: Callable[[Source], Converted]) -> Iterator[Piece]:
    """Read a message, or each message of a mailbox. The function ``convert`` reads their attachments."""
    data = source.read().removeprefix(b"\xef\xbb\xbf")
    mails = [data]
    if data.startswith(b"From "):
        mails = _NEXT_MAIL.split(data.partition(b"\n")[2])
    for number, mail in enumerate(mails, 1):
        where = f"mail {number}" if len(mails) > 1 else ""
        try:
            message = email.message_from_bytes(mail, policy=email.policy.default)
            yield from [Piece(_headers(message), where), *_parts(message, where, source, convert)]
        except Exception as broken:  # the standard library fails at some malformed headers
            source.notes.append(f"{where or 'the mail'} of {source.name} cannot be read: {one_line(broken)[:200]}")


def _headers(mail: EmailMessage) -> str:
    lines = [f"{name}: {' '.join(str(mail[name]).split())}\n" for name in HEADERS if mail[name]]
    return "".join([*lines, "\n"])


def _parts(part: EmailMessage, where: str, source: Source, convert: Callable[[Source], Converted]) -> Iterator[Piece]:
    kind = part.get_content_type()
    if kind == "message/rfc822":
        (inner,) = part.get_payload()
        yield Piece(_headers(inner), where)
        yield from _parts(inner, where, source, convert)
    elif part.is_multipart():
        alternatives = [list(_parts(child, where, source, convert)) for child in part.iter_parts()]
        if kind == "multipart/alternative":
            alternatives = [_fullest(alternatives)]
        yield from (piece for pieces in alternatives for piece in pieces)
    # A multipart without its boundary is text.
    elif part.is_attachment() or part.get_content_maintype() not in ("text", "multipart") or part.get_filename():
        yield from _attached(part, where, source, convert)
    elif kind not in ("text/css", "text/javascript"):
        yield Piece(f"{_body(part, where, source).rstrip()}\n", where)


def _fullest(alternatives: list[list[Piece]]) -> list[Piece]:
    """Return the first alternative, the plain text, unless the richest of the others has many words that it lacks."""
    words = [set(re.findall(r"\w+", "".join(text for text, _ in pieces))) for pieces in alternatives]
    others = range(1, len(words))
    richest = max(others, key=lambda number: len(words[number]), default=0)
    return alternatives[0 if len(words[0] & words[richest]) >= SAME_WORDS * len(words[richest]) else richest]


def _body(part: EmailMessage, where: str, source: Source) -> str:
    data = part.get_payload(decode=True) or b""
    name = f"{where} of {source.name}" if where else source.name
    text = source.part(data, name, part.get_content_charset()).replace("\r\n", "\n")
    return html_text(text, name, source.notes) if part.get_content_subtype() == "html" else text


def _attached(
    part: EmailMessage, where: str, source: Source, convert: Callable[[Source], Converted]
) -> Iterator[Piece]:
    name = part.get_filename() or part.get_content_type()
    here = f"{where}, attachment {name}".removeprefix(", ")
    data = part.get_payload(decode=True) or b""
    try:
        found = convert(Source(name, lambda: io.BytesIO(data), source.encoding or part.get_content_charset()))
    except Unreadable as reason:
        source.notes.append(f"{here} of {source.name} left out: it is {reason}")
        return
    source.notes += [f"{note} ({source.name})" for note in found.notes]
    yield Piece(f"\n[{name}]\n", here)
    for text, inside in found.pieces():
        yield Piece(text, f"{here}, {inside}".removesuffix(", "))
