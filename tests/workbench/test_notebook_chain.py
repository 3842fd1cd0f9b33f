"""The notebooks as a newcomer runs them: in order, on their defaults, each finding what the one before left."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pandas as pd
import papermill
import pytest

from memagent_lib.rl import TrainingState, attach

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty checkout after set-up: what git keeps, and no ``runs/``."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return tmp_path


@pytest.mark.chain
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_01_to_08_run_in_order_on_their_defaults_in_an_empty_checkout(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, told = checkout / "runs" / "study", {}
    (study / "executed").mkdir(parents=True)
    for path in sorted((checkout / "notebooks").glob("0[1-8]_*.ipynb")):
        with monkeypatch.context() as kernel:  # one that sees pytest leaves its output without a descriptor
            kernel.delenv("PYTEST_CURRENT_TEST")
            executed = papermill.execute_notebook(
                path, study / "executed" / path.name, cwd=checkout, kernel_name="python3", progress_bar=False
            )
        told[path.stem[:2]] = shown(executed)
        if path.stem.startswith("03"):
            made = {p.stem: pd.read_parquet(p) for p in (study / "results").glob("*.parquet")}
            assert sorted(made) == ["trained", "warm start"]
            assert {len(rows) for rows in made.values()} == {3 * (64 + 64 + 16)}
    assert sorted(told) == [f"0{number}" for number in range(1, 9)]
    status = attach(study / "train").status()
    assert (status.state, status.step) == (TrainingState.FINISHED, status.steps)
    assert (study / "train" / "model" / "config.json").is_file()
    assert "val-core/needle/acc/mean@1" in told["04"]
    assert "warm start" in told["05"] and (study / "accuracy.pdf").read_bytes().startswith(b"%PDF")
    for number, page in (("06", "memory.html"), ("07", "compared.html"), ("08", "case.html")):
        assert "ma-timeline" in told[number] and (study / page).is_file()
    assert all(name in told["06"] for name in ("warm start", "trained"))
    assert all("Traceback" not in text for text in told.values())


def shown(executed: nbformat.NotebookNode) -> str:
    """Everything that a notebook's cells show, as text."""
    outputs = [output for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(
        str(output.get("data", {}).get("text/html", output.get("data", {}).get("text/plain", ""))) for output in outputs
    )
