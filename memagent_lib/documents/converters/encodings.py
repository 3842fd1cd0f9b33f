"""Detect the encoding of a text file from all of its bytes, or refuse the file.

Detection tries, in this order: a byte order mark, UTF-16 by its zero bytes, ISO-2022-JP by its escapes, strict UTF-8,
UTF-8 with a few invalid bytes, the encoding that the file declares, chardet's guesses, and Windows-1252. A guess counts
only if it decodes every byte. If it is an East Asian encoding, chardet must also be confident. If it is any other, it
must yield words of one script, and be clearly ahead of the next guess or give the same text. A wrong guess is worse
than none, because it silently spoils every name in the document.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO, NamedTuple

from memagent_lib.documents.converters.converted import Unreadable

BLOCK_BYTES = 1 << 18
SAMPLE_BYTES = 1 << 18
_HEAD_BYTES = 1 << 16
_MARKS = {  # UTF-32's begins with UTF-16's
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_WIDER = {  # what browsers decode instead (WHATWG Encoding Standard): the label is often too narrow for the text
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "iso8859-9": "cp1254",
    "tis-620": "cp874",
}
_NOT_FOR_FILES = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape"})
_SEVEN_BIT = ("iso2022", "hz", "utf-7")
_ASIAN = frozenset({"gb18030", "big5", "big5hkscs", "cp932", "euc_jp", "cp949", "johab"})
# Thresholds measured on short texts in 26 encodings and 20 languages (tests/documents/test_encodings.py has them).
_ASIAN_CONFIDENCE = 0.4
_CONFIDENCE = 0.14
_AHEAD = 1.45
_AHEAD_OF_TURKISH = 2
_VALID_PER_INVALID = 3
_IMPLAUSIBLE_SHARE = 0.1
_SYMBOLS_IN_WORDS = frozenset("„‚”…§¤¦¨´¸†‡ˆ˜‰‹›«»¿¡£¥©®±¹²³µ¶¼½¾×÷")
_AFTER_A_LETTER = re.compile(r"(?<=[A-Za-z])[‚„ˆ¡¿]")  # DOS and Macintosh letters, read as signs that open something


class UnknownEncoding(Unreadable):
    """The encoding of the bytes cannot be detected. The message completes a sentence that begins with "FILE is"."""


class Encoding(NamedTuple):
    """A Python codec, and how many characters of the decoded text replace invalid bytes."""

    codec: str
    invalid: int = 0


def codec_of(label: str) -> str | None:
    """Return Python's codec for ``label``, or the wider codec that browsers use instead.

    Returns ``None`` if Python has no such codec, or if the codec is not one for text files.
    """
    try:
        name = codecs.lookup(label.strip()).name
        b"a".decode(name, "ignore")  # Python calls base64 and others codecs, too
    except (LookupError, ValueError):
        return None
    if name in _NOT_FOR_FILES:
        return None
    return _WIDER.get(name, name)


def marked_encoding(head: bytes) -> str | None:
    """Return the codec of the byte order mark at the beginning; ``None`` if there is no mark."""
    return next((codec for mark, codec in _MARKS.items() if head.startswith(mark)), None)


def unmarked_utf16(head: bytes) -> str | None:
    """Return the codec of UTF-16 without a byte order mark, or ``None`` if the bytes do not look like UTF-16.

    It is recognised only if most characters are Latin, so that every other byte is zero.
    """
    whole = head[: len(head) // 2 * 2]
    for codec, zeros in (("utf-16-le", whole[1::2]), ("utf-16-be", whole[0::2])):
        if len(zeros) > 1 and zeros.count(0) > len(zeros) / 2 and not _has_zero_character(whole):
            return codec
    return None


def find_encoding(file: BinaryIO, label: str | None = None) -> Encoding:
    """Return the encoding of ``file``, which may be read in full several times. Raises :class:`UnknownEncoding`.

    ``label`` is the encoding that the file declares. UTF-8 is UTF-8 whatever the label, because labels are often wrong,
    and text in another encoding is hardly ever valid UTF-8 by chance. If no encoding fits, the label counts.
    """
    named = codec_of(label) if label else None
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    marked = marked_encoding(head)
    if marked:
        return Encoding(marked, invalid_characters(file, marked))
    unmarked = unmarked_utf16(head)
    if unmarked and _decodes(file, unmarked):
        return Encoding(unmarked)
    if b"\x1b$" in head and _decodes(file, "iso2022_jp"):
        return Encoding("iso2022_jp")
    # These write every character in ASCII, so that it looks like UTF-8.
    if named and named.startswith(_SEVEN_BIT) and _decodes(file, named):
        return Encoding(named)
    if _decodes(file, "utf-8"):
        return Encoding("utf-8")
    return _not_quite_utf8(file, named)


def decoded(file: BinaryIO, codec: str, errors: str = "replace") -> Iterator[str]:
    """Yield the text of a file block by block. Invalid bytes become U+FFFD, or what else ``errors`` names."""
    decoder = codecs.getincrementaldecoder(codec)(errors=errors)
    for raw in _blocks(file):
        yield decoder.decode(raw)
    yield decoder.decode(b"", final=True)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    yield from iter(partial(file.read, BLOCK_BYTES), b"")


def _decodes(file: BinaryIO, codec: str) -> bool:
    try:
        for _ in decoded(file, codec, "strict"):
            pass
    except UnicodeDecodeError:
        return False
    return True


def invalid_characters(file: BinaryIO, codec: str) -> int:
    """Return how many characters of the text replace invalid bytes.

    A U+FFFD that is in the file itself does not count if the file is UTF-8.
    """
    if _decodes(file, codec):
        return 0
    replaced = sum(block.count("\ufffd") for block in decoded(file, codec))
    if codec.startswith("utf-8"):
        replaced -= sum(block.count("\ufffd") for block in decoded(file, codec, "ignore"))
    return replaced


def _has_zero_character(raw: bytes) -> bool:
    return any(not raw[at] and not raw[at + 1] for at in range(0, len(raw), 2))


def _not_quite_utf8(file: BinaryIO, named: str | None) -> Encoding:
    invalid = invalid_characters(file, "utf-8")
    valid = sum(_beyond_ascii(block.replace("\ufffd", "")) for block in decoded(file, "utf-8"))
    # The only invalid character may be one that the file's end cuts. In a file without other UTF-8, one byte of a
    # character proves nothing, because single-byte encodings have the same letters.
    least_cut = 1 if valid else 2
    is_cut = invalid == 1 and _cut_bytes(file) >= least_cut
    if is_cut or valid >= _VALID_PER_INVALID * invalid:
        return Encoding("utf-8", invalid)
    if named and _decodes(file, named):
        return Encoding(named)
    sample = _sample(file)
    guesses = _guesses(sample)
    mixed = valid > invalid / 10  # bytes of another encoding are hardly ever valid UTF-8 by chance
    codec = next((codec for codec in _accepted(sample, guesses, mixed) if _decodes(file, codec)), None)
    if codec:
        return Encoding(codec)
    if named:
        return Encoding(named, invalid_characters(file, named))
    perhaps = ""
    if guesses:
        perhaps = f" (perhaps {', '.join(codec for codec, _ in guesses[:3])})"
    raise UnknownEncoding(
        f"not UTF-8 ({invalid:,} invalid bytes), and its encoding is uncertain{perhaps}; "
        "save it as UTF-8, or name its encoding with --encoding"
    )


def _beyond_ascii(text: str) -> int:
    return len(text) - len(text.encode("ascii", errors="ignore"))


def _cut_bytes(file: BinaryIO) -> int:
    """Return how many bytes of a UTF-8 character are at the end of the file, if it ends inside one."""
    file.seek(0, 2)
    file.seek(max(0, file.tell() - 4))
    tail = file.read()
    start = max(tail.rfind(lead) for lead in (bytes([byte]) for byte in range(0xC2, 0xF5)))
    try:
        tail[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        if start >= 0 and error.reason == "unexpected end of data":
            return len(tail) - start
    return 0


def _sample(file: BinaryIO) -> bytes:
    """Return lines that are not plain ASCII, because only these distinguish single-byte encodings."""
    lines = []
    size = 0
    for raw in _blocks(file):
        for line in raw.splitlines(keepends=True):
            if not line.isascii():
                lines.append(line)
                size += len(line)
        if size >= SAMPLE_BYTES:
            break
    return b"".join(lines)[:SAMPLE_BYTES]


def _guesses(sample: bytes) -> list[tuple[str, float]]:
    """Return possible codecs with their confidence, best first, without those that cannot be right."""
    import chardet

    found = chardet.detect_all(
        sample, encoding_era=chardet.EncodingEra.MODERN_WEB, max_bytes=len(sample), ignore_threshold=True
    )
    guesses = {}
    for guess in found:
        codec = codec_of(guess["encoding"] or "")
        if codec and not codec.startswith("utf") and codec not in guesses and _plausible(sample, codec):
            guesses[codec] = guess["confidence"]
    return list(guesses.items())


def _accepted(sample: bytes, guesses: list[tuple[str, float]], mixed: bool) -> Iterator[str]:
    """Yield the guesses that are certain enough. ``mixed`` means that the text also contains UTF-8."""
    if guesses:
        codec, confidence = guesses[0]
        if codec in _ASIAN:
            is_sure = confidence >= _ASIAN_CONFIDENCE
        else:
            is_sure = not mixed and confidence >= _CONFIDENCE and _is_ahead(sample, guesses)
        if is_sure:
            yield codec
    if not mixed and _plausible(sample, "cp1252") and _same(sample, "cp1252", "cp1250"):
        yield "cp1252"  # German, and the quotation marks of English: the letters that both pages share


def _is_ahead(sample: bytes, guesses: list[tuple[str, float]]) -> bool:
    """Return whether the first guess is clearly better than every guess that reads the text differently.

    It must also be better on the foreign words alone. In mostly English text they hardly count, and chardet takes
    English for cp1252.
    """
    words = b" ".join(re.findall(rb"[A-Za-z]*[\x80-\xff][A-Za-z\x80-\xff]*", sample))
    best = guesses[0][0]
    for found in (guesses, _guesses(words)):
        if not found or found[0][0] != best:
            return False
        rivals = {codec: confidence for codec, confidence in found[1:] if not _same(sample, best, codec)}
        if found[0][1] < _AHEAD * max(rivals.values(), default=0.0):
            return False
    # Turkish differs from Western Europe in six letters, of which only Icelandic has more than one.
    turkish = dict(guesses).get("cp1254", 0.0)
    return best != "cp1252" or _same(sample, best, "cp1254") or guesses[0][1] >= _AHEAD_OF_TURKISH * turkish


def _same(sample: bytes, codec: str, other: str) -> bool:
    try:
        return sample.decode(codec) == sample.decode(other)
    except UnicodeDecodeError:
        return False


def _plausible(sample: bytes, codec: str) -> bool:
    """Return whether the text reads like words: a wrong code page mixes alphabets and puts signs inside words."""
    text = sample.decode(codec, errors="ignore" if codec in _ASIAN else "replace")
    if "\ufffd" in text or "¤" in text:  # the sign that ISO-8859-15 gave to the euro; nobody writes it
        return False
    if codec in _ASIAN:
        return True
    words = re.findall(r"[^\W\d_]+", text)
    foreign = [word for word in words if not word.isascii() and any(_alphabet(char) != "LATIN" for char in word)]
    mixed = sum(len({_alphabet(char) for char in word}) > 1 for word in foreign)
    if mixed > _IMPLAUSIBLE_SHARE * len(foreign):
        return False
    accented = re.findall(r"[^\W\d_\x00-\x7f]{3,}", text)
    if not foreign and sum(map(len, accented)) > _IMPLAUSIBLE_SHARE * _beyond_ascii(text):
        return False
    inside = re.findall(r"(?<=[a-z])[^\x00-\x7f](?=[a-z])", text)
    wrong = sum(char.isupper() or char in _SYMBOLS_IN_WORDS for char in inside) + len(_AFTER_A_LETTER.findall(text))
    return wrong <= _IMPLAUSIBLE_SHARE * _beyond_ascii(text)


def _alphabet(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").split(" ")[0]
