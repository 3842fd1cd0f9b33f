"""Print the table of a sweep: ``python -m experiments.studies.transfer [FOLDER]`` (default: runs/transfer)."""

import sys

from experiments.studies.transfer.table import table, transfer
from memagent_lib.sweeps import gather_sweep

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/transfer"
print(table(transfer(gather_sweep(folder, "curve.parquet"))))
