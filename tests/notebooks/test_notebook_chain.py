"""The notebooks as a newcomer runs them: in order, on their defaults, each finding what the one before left.

A test per notebook, in one checkout. ``--checkout=FOLDER`` retains that checkout: a run with the same folder continues
after the last notebook that ran to its end; the executed copies are in ``runs/study/executed``. A copy that is removed
there is run again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from notebook_results import LEAVES, STUDY, everything_shown

from memagent_lib.sweeps.notebook_jobs import NotebookJob, run_jobs

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("0[1-8]_*.ipynb"))


@pytest.fixture(scope="module")
def checkout(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty checkout after set-up: the tracked files, and the ``runs/`` of an earlier run of the chain if any."""
    retained = request.config.getoption("--checkout")
    folder = Path(retained).resolve() if retained else tmp_path_factory.mktemp("checkout")
    for name in ("notebooks", "experiments"):
        others = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=others, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / STUDY / "executed").mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.chain
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_on_defaults_after_those_before_it(
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
        print(f"what {name} shows until it fails: {begun}; continue with --checkout={checkout}")
        (ended,) = run_jobs([NotebookJob(checkout / "notebooks" / name, begun, {}, checkout)], 1, lambda: None)
        assert ended.error is None
        begun.rename(executed / name)
    shown = everything_shown(executed / name)
    assert "Traceback" not in shown
    assert str(checkout) not in (executed / name).read_text(encoding="utf-8")
    LEAVES[name[:2]](checkout, shown)
