"""Progress: nothing under papermill or within the patience, then a bar with what is done and the newest note."""

from __future__ import annotations

import sys
import time

import pytest

from memagent_lib import status_line as module
from memagent_lib.status_line import status_line


def test_longer_work_is_counted_and_waits_are_named(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(module, "LOG_EVERY_S", 0.0)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    with status_line("reading", 20, "documents") as reading:
        reading.advance()
        assert " left" not in capsys.readouterr().err  # the first document says nothing of the others
        reading.advance(9, note="an owl")
    with status_line("loading"):
        time.sleep(0.1)
    err = capsys.readouterr().err
    assert "reading: 10 of 20 documents, " in err and " left, " in err and "an owl" in err and "loading ..." in err


def test_a_notebook_of_papermill_stays_clean(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setitem(sys.modules, "ipykernel", module)
    with status_line("reading", 2, "documents") as reading:
        reading.advance()
    assert capsys.readouterr() == ("", "")
