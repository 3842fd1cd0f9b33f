"""The paths of the pocket world and its policies. Tests load them by path, as a person would load a plug-in."""

from pathlib import Path

POCKET = Path(__file__).parents[2] / "experiments" / "pocket"
WARM_START = POCKET / "warm_start"
TRAINED = POCKET / "trained"


def pocket_task(name: str) -> str:
    """Return the name by which ``make`` finds a task of the pocket world: ``FILE.py:NAME``."""
    return f"{POCKET / 'world.py'}:pocket_{name}"
