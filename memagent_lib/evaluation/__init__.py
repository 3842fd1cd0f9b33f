"""Evaluate an agent on examples: one record per result; tables, comparisons and intervals are functions of the records.

This package depends on agents, examples and diagnoses, not on MLflow, notebooks or charts.
"""

# Used as a namespace: its functions have common names such as ``failures``.
from memagent_lib.evaluation import case_study
from memagent_lib.evaluation.evaluator import EvaluationPlan, evaluate, evaluate_plan, save_wrong, shared_text
from memagent_lib.evaluation.intervals import RATE, Rate, paired_interval, rate, sample_size, wilson
from memagent_lib.evaluation.model_judge import Judgement, ModelJudge, open_judge, verdict_in
from memagent_lib.evaluation.result_files import read_results, results_by_file, write_results
from memagent_lib.evaluation.results import COLUMNS, Column, Result, to_frame, turns_to_frame
from memagent_lib.evaluation.rows import (
    ALL_TASKS,
    LINE,
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
)  # fmt: skip
from memagent_lib.evaluation.tables import (
    COSTS,
    against,
    amount,
    by_judge,
    by_task,
    cost_overview,
    costs,
    failure_reasons,
    judges,
    mixtures,
    overview,
    paired,
    rate_of,
    summarise,
    table,
)  # fmt: skip

__all__ = [
    "ALL_TASKS", "COLUMNS", "COSTS", "LINE", "RATE", "Column", "EvaluationPlan", "Judgement", "ModelJudge",
    "Rate", "Result", "against", "amount", "by_judge",
    "by_task", "case_study", "cost_overview", "costs", "evaluate", "evaluate_plan", "failure_reasons",
    "gather_rows", "in_order", "judges", "keyed", "line_name", "lines_of",
    "mixtures", "open_judge", "overview", "paired", "paired_interval", "question_columns", "rate",
    "rate_of", "read_results", "read_rows", "results_by_file", "row_settings", "rows_of", "sample_size", "save_rows",
    "save_wrong", "settings_in_words", "shared_text", "summarise", "table", "to_frame",
    "turns_to_frame", "verdict_in", "wilson", "with_all_tasks", "with_memory", "write_results",
]  # fmt: skip
