"""Rank texts by a query with BM25.

The package bm25s is used because it needs only numpy and is exact about ties.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# A word, or one character of a script that is written without spaces.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def ranked(query: str, texts: Sequence[str]) -> list[int]:
    """Return the indices of the ``texts`` that share a word with ``query``, best match first, ties in input order."""
    corpus = [words(text) for text in texts]
    vocabulary = {word for text in corpus for word in text}
    terms = sorted(vocabulary & set(words(query)))
    if not terms:
        return []
    import bm25s

    index = bm25s.BM25()
    index.index(corpus, show_progress=False)
    scores = index.get_scores(terms)
    matching = [i for i in range(len(texts)) if scores[i] > 0]
    # sorted is stable, so equal scores stay in order.
    return sorted(matching, key=lambda i: -scores[i])
