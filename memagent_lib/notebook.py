"""What notebooks share: a mistake is one line, prices in a table are not formulas, one value is a list of one.

This module depends on IPython and pandas, not on agents, runs or results.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from memagent_lib.errors import UserError, is_user_error


def prepare() -> None:
    """Let the running notebook display mistakes and interrupts as one line each.

    Tables display their text as it is: JupyterLab would draw what stands between two dollar signs as a formula.

    A cell still fails with the error itself, so that papermill stops there. An error that was not raised by this
    library's own code has its traceback as before; ``%debug`` has the frames of every error. Outside IPython this has
    no effect.
    """
    import pandas as pd
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    pd.set_option("display.html.use_mathjax", False, "styler.html.mathjax", False)
    shell.set_custom_exc((UserError, ValueError, OSError, ImportError, KeyboardInterrupt), _display)


def listed(parameter: object) -> list[Any]:
    """Return a notebook's parameter as a list. Papermill's ``-p`` gives one value where a list is meant."""
    if parameter is None:
        return []
    return list(parameter) if isinstance(parameter, (list, tuple)) else [parameter]


def _display(
    shell: Any, kind: type[BaseException], error: BaseException, frames: TracebackType, tb_offset: int | None = None
) -> None:
    """Display the error of a cell: a handler for IPython's ``set_custom_exc``."""
    line = ""
    if isinstance(error, KeyboardInterrupt):
        line = "KeyboardInterrupt: this cell was interrupted; run it again to continue"
    elif is_user_error(error) and _is_ours(frames):
        line = f"{kind.__name__}: {error}"
    if line:
        error._render_traceback_ = lambda: [line]  # IPython takes the lines of an error from there
    shell.showtraceback((kind, error, frames))


def _is_ours(frames: TracebackType) -> bool:
    """Return whether the frame that raised is of this library."""
    while frames.tb_next is not None:
        frames = frames.tb_next
    return Path(__file__).parent in Path(frames.tb_frame.f_code.co_filename).parents
