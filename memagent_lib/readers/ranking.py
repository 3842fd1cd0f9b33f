"""Rank texts by a query with BM25.

The package bm25s is used because it needs only numpy and is exact about ties.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

# A word, or one character of a script that is written without spaces.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


class Ranking:
    """Texts to search in. The index is built at the first search."""

    def __init__(self, texts: Sequence[str]):
        self._corpus = [words(text) for text in texts]
        self._vocabulary = {word for text in self._corpus for word in text}

    def ranked(self, query: str) -> list[int]:
        """Return the indices of the texts that share a word with ``query``, best match first, ties in input order."""
        terms = sorted(self._vocabulary & set(words(query)))
        if not terms:
            return []
        scores = self._index.get_scores(terms)
        matching = [i for i in range(len(self._corpus)) if scores[i] > 0]
        # sorted is stable, so equal scores stay in order.
        return sorted(matching, key=lambda i: -scores[i])

    @cached_property
    def _index(self) -> Any:
        import bm25s

        index = bm25s.BM25()
        index.index(self._corpus, show_progress=False)
        return index
