"""A reading's finished turns on disk, one line each: kill the process at any moment, start again, and it goes on where it was.

A journal is found again by content: a prompt that was answered is answered from the journal, so a reader needs no state of
its own to resume. Written with one ``write`` per turn, which survives the death of the process (not of the machine).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memagent_lib.trace import REPLY_FACTS, Prompt, Reply


class JournalError(ValueError):
    """A journal that belongs to another reading, or that another process is writing."""


class Journal:
    """The turns of one reading. ``settings`` says which reading it is: whatever changes replies (reader, model, wording, budget).

    Opening a journal whose settings differ is an error that names the difference. A context manager.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any]):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._claim()
            self._kept: defaultdict[str, deque[Reply]] = defaultdict(deque)
            self.resumed = self._load(json.loads(json.dumps(dict(settings))))
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def found(self, prompt: Prompt) -> Reply | None:
        """The kept reply to ``prompt``. A prompt that was asked twice has two replies, in their order."""
        with self._lock:
            waiting = self._kept.get(key_of(prompt))
            return waiting.popleft() if waiting else None

    def keep(self, prompt: Prompt, reply: Reply) -> None:
        self._write({"turn": key_of(prompt), "reply": {name: getattr(reply, name) for name in REPLY_FACTS}})

    def close(self) -> None:
        """Let go of the file; the journal stays for a later try."""
        os.close(self._file)

    def _claim(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            raise JournalError(
                f"another process is writing {self.path}; wait for it, or give another journal"
            ) from taken

    def _load(self, settings: dict[str, Any]) -> int:
        with open(self.path, "rb") as file:
            whole, _, broken = file.read().rpartition(b"\n")
        if broken:  # a line that a killed process left half written
            os.ftruncate(self._file, len(whole) + 1 if whole else 0)
        lines = whole.split(b"\n") if whole else []
        if not lines:
            self._write({"journal": 1, "settings": settings})
            return 0
        self._same(lines[0], settings)
        for line in lines[1:]:
            record = json.loads(line)
            self._kept[record["turn"]].append(Reply(**record["reply"]))
        return len(lines) - 1

    def _same(self, line: bytes, settings: dict[str, Any]) -> None:
        try:
            before = json.loads(line)["settings"]
        except (ValueError, KeyError, TypeError) as odd:
            raise JournalError(f"{self.path} is no journal of a reading; give another path") from odd
        changed = [name for name in sorted(before.keys() | settings.keys()) if before.get(name) != settings.get(name)]
        if changed:
            told = "; ".join(
                f"{name} was {_short(before.get(name))} and is {_short(settings.get(name))}" for name in changed
            )
            raise JournalError(
                f"{self.path} belongs to another reading: {told}; give another journal, or delete this one to start over"
            )

    def _write(self, record: dict[str, Any]) -> None:
        data = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        with self._lock:
            while data:  # a full disk raises here; a short write goes on
                data = data[os.write(self._file, data) :]


def key_of(prompt: Prompt) -> str:
    """What a prompt is found by: everything that it shows and asks."""
    chunk = prompt.chunk
    place = f"{chunk.index} {chunk.start} {chunk.end}\0{chunk.text}" if chunk else ""
    shown = "\0".join((str(prompt.kind), prompt.question, prompt.memory, str(prompt.memories), place))
    return hashlib.sha256(shown.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
