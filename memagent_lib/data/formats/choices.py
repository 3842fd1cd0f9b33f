"""Multiple-choice questions: add the options to the question, and find the accepted answers."""

from __future__ import annotations

from collections.abc import Sequence

LETTERS = "ABCD"
"""The letters that the judge ``choice`` recognises."""


def with_options(question: str, options: Sequence[str]) -> str:
    """Return the question followed by a line for each of the first four options, such as ``B. Odo``."""
    return "\n".join([question, *(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))])


def option_answers(answer: str, options: Sequence[str], where: str) -> tuple[str, str]:
    """Return the text and the letter of the correct option; a reply may give either.

    ``answer`` is the text or the letter. Raises ``ValueError`` if it is not among the options, or if there are more
    options than letters.
    """
    if len(options) > len(LETTERS):
        raise ValueError(
            f"{where}: {len(options)} options, and the judge 'choice' knows the letters {', '.join(LETTERS)}; leave "
            "out the others, or convert the file to plain records with the options in the question"
        )
    if answer in list(LETTERS[: len(options)]):  # a list, because "" and "AB" are in the string too
        return options[LETTERS.index(answer)], answer
    if answer not in options:
        raise ValueError(f"{where}: the answer {answer!r} is none of the options {list(options)}")
    return answer, LETTERS[options.index(answer)]
