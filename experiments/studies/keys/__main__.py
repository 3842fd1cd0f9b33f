"""Print the table of a sweep: ``python -m experiments.studies.keys [FOLDER]`` (default: runs/keys)."""

import sys

from experiments.studies.keys.table import outcomes, table
from memagent_lib.sweeps import gather_sweep

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/keys"
print(table(outcomes(gather_sweep(folder, "curve.parquet"))))
