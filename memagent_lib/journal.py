"""The journal of a long job: an append-only file from which a job killed at any moment can continue.

Line 1 is the job's identity: everything that its replies depend on. Each further line is a finished turn or the record
of a finished reading. A turn is found by the content of its prompt, so a reader needs no saved state to resume. Each
line is one ``write``, so it survives a crash of the process, but not of the machine. This module depends on prompts and
replies, not on examples or scores.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.errors import UserError
from memagent_lib.settings import flatten
from memagent_lib.trace import Prompt, Reply

VERSION = 2


class JournalError(UserError, ValueError):
    """The file is not a journal, belongs to another job, is damaged, or is being written by another process."""


class _Line(NamedTuple):
    start: int
    size: int


class Journal:
    """The turns and records of all readings that share an ``identity``. It is a context manager.

    Raises :class:`JournalError`, and leaves the file unchanged, if the file is not a journal, has another identity, is
    damaged, or is being written by another process.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, Any]):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._turns: defaultdict[str, dict[str, deque[_Line]]] = defaultdict(dict)
        self._records: dict[str, _Line] = {}
        # A round trip through JSON, so that it compares equal to an identity that was read from a file.
        self._identity = json.loads(json.dumps(dict(identity), sort_keys=True, default=str))
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            # The kernel releases the lock when the process dies, however it dies.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._end = self._load()
        except BlockingIOError as taken:
            os.close(self._file)
            raise JournalError(f"another process is writing {self.path}; choose another journal") from taken
        except BaseException:  # an interrupt, too, must not leave the file locked
            os.close(self._file)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reading(self, key: str = "") -> ReadingTurns:
        """Return the store for the turns of one reading."""
        return ReadingTurns(self, key)

    def finish(self, key: str, record: Mapping[str, Any], failed: bool = False) -> None:
        """Store the record of a finished reading. A later record with the same key replaces it.

        Turns of a ``failed`` reading remain, so that a retry can use them.
        """
        line = self._write({"reading": key, "record": record} | ({"failed": True} if failed else {}))
        with self._lock:
            self._ended(key, line, failed)

    def record(self, key: str) -> dict[str, Any] | None:
        """Return the record of a finished reading, or ``None`` if there is none."""
        line = self._records.get(key)
        return self._read(line)["record"] if line else None

    def close(self) -> None:
        """Close the file. It remains on disk for a later run."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _ended(self, key: str, line: _Line, failed: bool) -> None:
        self._records[key] = line
        if not failed:
            # A finished reading is not read again, so its index of turns only takes memory.
            self._turns.pop(key, None)

    def _load(self) -> int:
        """Index the whole file, then cut off a last line that a killed process left half written.

        Return the file's new size.
        """
        header = _encoded({"memagent_journal": VERSION, "identity": self._identity})
        with open(self.path, "rb") as file:
            first = file.readline()
            if not first.endswith(b"\n") and header.startswith(first):  # new, or killed in its first line
                os.ftruncate(self._file, 0)
                return self._append(header, 0)
            self._require_same(first)
            end = len(first)
            for number, line in enumerate(file, 2):
                if not line.endswith(b"\n"):
                    break
                self._index(line, _Line(end, len(line)), number)
                end += len(line)
        os.ftruncate(self._file, end)
        return end

    def _index(self, data: bytes, line: _Line, number: int) -> None:
        try:
            entry = json.loads(data)
            if "record" in entry:
                dict(entry["record"])
                self._ended(entry["reading"], line, entry.get("failed", False))
            else:
                Reply(**entry["reply"])
                self._turns[entry["reading"]].setdefault(entry["turn"], deque()).append(line)
        except (KeyError, ValueError, TypeError, RecursionError) as odd:
            problem = f"line {number} is damaged ({odd!r}); remove it, and its turn is read again"
            raise JournalError(f"{self.path}: {problem}") from odd

    def _require_same(self, first: bytes) -> None:
        try:
            header = json.loads(first)
            version = header["memagent_journal"]
            before = header["identity"]
        except (ValueError, KeyError, TypeError) as odd:
            raise JournalError(f"{self.path} is not a journal, and was left as it is; choose another path") from odd
        before = flatten({"version": version} | before)
        now = flatten({"version": VERSION} | self._identity)
        if before != now:
            changed = [name for name in sorted(before | now) if before.get(name) != now.get(name)]
            words = "; ".join(f"{name} was {before.get(name)!r:.60} and is {now.get(name)!r:.60}" for name in changed)
            raise JournalError(f"{self.path} belongs to another job: {words}; choose another journal")

    def _write(self, entry: dict[str, Any]) -> _Line:
        data = _encoded(entry)
        with self._lock:
            line = _Line(self._end, len(data))
            self._end = self._append(data, self._end)
        return line

    def _append(self, data: bytes, end: int) -> int:
        size = len(data)
        try:
            while data:  # a short write is continued
                data = data[os.write(self._file, data) :]
        except OSError:  # a full disk
            os.ftruncate(self._file, end)  # another thread's next line would be glued to the half one
            raise
        return end + size

    def _read(self, line: _Line) -> dict[str, Any]:
        # pread has no shared position, so readers in several threads need no lock.
        return json.loads(os.pread(self._file, line.size, line.start))


class ReadingTurns(NamedTuple):
    """The turns of one reading in a journal (a :class:`memagent_lib.driver.TurnStore`)."""

    journal: Journal
    key: str

    def find(self, prompt: Prompt) -> Reply | None:
        """Return the next stored reply to ``prompt``, each once, or ``None``."""
        with self.journal._lock:
            waiting = self.journal._turns[self.key].get(key_of(prompt))
            line = waiting.popleft() if waiting else None
        return Reply(**self.journal._read(line)["reply"]) if line else None

    def append(self, prompt: Prompt, reply: Reply) -> None:
        self.journal._write({"reading": self.key, "turn": key_of(prompt), "reply": reply.to_record()})


def records(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the last record of each reading in a journal or in a file written by :func:`append_record`.

    The file may still be growing: an incomplete last line is ignored. Any other damaged record raises
    :class:`JournalError` with the line's number. Lines of turns are not checked.
    """
    lines: dict[str, _Line] = {}
    with open(path, "rb") as file:
        end = 0
        for number, line in enumerate(file, 1):
            # The test on bytes spares parsing the turns, which are most of the file.
            if line.endswith(b"\n") and b'"record"' in line:
                try:
                    lines[json.loads(line)["reading"]] = _Line(end, len(line))
                except (ValueError, KeyError, TypeError) as odd:
                    raise JournalError(f"{path}: line {number} is damaged ({odd}); remove that line") from odd
            end += len(line)
        for line in lines.values():
            file.seek(line.start)
            yield json.loads(file.read(line.size))["record"]


def append_record(path: str | Path, key: str, record: Mapping[str, Any]) -> None:
    """Append one record to a file that several processes may write at the same time. :func:`records` reads it."""
    with open(path, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":  # half a line, of a killed process or a full disk: the next would be glued to it
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(_encoded({"reading": key, "record": record}))


def key_of(prompt: Prompt) -> str:
    """Return a digest of a prompt's content, by which its reply is stored and found."""
    # Positions too: equal text in two places of a document may get different replies.
    chunk = prompt.chunk
    place = f"{chunk.index} {chunk.start} {chunk.end}\0{chunk.text}" if chunk else ""
    return digest("\0".join((prompt.kind.name, prompt.question, prompt.memory, str(prompt.memories), place)))


def digest(text: str) -> str:
    """Return 32 hex digits that identify a text, which may contain lone surrogates."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _encoded(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
