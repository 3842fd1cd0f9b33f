"""Convert subtitles (SubRip and WebVTT) to their lines, each group with the time at which it appears."""

from __future__ import annotations

import html
import re

from memagent_lib.documents.converters.converted import Converted, ConverterOptions, Piece, Source, Unreadable
from memagent_lib.documents.converters.plain_text import whole_text

_TIME = r"(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}"
_CUE = re.compile(rf"^[ \t]*((?:\d+:)?\d{{1,2}}:\d{{2}})[.,]\d{{1,3}}\s*-->\s*{_TIME}[^\n]*$", re.MULTILINE)
_SPEAKER = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_TAG = re.compile(r"</?[a-z][^>]*>|<\d[\d:.]*>|\{\\[^}]*\}", re.IGNORECASE)  # also the times of single words
_NOT_SPOKEN = re.compile(r"(?:NOTE|STYLE|REGION)\b")
SUBTITLES = re.compile(rf"\s*(?:WEBVTT\b|\d+[ \t]*\r?\n{_TIME}[ \t]*-->)")
"""How subtitles begin."""


def subtitle_text(source: Source, options: ConverterOptions) -> Converted:
    """Convert subtitles. Numbers, end times, positions, styles and notes to translators are left out."""
    text, notes = whole_text(source, options)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    cues = list(_CUE.finditer(text))
    if not cues:
        raise Unreadable("subtitles without a line of times (00:00:01,000 --> 00:00:02,000); save it as text")
    lines = []
    ends = [cue.start() for cue in cues[1:]] + [len(text)]
    for cue, end in zip(cues, ends, strict=True):
        spoken = _spoken(text[cue.end() : end], is_last=end == len(text))
        spoken = html.unescape(_TAG.sub("", _SPEAKER.sub(r"\1: ", spoken)))
        spoken = "\n".join(line.strip() for line in spoken.splitlines() if line.strip())
        if spoken:
            lines.append(f"[{cue[1]}] {spoken}")
    notes.append(f"numbers, end times and styles left out from {source.name}")
    return Converted([Piece("\n".join(lines) + "\n")], notes)


def _spoken(between: str, is_last: bool) -> str:
    """Return the lines between two lines of times without the name of the next cue, notes and styles.

    Some files have a blank line after every line, so it does not end what is spoken, and others have none.
    """
    blocks = re.split(r"\n[ \t]*\n", between.strip("\n"))
    if not is_last:
        *lines, name = blocks[-1].split("\n")
        is_alone = len(blocks) > 1 and not lines
        is_before_times = not re.search(r"\n[ \t]*\n$", between)
        # The name of a cue stands between a blank line and the times, and is mostly a number.
        if is_alone + is_before_times + name.strip().isdigit() >= 2:
            blocks[-1] = "\n".join(lines)
    first, *others = blocks
    return "\n".join([first, *(block for block in others if not _NOT_SPOKEN.match(block))])
