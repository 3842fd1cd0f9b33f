"""Examples x agent -> one record per result; tables, comparisons and intervals are functions of the records."""

from memagent_lib.evaluation.evaluator import evaluate

__all__ = ["evaluate"]
