"""Figures of results, data and training: a tidy frame goes in, matplotlib ``Axes`` come out.

Every function draws a new figure and returns its axes. The functions rely only on a frame's columns; they do not depend
on models, runs or notebooks.
"""

from memagent_lib.plots.figures import (
    accuracy_by_depth,
    accuracy_by_length,
    accuracy_by_task,
    cost_by_length,
    data_overview,
    evidence_outcomes,
    memory_by_turn,
    paired_differences,
    reward_curve,
)
from memagent_lib.plots.style import colours_of, save_figure

__all__ = [
    "accuracy_by_depth",
    "accuracy_by_length",
    "accuracy_by_task",
    "colours_of",
    "cost_by_length",
    "data_overview",
    "evidence_outcomes",
    "memory_by_turn",
    "paired_differences",
    "reward_curve",
    "save_figure",
]
