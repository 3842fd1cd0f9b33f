"""What a person looks at in JupyterLab: figures, the inspector of memories, the training panel, sweeps of notebooks.

Knows results, runs and training runs by their records. Knows no model server and no command.
"""

from memagent_lib.workbench import case_study, data_plots, inspector, panel, plots, sweep
from memagent_lib.workbench.evaluation_report import EvaluationReport

__all__ = ["EvaluationReport", "case_study", "data_plots", "inspector", "panel", "plots", "sweep"]
