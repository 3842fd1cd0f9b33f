"""The leaderboard in a real browser: three readers and four policies, sorted and filtered by each of its columns."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Page, expect

from memagent_lib.inspector import save_leaderboard

pytestmark = pytest.mark.browser
READERS = ("overwrite", "gated", "retrieved")
POLICIES = ("base", "sft", "trained", "trained, seed 1")


@pytest.fixture
def board() -> pd.DataFrame:
    """Rows of two sets, six lengths, two judges and two versions of the code; scores and costs are all different."""
    made = []
    sets = product(("needle", "update"), (1, 2, 4, 16, 64, 256), POLICIES, READERS, ("boxed", "wise"))
    for number, (task, chunks, policy, reader, judge) in enumerate(sets):
        accuracy = number * 37 % 101 / 100
        made.append(
            {"task": task, "file": f"test_{chunks}.parquet", "chunks": chunks, "policy": policy, "reader": reader,
             "settings": "", "accuracy": accuracy, "low": max(0, accuracy - 0.1), "high": min(1, accuracy + 0.1),
             "scored": 120, "scored_documents": 120, "failed": 0, "undecided": 0,
             "tokens": 1000.0 + number * 7919 % 5003, "turns": chunks + 1.0,
             "seconds": 1.5, "judge": judge, "code": "c1" if policy == "base" else "c2", "documents": "d",
             "started": pd.Timestamp(2026, 1, 1), "run_id": f"run{number}"}
        )  # fmt: skip
    return pd.DataFrame(made)


def column(page: Page, name: str) -> list[str]:
    heads = page.locator(".ml th").all_inner_texts()
    at = [head.split(" ")[0] for head in heads].index(name)
    return page.locator(f".ml tbody tr td:nth-child({at + 1})").all_inner_texts()


def test_a_board_fits_beside_jupyterlabs_list_of_files(board, page: Page, tmp_path: Path) -> None:
    names = {name: f"Qwen2.5-7B-Instruct {name} by reinforcement" for name in POLICIES}
    one_judge = board[board["judge"] == "boxed"]
    described = one_judge.assign(
        policy=one_judge["policy"].map(names), settings="memory 1024, temperature 0.7", capture=0.5
    )
    page.set_viewport_size({"width": 1020, "height": 800})
    page.set_content(save_leaderboard(described, tmp_path / "board.html").read_text(encoding="utf-8"))
    table = page.locator(".ml-rows")
    assert table.evaluate("rows => rows.scrollWidth - rows.clientWidth") == 0
    visible = page.locator(".ml th:visible").all_inner_texts()
    assert visible[:3] + visible[-3:] == ["task", "file", "length", "failed", "tokens", "seconds, median"]
    page.get_by_label("all columns").check()
    hidden = {"capture", "turns", "judge", "code", "documents", "started", "run"}
    assert set(page.locator(".ml th:visible").all_inner_texts()) - set(visible) == hidden


def test_a_board_sorts_and_filters_by_set_length_judge_and_code(board, page: Page, tmp_path: Path) -> None:
    page.set_content(save_leaderboard(board, tmp_path / "board.html").read_text(encoding="utf-8"))
    count = page.locator(".ml-bar small")
    expect(count).to_have_text("288 of 288 rows")
    expect(page.get_by_role("columnheader", name="judge")).to_be_visible()  # which alone tells rows apart
    page.locator(".ml th button", has_text="tokens").click()
    tokens = [int(text.replace(",", "")) for text in column(page, "tokens")]
    assert tokens == sorted(tokens, reverse=True) and len(set(tokens)) > 200
    page.locator(".ml th button", has_text="accuracy").click()
    page.locator(".ml th button", has_text="accuracy").click()
    shares = [float(text.split(" %")[0]) for text in column(page, "accuracy")]
    assert shares == sorted(shares)
    for name, value, rows in (("task", "needle", 144), ("length", "16", 24), ("judge", "wise", 12), ("code", "c1", 3)):
        page.get_by_label(f"filter by {name}").select_option(value)
        expect(count).to_have_text(f"{rows} of 288 rows")
        assert set(column(page, name)) == {value}
    page.get_by_label("filter by reader").select_option("gated")
    assert column(page, "policy") == ["base"] and column(page, "reader") == ["gated"]
    warning = page.locator(".ma-warning").first
    expect(warning).to_have_text(
        "needle test_1.parquet at 1 chunk: rows of 2 judges, 2 versions of the code are not compared with each other"
    )


def test_the_csv_button_saves_the_file_of_the_command(board, page: Page, tmp_path: Path) -> None:
    hard = board.assign(policy=board["policy"].replace("sft", 'sft, "warm"\nstart'), capture=float("nan"))
    page.set_content(save_leaderboard(hard, tmp_path / "board.html").read_text(encoding="utf-8"))

    def saved() -> str:
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        return download.value.path().read_text(encoding="utf-8")

    assert saved() == save_leaderboard(hard, tmp_path / "board.csv").read_text(encoding="utf-8")
    page.get_by_label("filter by length").select_option("16")
    page.locator(".ml th button", has_text="accuracy").click()
    listed = hard[hard["chunks"] == 16].sort_values("accuracy", ascending=False, kind="stable")
    assert saved() == listed.to_csv(index=False)


def test_a_page_in_a_sandbox_opens_its_csv_to_be_copied(board, page: Page, tmp_path: Path) -> None:
    """As Jupyter serves a page below /files, where the browser saves nothing."""
    text = save_leaderboard(board, tmp_path / "board.html").read_text(encoding="utf-8")
    headers = {"Content-Type": "text/html", "Content-Security-Policy": "frame-ancestors 'self'; sandbox allow-scripts"}
    page.route("http://127.0.0.1/files/board.html", lambda route: route.fulfill(body=text, headers=headers))
    page.goto("http://127.0.0.1/files/board.html")
    page.get_by_role("button", name="CSV").click()
    copied = page.get_by_role("dialog").get_by_role("textbox", name="leaderboard.csv").input_value()
    assert copied == save_leaderboard(board, tmp_path / "board.csv").read_text(encoding="utf-8")
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
