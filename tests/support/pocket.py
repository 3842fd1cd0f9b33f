"""The paths of the pocket world and its policies, and a reader of its texts that knows no generator.

Tests load the world by path, as a person would load a plug-in.
"""

from __future__ import annotations

import re
from pathlib import Path

POCKET = Path(__file__).parents[2] / "experiments" / "pocket"
WARM_START = POCKET / "warm_start"
TRAINED = POCKET / "trained"
STATEMENT = re.compile(r"The (code|keeper|friend) of (?:the )?([\w ]+?) is (\w+)\.")


def pocket_task(name: str) -> str:
    """Return the name by which ``make`` finds a task of the pocket world: ``FILE.py:NAME``."""
    return f"{POCKET / 'world.py'}:pocket_{name}"


def fair_task(name: str) -> str:
    """Return the name of a task of the fair pocket world, whose documents do not show what their question is about."""
    return f"{POCKET / 'fair_world.py'}:fair_{name}"


def triples_in(text: str) -> list[tuple[str, str, str]]:
    """Return relation, key and value of every statement in a text, in order."""
    return [match.groups() for match in STATEMENT.finditer(text)]


def solve(question: str, text: str) -> list[str]:
    """Answer a question from the words of question and text alone."""
    triples = triples_in(text)
    keys = re.findall(r"the (\w+ \w+)(?= and|\?)", question)

    def all_of(relation: str, key: str) -> list[str]:
        return [value for *pair, value in triples if pair == [relation, key]]

    if "keeper" in question:
        return all_of("code", all_of("keeper", keys[-1])[0])
    if "friends" in question:
        at = re.search(r"friends of (\w+)", question)[1]
        while all_of("friend", at):
            at = all_of("friend", at)[0]
        return all_of("code", at)
    found = [value for key in keys for value in all_of("code", key)]
    return found[-1:] if "last" in question else found


def boxed(values: list[str]) -> str:
    """Return a reply that answers with ``values``."""
    return rf"\boxed{{{', '.join(values)}}}"
