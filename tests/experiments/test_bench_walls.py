from __future__ import annotations

import pytest

from experiments.studies.speed.walls import WallsBench, bench_walls


@pytest.mark.slow
def test_a_wait_has_wall_and_processor_seconds_and_an_aim() -> None:
    found = bench_walls(WallsBench(documents=0, chunks=2, readings=0, board=0))
    assert list(found) == ["read"]
    ratio = found["read"].ratios[0]
    row = found["read"].rows[0]
    assert ratio.what == "seconds to read 2 chunks" and ratio.at_most == 40
    assert ratio.rounds == (row["seconds"],) and row["processor_seconds"] > 0


def test_a_missing_browser_is_an_error_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="make chromium installs it, or set readings=0 and board=0"):
        bench_walls(WallsBench(readings=4, board=1), lines.append)
    assert lines == []


@pytest.mark.browser
@pytest.mark.slow
def test_the_leaderboards_page_shows_every_policy() -> None:
    found = bench_walls(WallsBench(documents=0, chunks=0, readings=0, board=3))["leaderboard"]
    assert [row["page"] for row in found.rows] == ["written", "opened"]
    assert found.ratios[1].at_most == 2 and found.ratios[1].value > 0
