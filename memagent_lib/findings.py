"""What a check of a machine or a run found: the lines of the table that ``memagent doctor`` prints.

Knows nothing of what is checked.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Health(StrEnum):
    """How serious a finding is: nothing can go ahead while something is missing or has failed."""

    GOOD = "ok"
    NOTE = "note"
    MISSING = "missing"
    FAILED = "failed"

    @property
    def blocks(self) -> bool:
        return self in (Health.MISSING, Health.FAILED)


class Finding(NamedTuple):
    """One line of the table: what was looked at, what was found there, and how to fix it where it needs fixing."""

    what: str
    found: str
    state: Health = Health.GOOD
    fix: str = ""

    @classmethod
    def check(cls, what: str, found: str, passed: bool, fix: str, otherwise: Health = Health.FAILED) -> Finding:
        """Return a good finding when ``passed``, else one in the state ``otherwise`` with its fix."""
        return cls(what, found) if passed else cls(what, found, otherwise, fix)
