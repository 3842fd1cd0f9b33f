"""What each notebook leaves and displays when it has run with its defaults, whether papermill or a browser ran it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pandas as pd

from memagent_lib.rl import TrainingState, attach

STUDY = Path("runs/study")


def leaves_data(folder: Path, shown: str) -> None:
    assert {path.stem for path in (folder / STUDY / "data").glob("*.parquet")} == {
        "train_2", "test_4", "test_16", "test_64", "test_256",
    }  # fmt: skip


def leaves_an_answer(folder: Path, shown: str) -> None:
    assert "lantern" in shown
    assert "The code of the silver heron is lantern" in (folder / STUDY / "reading.html").read_text()


def leaves_two_policies_results(folder: Path, shown: str) -> None:
    made = {path.stem: pd.read_parquet(path) for path in (folder / STUDY / "results").glob("*.parquet")}
    assert sorted(made) == ["trained", "warm start"]
    assert {len(rows) for rows in made.values()} == {3 * (64 + 64 + 16)}
    assert all(rows["error"].isna().all() for rows in made.values())


def leaves_a_trained_policy(folder: Path, shown: str) -> None:
    status = attach(folder / STUDY / "train").status()
    assert (status.state, status.step) == (TrainingState.FINISHED, status.steps)
    assert (folder / STUDY / "train/model/config.json").is_file()
    assert "val-core/fair_needle/acc/mean@1" in shown


def leaves_a_figure(folder: Path, shown: str) -> None:
    assert "warm start" in shown and (folder / STUDY / "accuracy.pdf").read_bytes().startswith(b"%PDF")


def leaves_a_page(name: str, *words: str) -> Callable[[Path, str], None]:
    def check(folder: Path, shown: str) -> None:
        page = (folder / STUDY / name).read_text()
        assert all("ma-timeline" in text for text in (shown, page))
        assert all(word in shown for word in words)

    return check


LEAVES = {
    "01": leaves_data,
    "02": leaves_an_answer,
    "03": leaves_two_policies_results,
    "04": leaves_a_trained_policy,
    "05": leaves_a_figure,
    "06": leaves_a_page("memory.html", "warm start", "trained"),
    "07": leaves_a_page("compared.html"),
    "08": leaves_a_page("case.html"),
}


def everything_shown(executed: Path) -> str:
    """Return all that a notebook's cells display, as text."""
    cells = [cell for cell in nbformat.read(executed, 4).cells if cell.cell_type == "code"]
    data = [output.get("data", {}) for cell in cells for output in cell.outputs]
    return "\n".join(str(each.get("text/html", each.get("text/plain", ""))) for each in data)
