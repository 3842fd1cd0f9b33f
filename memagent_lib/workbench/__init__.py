"""What a person looks at in JupyterLab: figures, the inspector of memories, the training panel, sweeps of notebooks.

Knows results, runs and training runs by their records. Knows no model server and no command.
"""

from memagent_lib.workbench import case_study, data_plots, inspector, panel, plots
from memagent_lib.workbench.evaluation_report import EvaluationReport
from memagent_lib.workbench.panel import load_recipe, outcome, watch
from memagent_lib.workbench.sweep import (
    SweepError,
    SweepPoint,
    SweepResult,
    SweepSpec,
    SweepStage,
    gather_sweep,
    run_sweep,
    show_sweep,
)

__all__ = [
    "EvaluationReport",
    "SweepError",
    "SweepPoint",
    "SweepResult",
    "SweepSpec",
    "SweepStage",
    "case_study",
    "data_plots",
    "gather_sweep",
    "inspector",
    "load_recipe",
    "outcome",
    "panel",
    "plots",
    "run_sweep",
    "show_sweep",
    "watch",
]
