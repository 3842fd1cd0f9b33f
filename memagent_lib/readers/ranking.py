"""Which texts fit some words best: BM25 through bm25s (numpy alone, kept, and exact about ties). Knows no reader."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A word, or one character of a script that is written without spaces.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def ranked(query: str, texts: Sequence[str]) -> list[int]:
    """The indices of the ``texts`` that share a word with ``query``, best first; equals keep their order."""
    asked = set(words(query))
    corpus = [words(text) for text in texts]
    if not asked or not any(asked & set(text) for text in corpus):
        return []
    import bm25s

    index = bm25s.BM25()
    index.index(corpus, show_progress=False)
    known = [word for word in sorted(asked) if any(word in text for text in corpus)]
    scores = index.get_scores(known)
    return [i for i in sorted(range(len(texts)), key=lambda i: (-scores[i], i)) if scores[i] > 0]
