"""Who runs this code: a person in Jupyter, or a program."""

from __future__ import annotations

import os


def in_jupyter() -> bool:
    """Whether a person has opened the notebook: Jupyter's server names its sessions' kernels, papermill does not."""
    return "JPY_SESSION_NAME" in os.environ
