"""Headless Chromium, and the servers of ``make lab`` on a workspace of their own.

Nothing here skips: without Chromium the tests fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from jupyter import PATIENCE_MS
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright
from ports import free_port

from memagent_lib.cli.servers import FIRST_PAGE, HOST, servers

ROOT = Path(__file__).parents[2]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_CHROMIUM = """\
no Chromium on this machine, and `make test` could not install it. This line installs it on Debian and Ubuntu:
    sudo apt-get update && sudo apt-get install --yes --no-install-recommends chromium fonts-dejavu-core
any of these names on the PATH will do: """ + ", ".join(CHROMIUM)
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
NOT_OURS = (
    "/ajax-api/2.0/mlflow/users/current",  # MLflow's page requests it from a server without accounts
    "ResizeObserver loop completed",  # MLflow's, when its comparison of runs is laid out
    "Could not restore the debugger state",  # JupyterLab's, when a kernel starts anew
    "message before replies were done",  # JupyterLab's, of every request that a kernel left open when it went away
    "/api/kernels",  # JupyterLab's, of a kernel that has gone away while it was called or connected to
    "/api/sessions",
    "/api/events",  # JupyterLab's socket, when a page is left while it connects
    "Failed to fetch",  # of a request that was under way when the page was left; our own scripts make none
    "Error: widget model not found",  # of a reopened page before it reaches the kernel; tests wait for its widgets
)
TOKEN = "for-the-tests-alone"
expect.set_options(timeout=60_000)  # a kernel on a busy machine answers late


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", metavar="FOLDER", help="where test_first_hour.py saves the README's pictures")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Open one Chromium per test file.

    While it is open, playwright runs an event loop, which async tests cannot share.
    """
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if not found:
        pytest.fail(NO_CHROMIUM, pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """Open a fresh tab that can reach only this machine.

    The test fails if a script throws in it or in a tab opened from it, or writes an error to the console.
    """
    with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        context.set_default_timeout(PATIENCE_MS)
        away, errors = [], []
        context.route(
            lambda url: urlsplit(url).hostname != HOST, lambda route: (away.append(route.request.url), route.abort())
        )
        context.on("weberror", lambda thrown: _collect(f"{thrown.error}\n{thrown.error.stack}", errors))
        context.on("console", lambda message: _collect(_text(message), errors) if message.type == "error" else None)
        yield context.new_page()
        with suppress(Error):  # a picture for whoever looks into a failure; a busy machine may not finish it
            context.pages[-1].screenshot(path=tmp_path / "last.png")  # pytest retains the folders of three sessions
        assert not away, f"the page requested addresses outside this machine: {away}"
        assert not errors, "\n".join(errors)


def _collect(error: str, errors: list[str]) -> None:
    if not any(known in error for known in NOT_OURS):
        errors.append(error)


def _text(message: ConsoleMessage) -> str:
    return f"{message.text} ({message.location.get('url', '')}:{message.location.get('lineNumber', '')})"


@dataclass(frozen=True)
class Lab:
    """The two addresses that ``make lab`` prints, and where its files are."""

    root: Path
    jupyter: str
    mlflow: str

    def notebook(self, name: str) -> str:
        """Return the address that opens only this notebook."""
        return self.jupyter.replace(FIRST_PAGE, f"{FIRST_PAGE}/{name}") + "&reset"

    def export(self, name: str) -> str:
        """Return the address of this notebook as JupyterLab exports it to HTML."""
        return self.jupyter.replace(FIRST_PAGE, f"nbconvert/html/notebooks/{name}")


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Start JupyterLab and MLflow as ``make lab`` does, on a copy of the notebooks and an empty ``runs/``.

    With ``--checkout``, they start on what an earlier run with the same folder left.
    """
    retained = request.config.getoption("--checkout")
    root = Path(retained).resolve() if retained else tmp_path_factory.mktemp("lab")
    unsaved = shutil.ignore_patterns(".ipynb_checkpoints")
    shutil.copytree(ROOT / "notebooks", root / "notebooks", ignore=unsaved, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", root)
    if not (root / "experiments").exists():
        (root / "experiments").symlink_to(ROOT / "experiments")
    own = {name: str(root / "own" / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "IPYTHONDIR", "MPLCONFIGDIR")}
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in own.items():
            os.makedirs(folder, exist_ok=True)
            patch.setenv(name, folder)
        patch.delenv(
            "PYTEST_CURRENT_TEST"
        )  # a kernel that sees it leaves its standard output without a file descriptor
        patch.chdir(root)
        with servers(free_port(), free_port(), "runs", TOKEN) as (jupyter, mlflow):
            yield Lab(root, jupyter.page, mlflow.page)
