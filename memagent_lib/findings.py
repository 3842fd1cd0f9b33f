"""The results of checking a machine or a run. Each finding is a line of the table that ``memagent doctor`` prints.

The checks themselves are elsewhere.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Health(StrEnum):
    """How serious a finding is. MISSING and FAILED prevent a run."""

    GOOD = "ok"
    NOTE = "note"
    MISSING = "missing"
    FAILED = "failed"

    @property
    def blocks(self) -> bool:
        return self in (Health.MISSING, Health.FAILED)


class Finding(NamedTuple):
    """One line of the table: what was checked, what was found, how serious that is, and the fix if one is needed."""

    what: str
    found: str
    state: Health = Health.GOOD
    fix: str = ""

    @classmethod
    def check(cls, what: str, found: str, passed: bool, fix: str, otherwise: Health = Health.FAILED) -> Finding:
        """Return a GOOD finding if ``passed``, else a finding with the state ``otherwise`` and the ``fix``."""
        if passed:
            return cls(what, found)
        return cls(what, found, otherwise, fix)
