"""Read plain text and Markdown unchanged, block by block: a gigabyte takes no more memory than a page.

The other formats that are text (HTML, XML, subtitles, parts of mail, ...) are decoded here, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from memagent_lib.documents.converters.converted import (
    Converted,
    ConverterOptions,
    Lazily,
    Piece,
    Source,
    Unreadable,
)
from memagent_lib.documents.converters.encodings import (
    Encoding,
    UnknownEncoding,
    codec_of,
    decoded,
    find_encoding,
    invalid_characters,
)


def plain_text(source: Source, options: ConverterOptions) -> Converted:
    """Decode a text file. Its encoding is detected from all of its bytes, unless ``options`` names it."""
    encoding, notes = encoding_of(source, options)

    def pieces() -> Iterator[Piece]:
        with source.open() as stream:
            is_first = True
            for block in decoded(stream, encoding.codec):
                # Codecs other than utf-8-sig and utf-16 leave the byte order mark in the text.
                text = block.removeprefix("\ufeff") if is_first else block
                is_first = False
                if text:
                    yield Piece(text)

    return Converted(Lazily(pieces), notes)


def whole_text(source: Source, options: ConverterOptions, label: str | None = None) -> tuple[str, list[str]]:
    """Return a file's text without its byte order mark, and the notes of :func:`encoding_of`, which may also raise."""
    data = source.read()
    encoding, notes = encoding_of(source, options, label)
    return data.decode(encoding.codec, errors="replace").removeprefix("\ufeff"), notes


def part_text(part: Source, options: ConverterOptions, label: str | None = None) -> tuple[str, list[str]]:
    """Decode a part of a file, such as a chapter of a book, and return its text and notes.

    The encoding in ``options`` is meant for other parts if this one declares its own (``label``), or is UTF-8. If no
    encoding is certain, the part is read as Windows-1252 with a note, because a refusal would lose the whole file.
    """
    try:
        return whole_text(part, ConverterOptions(), label or options.encoding)
    except UnknownEncoding:
        text = part.read().decode("cp1252", errors="replace")
        return text, [f"the encoding of {part.name} is uncertain; it is read as CP1252 unless --encoding names it"]


def encoding_of(source: Source, options: ConverterOptions, label: str | None = None) -> tuple[Encoding, list[str]]:
    """Return a file's encoding, and a list that has a line about invalid bytes if there are any.

    ``label`` is the encoding that the file itself declares. Raises :class:`Unreadable` if the encoding cannot be
    detected, or if the one that ``options`` names is unknown.
    """
    with source.open() as stream:
        if options.encoding is None:
            encoding = find_encoding(stream, source.label or label)
        else:
            # A named encoding is not checked against the bytes: the user knows better, and invalid bytes are reported.
            codec = codec_of(options.encoding)
            if codec is None:
                raise Unreadable(
                    f"to be read as {options.encoding!r}, which is no encoding; try utf-8, cp1252 or gb18030"
                )
            encoding = Encoding(codec, invalid_characters(stream, codec))
    if not encoding.invalid:
        return encoding, []
    if encoding.invalid == 1:
        characters = f"a character of {source.name} stands"
    else:
        characters = f"{encoding.invalid:,} characters of {source.name} stand"
    return encoding, [f"{characters} for bytes that are not valid {encoding.codec.upper()}"]
