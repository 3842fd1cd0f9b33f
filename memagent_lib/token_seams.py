"""Put a prompt's token ids together from those of its long parts, with the same result as encoding the whole prompt.

Only the ends of a long part are encoded again, together with the text beside them, because a token may span the border.
This module does not depend on prompts or models.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol

LONG_TOKENS = 250
"""A text of this length is encoded once. Later only its ends are, as their tokens depend on the text beside them."""
MARGIN_TOKENS = 24
"""Each end of 2 * MARGIN_TOKENS is encoded again; its inner half only confirms that the known tokens fit."""
SAME_TOKENS = 10
"""How many tokens in a row must be unchanged before the rest of a text's known tokens are reused."""


class Tokens(NamedTuple):
    """Token ids, and the character offset at which each token starts. Tokens of one character share its offset.

    Offsets count from ``origin``, where the text begins in the longer text that it is a slice of.
    """

    ids: array[int]
    starts: array[int]
    origin: int = 0

    def start(self, index: int) -> int:
        """Return the offset of a token in the text itself."""
        return self.starts[index] - self.origin

    def within(self, begin: int, end: int) -> Tokens:
        """Return the tokens of the slice ``[begin:end]`` of the text."""
        first = bisect_left(self.starts, begin + self.origin)
        last = bisect_left(self.starts, end + self.origin)
        return Tokens(self.ids[first:last], self.starts[first:last], begin + self.origin)


class _Anchor(NamedTuple):
    """Token number ``index`` of a long part, whose text begins ``shift`` characters into the text of a seam."""

    tokens: Tokens
    index: int
    shift: int

    def find(self, seam: Tokens, before: bool) -> int | None:
        """Return the index of this token in the seam if its neighbouring tokens match those of the part, else ``None``.

        The neighbours compared are inside the part: those ``before`` this token, or else this token and those after it.
        """
        start = self.tokens.start(self.index) + self.shift
        found = bisect_left(seam.starts, start)
        # A neighbour before this token is compared too, so there have to be enough of them.
        if found == len(seam.starts) or seam.starts[found] != start or found < before * SAME_TOKENS:
            return None
        offset = -SAME_TOKENS if before else 0
        in_seam = seam.ids[found + offset : found + offset + SAME_TOKENS]
        in_part = self.tokens.ids[self.index + offset : self.index + offset + SAME_TOKENS]
        return found if in_seam == in_part else None


class _Borders(NamedTuple):
    """Four token numbers of a long text, each the first token of a character.

    The ends ``[:head_stop]`` and ``[tail_start:]`` are encoded again; the tokens ``[head:tail]`` are reused.
    """

    head: int
    head_stop: int
    tail_start: int
    tail: int


def _borders(tokens: Tokens) -> _Borders | None:
    """Return the borders of a long text; ``None`` if it is short, or if its characters have very many tokens."""
    n = len(tokens.ids)
    if n < LONG_TOKENS:
        return None
    wanted = (MARGIN_TOKENS, 2 * MARGIN_TOKENS, n - 2 * MARGIN_TOKENS, n - MARGIN_TOKENS)
    found = [_next_character(tokens.starts, index) for index in wanted]
    if None in found:
        return None
    return _Borders(*found)


def _next_character(starts: array[int], index: int) -> int | None:
    """Return the first token from ``index`` on that begins a character, or ``None`` if the next few do not."""
    return next((i for i in range(index, min(index + 8, len(starts))) if starts[i] > starts[i - 1]), None)


class Encodes(Protocol):
    """A tokenizer that encodes a text to ids, and to ids with offsets."""

    def encode(self, text: str) -> list[int]: ...

    def tokens(self, text: str) -> Tokens: ...


def joined_ids(tokenizer: Encodes, parts: Sequence[str], known: Sequence[Tokens | None]) -> list[int]:
    """Return the ids of ``"".join(parts)``. ``known`` has the tokens of the long parts.

    The text between the middles of two long parts, a *seam*, is encoded as one piece. If its tokens do not join the
    known ones, the whole text is encoded.
    """
    ids: list[int] = []
    seam = ""  # the text since the last long part's middle
    left: _Anchor | None = None  # where that middle ended
    for part, tokens in zip(parts, known, strict=True):
        borders = _borders(tokens) if tokens else None
        if borders is None:
            seam += part
            continue
        head_text = part[: tokens.start(borders.head_stop)]
        joined = _seam_ids(tokenizer, seam + head_text, left, _Anchor(tokens, borders.head, len(seam)))
        if joined is None:
            return tokenizer.encode("".join(parts))
        ids += joined
        ids += tokens.ids[borders.head : borders.tail]
        tail_start = tokens.start(borders.tail_start)
        seam = part[tail_start:]
        left = _Anchor(tokens, borders.tail, -tail_start)
    rest = _seam_ids(tokenizer, seam, left, None)
    if rest is None:
        return tokenizer.encode("".join(parts))
    return ids + rest


def _seam_ids(tokenizer: Encodes, text: str, left: _Anchor | None, right: _Anchor | None) -> list[int] | None:
    """Return the ids of ``text`` between its anchors; ``None`` if they do not join the anchors' tokens."""
    if left is None and right is None:
        return tokenizer.encode(text)
    seam = tokenizer.tokens(text)
    begin = 0 if left is None else left.find(seam, before=True)
    end = len(seam.ids) if right is None else right.find(seam, before=False)
    if begin is None or end is None or begin > end:
        return None
    return seam.ids[begin:end].tolist()
