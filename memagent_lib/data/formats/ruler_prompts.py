"""Telling document and question apart in RULER's published prompts, which keep both in one text.

Only fixed words of RULER's templates are looked for; nothing of its text is changed or left out.
"""

from __future__ import annotations

ASK_ALL = "Follow the task that the document sets at its beginning and at its end."
_ENDS = (
    "\nWhat are all the special magic ",
    "\nWhat is the special magic ",
    "\nQuestion: ",
    "\n\nAnswer the question based on the given documents.",
)
_QUESTION = "\n\nQuestion: "


def split_ruler(text: str) -> tuple[str, str]:
    """``(document, question)`` of a RULER ``input``; the chat template's tail stays with the question.

    The question begins at the last of RULER's known question openings. Where there is none the whole text is the document.
    """
    place = max(text.rfind(end) for end in _ENDS)
    if place < 0:
        return text, ASK_ALL
    document, question = text[:place], text[place:].strip()
    if "Answer the question based on the given documents" in document.rpartition("\n\n")[2]:
        document = document.rpartition("\n\n")[0]
    return document, question
