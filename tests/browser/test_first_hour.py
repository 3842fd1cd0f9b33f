"""A newcomer's first hour, with the real models: from the printed address to inspected memories, one of them edited and
read on from, saved, opened again without a kernel, found in MLflow; then, marked long, notebooks 01 to 08, a training
that is watched, stopped and resumed. ``--checkout=FOLDER`` retains the lab's folder, where a part can be run
again. With ``--figures FOLDER`` (`make screenshots`) it takes the README's pictures on its way, of training on what the
last `make demo` left.
"""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import jupyter
import nbformat
import pytest
from notebook_results import LEAVES, everything_shown
from PIL import Image
from playwright.sync_api import Locator, Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
TRAINED = "runs/demo/train"
MOST_CLICKS = 5
WIDE, NARROW = (1440, 900), (1024, 768)
SMALL = [
    "verl.trainer.total_training_steps=6",
    "verl.trainer.test_freq=3",
    "verl.data.train_batch_size=8",
    "verl.data.val_max_samples=24",
    "verl.actor_rollout_ref.rollout.n=4",
]


class Camera:
    """Takes pictures when it has a folder for them, and always checks that no error is on the page."""

    def __init__(self, page: Page, folder: Path | None):
        self.page, self.folder = page, folder

    def take(self, name: str, at: Locator | None = None, size: tuple[int, int] = WIDE) -> None:
        """The page as a person sees it, with ``at`` at its top."""
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        if at:
            at.evaluate("cell => (cell.closest('.jp-Cell') ?? cell).scrollIntoView()")
        self.page.wait_for_timeout(1500)  # scrolling, and MLflow's own animations
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than {size}"
        if self.folder:
            picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
            small = picture.quantize(64, dither=Image.Dither.NONE)  # a third of the size, and the same to look at
            small.save(self.folder / f"{name}.png", optimize=True)


@pytest.fixture
def camera(page: Page, request: pytest.FixtureRequest) -> Camera:
    folder = request.config.getoption("--figures", None)
    return Camera(page, Path(folder) if folder else None)


def test_the_first_hour(page: Page, lab, camera: Camera) -> None:
    page.add_init_script("window.clicks = 0; addEventListener('click', () => window.clicks++, true)")
    page.goto(f"{lab.jupyter}&reset")  # without the tabs of other tests
    page.get_by_text("00_quickstart.ipynb").dblclick()
    jupyter.ready(page)
    jupyter.run_all(page)
    inspector = jupyter.output(page, ".ma-inspector")
    assert page.evaluate("window.clicks") <= MOST_CLICKS
    expect(page.get_by_role("button", name=re.compile(r"\| Idle$"))).to_be_visible(timeout=jupyter.PATIENCE_MS)
    assert jupyter.failures(page) == []
    expect(inspector.locator(".ma-memory").first).to_be_visible()
    question = inspector.locator(".ma-question").inner_text()

    page.locator(".jp-SideBar [data-id='filebrowser']").click()  # the notebook gets the whole width
    page.locator(".ma-inspector").focus()
    page.keyboard.press("n")
    camera.take("lab_inspector", page.locator(".ma-inspector"))
    camera.take("lab_inspector_1024", page.locator(".ma-inspector"), NARROW)
    jupyter.theme(page, "JupyterLab Dark")
    camera.take("lab_inspector_1024_dark", page.locator(".ma-inspector"), NARROW)
    camera.take("lab_inspector_dark", page.locator(".ma-inspector"))
    jupyter.theme(page, "JupyterLab Light")
    edit_a_memory_and_read_on(page)
    jupyter.save(page)

    jupyter.shut_down_kernels(page)
    page.reload()
    reopened = jupyter.output(page, ".ma-inspector")
    expect(reopened.locator(".ma-question")).to_have_text(question)
    expect(reopened.locator("h4").nth(1)).to_contain_text("other memory after turn")
    expect(reopened.locator(".ma-memory")).to_have_count(2)
    expect(page.locator(".ma-live[role=status]")).to_be_visible()  # its kernel is gone
    expect(reopened.get_by_role("button", name="Edit this memory and read on")).to_have_count(0)

    saved = nbformat.read(lab.root / "notebooks/00_quickstart.ipynb", 4)
    outputs = [output.get("data", {}) for cell in saved.cells for output in cell.get("outputs", ())]
    still = next(data["text/html"] for data in outputs if "ma-saved-copy" in data.get("text/html", ""))
    away = page.context.new_page()
    away.set_content(f"<!doctype html><body style='font-family: sans-serif'>{still}</body>")
    expect(away.locator(".ma-question")).to_have_text(question)
    expect(away.locator("svg.ma-timeline").first).to_be_visible()
    Camera(away, camera.folder).take("saved_copy", size=(1440, 792))
    away.close()

    page.goto(lab.mlflow)
    expect(page.get_by_role("link", name="quickstart").first).to_be_visible(timeout=jupyter.PATIENCE_MS)
    page.goto(lab.mlflow.replace("/runs", "/traces"))
    expect(page.get_by_text(question).first).to_be_visible(timeout=jupyter.PATIENCE_MS)
    camera.take("mlflow_traces", size=(1440, 700))


