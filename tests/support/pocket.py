"""Where the pocket world and its policies lie: a plug-in that tests use as a person would, by its path."""

from pathlib import Path

POCKET = Path(__file__).parents[2] / "experiments" / "pocket"
WARM_START = POCKET / "warm_start"
TRAINED = POCKET / "trained"


def pocket_task(name: str) -> str:
    """The name by which ``make`` finds a task of the pocket world: ``FILE.py:NAME``."""
    return f"{POCKET / 'world.py'}:pocket_{name}"
