"""Compute from a trace alone what became of the evidence, and where a memory's words came from.

Capture, retention and fate are defined here and nowhere else. Rollouts, result tables, MLflow, inspector and plots read
them from a :class:`Diagnosis`, for every reader. This package depends on traces and evidence spans, not on models,
files or charts.
"""

from memagent_lib.diagnostics.fates import Diagnosis, EvidenceHistory, Fate, diagnose, evidence_in, live_memories
from memagent_lib.diagnostics.phrases import NO_ANSWERS, MemoryChange, MemoryPiece, Phrase, Provenance

__all__ = [
    "NO_ANSWERS",
    "Diagnosis",
    "EvidenceHistory",
    "Fate",
    "MemoryChange",
    "MemoryPiece",
    "Phrase",
    "Provenance",
    "diagnose",
    "evidence_in",
    "live_memories",
]