@pytest.mark.long
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "notebooks").glob("0[1-8]_*.ipynb")))
def test_then_one_notebook_after_the_other(page: Page, lab, name: str) -> None:
    """On its defaults, but for a training of a few small steps: what it shows and leaves is what it should."""
    page.goto(lab.notebook(f"{name}.ipynb"))
    jupyter.ready(page)
    if name == "04_train":
        watch_stop_and_resume_training(page)
    jupyter.run_all_to_the_end(page)
    if name == "06_inspect_memory":
        edit_a_memory_and_read_on(page)
    jupyter.save(page)
    LEAVES[name[:2]](lab.root, everything_shown(lab.root / f"notebooks/{name}.ipynb"))
    jupyter.shut_down_kernels(page)


def watch_stop_and_resume_training(page: Page) -> None:
    jupyter.replace_line(page, "settings: list = []", f"settings: list = {SMALL}")
    jupyter.run_all(page)
    panel = jupyter.output(page, ".mt-head")
    state, head = panel.locator(".mt-pill"), panel.locator(".mt-head")
    expect(head).to_contain_text(re.compile("step [1-4] of 6"), timeout=4 * jupyter.PATIENCE_MS)
    panel.get_by_role("button", name="Stop").click()
    expect(state).to_have_text("stopped", timeout=jupyter.PATIENCE_MS)
    expect(head).not_to_contain_text("step 6 of 6")
    panel.get_by_role("button", name="Resume").click()
    expect(state).to_have_text("finished", timeout=4 * jupyter.PATIENCE_MS)


def edit_a_memory_and_read_on(page: Page) -> None:
    inspector = jupyter.output(page, ".ma-inspector")
    memory = inspector.get_by_label("memory to read on with").first
    inspector.get_by_role("button", name="Edit this memory and read on").first.click()
    memory.fill("The code of the bold owl is lantern.")
    inspector.get_by_role("button", name="Read on with this memory").first.click()
    beside = inspector.locator("h4").nth(1)  # the model is opened now, and not before
    expect(beside).to_contain_text("other memory after turn", timeout=4 * jupyter.PATIENCE_MS)
    expect(inspector.locator(".ma-memory").nth(1)).to_contain_text("memory, edited")
    assert jupyter.failures(page) == []


def test_the_panel_shows_the_training_of_the_last_demo(page: Page, lab, camera: Camera) -> None:
    if camera.folder is None:
        pytest.skip("only pictures need a real run; test_training_panel plays one")
    if not (ROOT / TRAINED / "status.json").is_file():
        pytest.fail(f"no training run at {TRAINED}: `make demo` makes one", pytrace=False)
    shutil.copytree(ROOT / TRAINED, lab.root / TRAINED, ignore=shutil.ignore_patterns("checkpoints"))
    cell = nbformat.v4.new_code_cell(f'from memagent_lib import panel\n\npanel.show("{TRAINED}")')
    named = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=named), lab.root / "notebooks/training.ipynb")
    page.goto(lab.notebook("training.ipynb"))
    jupyter.ready(page)
    page.locator(".jp-SideBar [data-id='filebrowser']").click()
    jupyter.run_all(page)
    panel = jupyter.output(page, ".mt-curves")
    panel.locator("select").select_option(index=0)
    camera.take("lab_training")
