"""Every page that a command writes, as a person sees it: in a narrow window, in both themes, and on paper."""

from __future__ import annotations

import shutil
import unicodedata
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from made_pages import made_pages
from playwright.sync_api import Page
from pypdf import PdfReader

pytestmark = pytest.mark.browser
CHECKS = Path(__file__).with_name("page_checks.js").read_text(encoding="utf-8")
KINDS = ("grid", "readers", "leaderboard", "read", "inspector")
LAST_DRAWN = {"leaderboard": "tbody tr", "read": ".memory"}
UPRIGHT = (703, 1032)  # A4 within its margins, in CSS pixels
PAPER = {"leaderboard": (1032, 703)}
LEAST_CONTRAST = 4.5  # WCAG 2.1, 1.4.3


@pytest.fixture(scope="module")
def pages(tokenizer, made_store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    shutil.copy(made_store, folder / "mlflow.db")
    return made_pages(tokenizer, folder, folder)


def opened(page: Page, pages: dict[str, Path], kind: str) -> None:
    address = f"http://127.0.0.1/{kind}.html"
    page.route(address, lambda route: route.fulfill(path=pages[kind], content_type="text/html"))
    page.goto(address)
    page.locator(LAST_DRAWN.get(kind, ".ma-detail[data-turn]")).first.wait_for(state="attached")


def check(page: Page, call: str) -> Any:
    return page.evaluate(f"{CHECKS.rstrip()}.{call}")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_wider_than_a_narrow_window(page: Page, pages, kind: str) -> None:
    page.set_viewport_size({"width": 1024, "height": 800})
    opened(page, pages, kind)
    for width in (1024, 1200):
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate("document.querySelectorAll('details').forEach((box) => (box.open = true))")
        assert check(page, "wider()") == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("kind", ["grid", "readers", "inspector"])
def test_a_page_opens_at_its_top_or_at_a_chosen_reading(page: Page, pages, kind: str) -> None:
    page.set_viewport_size({"width": 1200, "height": 400})
    for _ in range(2):  # opened again, as by F5, it is where it was
        opened(page, pages, kind)
        assert (page.evaluate("scrollY"), page.url.partition("#")[2]) == (0, "")
    page.locator("#readings-table tbody tr").last.click()
    page.wait_for_function("location.hash")
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_function("scrollY > 0")


@pytest.mark.parametrize("kind", KINDS)
def test_all_text_has_contrast_in_both_themes(page: Page, pages, kind: str) -> None:
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        opened(page, pages, kind)
        seen, faint = check(page, f"faint({LEAST_CONTRAST})")
        assert faint == []
        assert seen > 30


@pytest.mark.parametrize("kind", KINDS)
def test_paper_has_every_word_and_cuts_nothing(page: Page, pages, kind: str) -> None:
    width, height = PAPER.get(kind, UPRIGHT)
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": width, "height": height})
    opened(page, pages, kind)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert check(page, "cut()") == []
    words = set(" ".join(check(page, "words()")).split())
    assert len(words) > 10
    printed = PdfReader(BytesIO(page.pdf(prefer_css_page_size=True)))
    text = "".join("".join(sheet.extract_text().split()) for sheet in printed.pages)
    text = unicodedata.normalize("NFKC", text)  # a PDF has ligatures
    # Letters of a script from right to left may leave a PDF in another order.
    assert [word for word in words if word.isascii() and word not in text] == []
