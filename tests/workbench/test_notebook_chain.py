"""The notebooks as a newcomer runs them: in order, on their defaults, each finding what the one before left.

A test per notebook, in one checkout. ``--checkout FOLDER`` keeps that checkout: a run with the same folder continues
after the last notebook that ran to its end, and what each showed lies in ``runs/study/executed``. A copy that is
removed there is run again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import nbformat
import pandas as pd
import papermill
import pytest

from memagent_lib.rl import TrainingState, attach

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("0[1-8]_*.ipynb"))
STUDY = Path("runs/study")


@pytest.fixture(scope="module")
def checkout(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty checkout after set-up: what git keeps, and no ``runs/`` but what an earlier run of the chain left."""
    kept = request.config.getoption("--checkout")
    folder = Path(kept).resolve() if kept else tmp_path_factory.mktemp("checkout")
    for name in ("notebooks", "experiments"):
        others = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=others, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / STUDY / "executed").mkdir(parents=True, exist_ok=True)
    return folder


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
    assert "val-core/pocket_needle/acc/mean@1" in shown


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


@pytest.mark.chain
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_on_its_defaults_on_what_those_before_it_left(
    name: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed = checkout / STUDY / "executed"
    missing = [other for other in NOTEBOOKS if other < name and not (executed / other).is_file()]
    if missing:
        pytest.skip(f"{missing[0]} did not run to its end in {checkout}")
    if not (executed / name).is_file():
        monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
        monkeypatch.delenv("PYTEST_CURRENT_TEST")  # a kernel that sees pytest leaves its output without a descriptor
        begun = executed / f"begun.{name}"
        print(f"what {name} shows until it fails: {begun}; continue with --checkout {checkout}")
        papermill.execute_notebook(
            checkout / "notebooks" / name, begun, cwd=checkout, kernel_name="python3", progress_bar=False
        )
        begun.rename(executed / name)
    shown = everything_shown(executed / name)
    assert "Traceback" not in shown
    LEAVES[name[:2]](checkout, shown)


def everything_shown(executed: Path) -> str:
    """All that a notebook's cells show, as text."""
    cells = [cell for cell in nbformat.read(executed, 4).cells if cell.cell_type == "code"]
    data = [output.get("data", {}) for cell in cells for output in cell.outputs]
    return "\n".join(str(each.get("text/html", each.get("text/plain", ""))) for each in data)
