"""One line of progress: what is done, what is left, what was seen last; in a notebook, a terminal and a log."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from memagent_lib import status_line as module
from memagent_lib.status_line import StatusLine, status_line


def test_a_line_has_what_is_done_the_time_left_and_the_note() -> None:
    reading = StatusLine("reading", 36, "chunks")
    assert reading.line(5) == "reading: 0 of 36 chunks, 0:05 so far"
    reading.advance(9, "The code of the owl\nis 4711.")
    assert reading.line(20) == "reading: 9 of 36 chunks, 1:00 left, 0:20 so far · The code of the owl is 4711."
    reading.advance(27, "x" * 70)
    assert reading.line(3725) == f"reading: 36 of 36 chunks, 1:02:05 so far · … {'x' * 60}"


def test_one_long_document_is_done_by_parts() -> None:
    reading = StatusLine("reading", 1, "documents")
    for _ in range(3):
        reading.advance(0.1)
    assert reading.line(30) == "reading: 0.3 of 1 documents, 1:10 left, 0:30 so far"


def test_a_wait_without_units_names_what_it_waits_for() -> None:
    assert StatusLine("loading trained with vllm").line(5) == "loading trained with vllm, 0:05 so far"


def test_the_last_line_has_what_was_done_and_how_long() -> None:
    reading = StatusLine("reading", 36, "chunks")
    reading.advance(35, "The code of the owl is 4711.")
    assert reading.last_line(62) == "reading: 35 of 36 chunks, took 1:02"
    assert StatusLine("loading trained with vllm").last_line(5) == "loading trained with vllm, took 0:05"


def test_the_time_left_is_that_of_the_work_if_units_differ() -> None:
    reading = StatusLine("reading", 12, "documents", {"long": (2, 100.0), "short": (10, 1.0)})
    reading.advance(1, part="long")
    assert reading.line(100) == "reading: 1 of 12 documents, 1:50 left, 1:40 so far"
    reading.advance(1, part="long")
    assert reading.line(200) == "reading: 2 of 12 documents, 0:10 left, 3:20 so far"
    reading.advance(10, part="short")
    assert reading.line(210) == "reading: 12 of 12 documents, 3:30 so far"


def test_work_within_the_patience_displays_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with status_line("reading", 1, "documents") as reading:
        reading.advance()
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_lines_until_the_work_ends(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # another test may have loaded a notebook's kernel
    printed = threading.Event()
    monkeypatch.setattr("builtins.print", lambda line, **_: (lines.append(line), printed.set()))
    lines: list[str] = []
    monkeypatch.setattr("memagent_lib.status_line.LOG_EVERY_S", 0.01)
    with status_line("reading", 4, "chunks") as reading:
        reading.advance(2)
        assert printed.wait(30)
    assert lines[0].startswith("reading: 2 of 4 chunks, 0:00 left")
    assert lines[-1] == "reading: 2 of 4 chunks, took 0:00"
    assert len(lines) >= 2


class Terminal(io.StringIO):
    """A terminal that sets ``displayed`` once the status line is on it."""

    def __init__(self) -> None:
        super().__init__()
        self.displayed = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "reading" in text:
            self.displayed.set()
        return super().write(text)


def test_output_in_a_file_is_complete_beside_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", file)
    with status_line("reading", 4, "chunks"):
        assert terminal.displayed.wait(30)
        print("the answer")
    assert file.getvalue() == "the answer\n"
    assert "the answer" not in terminal.getvalue()


def test_a_line_inside_another_is_not_displayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    with status_line("the outer line"), status_line("the inner line"):
        displayed = {thread.name for thread in threading.enumerate()}
    assert "the outer line" in displayed and "the inner line" not in displayed
    with status_line("the next line"):
        assert "the next line" in {thread.name for thread in threading.enumerate()}


def test_a_notebook_gets_one_text_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = threading.Event()
    texts: list[str] = []

    class Output:
        def update(self, data: dict[str, str], raw: bool) -> None:
            texts.append(data["text/plain"])
            replaced.set()

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Output:
        texts.append(data["text/plain"])
        return Output()

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(module, "in_jupyter", lambda: True)
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    monkeypatch.setitem(sys.modules, "ipykernel", module)
    with status_line("loading trained with vllm"):
        assert replaced.wait(30)
    assert texts[0].startswith("loading trained with vllm, 0:01 so far")
    assert texts[-1].startswith("loading trained with vllm, took 0:0")
