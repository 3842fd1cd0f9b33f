"""What became of the facts that a question needs, and where the words of a memory came from: from a trace alone, for
every reader.

Capture, retention and fate are defined here and nowhere else; rollouts, result tables, MLflow, inspector and plots read
them off a :class:`Diagnosis`. Knows traces and evidence spans. Knows no model, no file and no chart.
"""

from memagent_lib.diagnostics.fates import Diagnosis, FactHistory, Fate, diagnose, evidence_in, live_memories
from memagent_lib.diagnostics.phrases import MemoryChange, MemoryPiece, Phrase, Provenance

__all__ = [
    "Diagnosis",
    "FactHistory",
    "Fate",
    "MemoryChange",
    "MemoryPiece",
    "Phrase",
    "Provenance",
    "diagnose",
    "evidence_in",
    "live_memories",
]
