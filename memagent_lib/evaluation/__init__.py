"""Evaluate an agent on examples: one record per result; tables, comparisons and intervals are functions of the records.

This package depends on agents, examples and diagnoses, not on MLflow, notebooks or charts.
"""

from memagent_lib.evaluation.evaluator import EvaluationPlan, evaluate, evaluate_plan, save_wrong
from memagent_lib.evaluation.intervals import RATE, Rate, rate, sample_size, wilson
from memagent_lib.evaluation.model_judge import ModelJudge, open_judge, verdict_in
from memagent_lib.evaluation.results import (
    COLUMNS,
    Result,
    read_results,
    results_by_file,
    to_frame,
    turns_to_frame,
    write_results,
)
from memagent_lib.evaluation.rows import (
    ALL_TASKS,
    gather_rows,
    in_order,
    keyed,
    line_name,
    lines_of,
    question_columns,
    read_rows,
    row_settings,
    rows_of,
    save_rows,
    settings_in_words,
    with_all_tasks,
    with_memory,
)
from memagent_lib.evaluation.tables import (
    COSTS,
    against,
    agreement,
    by_judge,
    cost_overview,
    costs,
    failure_reasons,
    mixtures,
    overview,
    paired,
    rate_of,
    summarise,
    table,
    two_hop_case,
    two_hop_outcomes,
)

__all__ = [
    "ALL_TASKS", "COLUMNS", "COSTS", "RATE", "EvaluationPlan", "ModelJudge", "Rate", "Result", "against", "agreement",
    "by_judge", "cost_overview", "costs", "evaluate", "evaluate_plan", "failure_reasons", "gather_rows", "in_order",
    "keyed", "line_name", "lines_of", "mixtures", "open_judge", "overview", "paired", "question_columns", "rate",
    "rate_of", "read_results", "read_rows", "results_by_file", "row_settings", "rows_of", "sample_size", "save_rows",
    "save_wrong", "settings_in_words", "summarise", "table", "to_frame", "turns_to_frame", "two_hop_case",
    "two_hop_outcomes", "verdict_in", "wilson", "with_all_tasks", "with_memory", "write_results",
]  # fmt: skip
