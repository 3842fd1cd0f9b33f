"""A reading that is killed goes on where it was."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hostile import serving

from experiments.readers.gated import GATE
from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted, open_backend
from memagent_lib.documents import read_files
from memagent_lib.driver import Observer
from memagent_lib.journal import Journal, JournalError, append_record, key_of, records
from memagent_lib.readers import reader_named
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply

SETTINGS = {"reader": "overwrite", "model": "small"}
DOCUMENT = " ".join(f"Note {i}: a small boat drifts past the old mill, number {i * 37}." for i in range(60))
PROMPT = Prompt(Kind.READ, "q", "mémoire", Chunk(3, "text", 30, 34, 1))


def short(text: str) -> str:
    return f"seen {len(text)} {sum(map(ord, text)) % 997}"


def test_a_stored_turn_is_found_with_all_its_fields(tmp_path):
    reply = Reply("note \udc80 line\nbreak", "length", 9, 8, 7, "hm")
    with Journal(tmp_path / "j", SETTINGS) as journal:
        assert journal.reading().find(PROMPT) is None
        journal.reading().append(PROMPT, reply)
        journal.reading().append(PROMPT, Reply("two"))
    with Journal(tmp_path / "j", SETTINGS) as journal:
        assert journal.reading().find(PROMPT) == reply
        assert journal.reading().find(PROMPT) == Reply("two"), "a second asking is a second turn"
        assert journal.reading().find(PROMPT) is None


def test_everything_that_a_prompt_shows_is_part_of_its_key():
    others = [
        Prompt(GATE, "q", "mémoire", PROMPT.chunk),
        Prompt(Kind.READ, "Q", "mémoire", PROMPT.chunk),
        Prompt(Kind.READ, "q", "memoire", PROMPT.chunk),
        Prompt(Kind.READ, "q", "mémoire", Chunk(3, "texT", 30, 34, 1)),
        Prompt(Kind.READ, "q", "mémoire", Chunk(4, "text", 30, 34, 1)),
        Prompt(Kind.READ, "q", "mémoire"),
    ]
    assert len({key_of(p) for p in [PROMPT, *others]}) == 7


@pytest.mark.parametrize("cut", [1, 40])
def test_a_half_written_line_is_cut_off_and_the_rest_stays(tmp_path, cut):
    path = tmp_path / "j"
    with Journal(path, SETTINGS) as journal:
        journal.reading().append(PROMPT, Reply("one"))
        whole = path.stat().st_size
        journal.reading().append(Prompt(Kind.ANSWER, "q"), Reply("two"))
    os.truncate(path, whole + cut)
    with Journal(path, SETTINGS) as journal:
        assert path.stat().st_size == whole and journal.reading().find(Prompt(Kind.ANSWER, "q")) is None
        journal.reading().append(Prompt(Kind.ANSWER, "q"), Reply("again"))
    with Journal(path, SETTINGS) as journal:
        found = [journal.reading().find(prompt).text for prompt in (PROMPT, Prompt(Kind.ANSWER, "q"))]
    assert found == ["one", "again"]


def test_a_journal_of_another_job_is_refused_with_the_difference(tmp_path):
    Journal(tmp_path / "j", SETTINGS | {"template": {"read": "x", "gate": "y"}}).close()
    with open(tmp_path / "j", "ab") as file:
        file.write(b'{"reading": "", "tu')
    before = (tmp_path / "j").read_bytes()
    with pytest.raises(JournalError, match=r"model was 'small' and is 'large'; template\.gate was 'y' and is 'z'"):
        Journal(tmp_path / "j", SETTINGS | {"model": "large", "template": {"read": "x", "gate": "z"}})
    assert (tmp_path / "j").read_bytes() == before


@pytest.mark.parametrize(
    "foreign",
    [
        b"[1, 2]\n",
        b"a text file without a line break",
        b"\xff\xfe binary \x00\n",
    ],
)
def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path, foreign):
    (tmp_path / "other").write_bytes(foreign)
    with pytest.raises(JournalError, match="other is not a journal"):
        Journal(tmp_path / "other", SETTINGS)
    assert (tmp_path / "other").read_bytes() == foreign


@pytest.mark.parametrize(
    "damage",
    [b"not json\n", b"5\n", b'{"reading": "", "turn": "x", "reply": "one"}\n', b'{"reading": {}, "record": {}}\n'],
)
def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path, damage):
    with Journal(tmp_path / "j", SETTINGS) as journal:
        journal.reading().append(PROMPT, Reply("one"))
    whole = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(whole + damage + whole.splitlines(keepends=True)[1])
    with pytest.raises(JournalError, match=r"j: line 3 is damaged"):
        Journal(tmp_path / "j", SETTINGS)


def test_a_line_after_a_half_written_one_is_whole(tmp_path, monkeypatch):
    write = os.write

    def half(file: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return write(file, data[:10])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(tmp_path / "j", SETTINGS) as journal:
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space left"):
            journal.reading().append(PROMPT, Reply("one"))
        monkeypatch.setattr(os, "write", write)  # another thread, after some space was freed
        journal.reading("b").append(PROMPT, Reply("two"))
        journal.finish("a", {"answer": 1})
        assert journal.record("a") == {"answer": 1}
    with Journal(tmp_path / "j", SETTINGS) as journal:
        assert journal.reading("b").find(PROMPT) == Reply("two")


def test_readings_share_no_turns_and_a_finished_one_is_a_record(tmp_path):
    with Journal(tmp_path / "j", SETTINGS) as journal:
        journal.reading("a").append(PROMPT, Reply("of a"))
        journal.reading("b").append(PROMPT, Reply("of b"))
        journal.finish("a", {"answer": 1})
    with Journal(tmp_path / "j", SETTINGS) as journal:
        assert journal.record("a") == {"answer": 1} and journal.record("b") is None
        assert journal.reading("a").find(PROMPT) is None
        assert journal.reading("b").find(PROMPT).text == "of b"
        journal.finish("a", {"answer": 2})
        journal.finish("b", {"error": "gone"}, failed=True)
    assert list(records(tmp_path / "j")) == [{"answer": 2}, {"error": "gone"}]
    with Journal(tmp_path / "j", SETTINGS) as journal:
        assert journal.record("a") == {"answer": 2}
        assert journal.reading("b").find(PROMPT).text == "of b", "the turns of a failed reading are not lost"


def test_records_of_a_growing_file_are_its_whole_lines(tmp_path):
    for number in range(3):
        append_record(tmp_path / "r", f"{number}", {"n": number, "text": "\udc80"})
    append_record(tmp_path / "r", "1", {"n": 9})
    whole = (tmp_path / "r").read_bytes()
    (tmp_path / "r").write_bytes(whole + b'{"reading": "4", "rec')
    assert [r["n"] for r in records(tmp_path / "r")] == [0, 9, 2]
    append_record(tmp_path / "r", "4", {"n": 4})
    assert [r["n"] for r in records(tmp_path / "r")] == [0, 9, 2, 4]
    (tmp_path / "r").write_bytes(whole.replace(b'{"n": 0,', b'{"n": 0 '))
    with pytest.raises(JournalError, match="line 1 is damaged"):
        list(records(tmp_path / "r"))


def test_two_processes_cannot_write_one_journal(tmp_path):
    with Journal(tmp_path / "j", SETTINGS), pytest.raises(JournalError, match="another process is writing"):
        Journal(tmp_path / "j", SETTINGS)
    Journal(tmp_path / "j", SETTINGS).close()


@pytest.mark.parametrize("name", ["overwrite", "map_merge", "multislot", "gated", "recall", "retrieving"])
def test_every_reader_resumes_from_any_turn_with_the_same_result(tmp_path, encoder, name):
    document = DOCUMENT[:600]
    calm = Scripted(short)
    whole = Agent(encoder, calm, reader_named(name)).read(document, "Which note?")
    for breaks_at in range(0, len(calm.requests), 3):
        asked, path = [], tmp_path / f"{breaks_at}"

        def shaky(text: str, asked=asked, breaks_at=breaks_at) -> str:
            asked.append(text)
            if len(asked) == breaks_at + 1:
                raise BackendError("gone")
            return short(text)

        agent = Agent(encoder, Scripted(shaky), reader_named(name))
        with Journal(path, SETTINGS) as journal, pytest.raises(BackendError):
            agent.read(document, "Which note?", observer=Observer(store=journal.reading()))
        kept = path.read_text().count("\n") - 1
        with Journal(path, SETTINGS) as journal:
            again = agent.read(document, "Which note?", observer=Observer(store=journal.reading()))
        assert again == whole
        assert len(asked) - breaks_at - 1 <= len(calm.requests) - kept + 8  # parts asked side by side may be under way


SCRIPT = """
import sys
from memagent_lib.backends import open_backend
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.documents import read_files
from memagent_lib.agent import Agent
from memagent_lib.text import Tokenizer
url, tokenizer, document, journal = sys.argv[1:]
budget = Budget(chunk_tokens=48, memory_tokens=24, answer_tokens=12, question_tokens=32)
encoder = Encoder(Tokenizer.load(tokenizer), Template.load("short"), budget)
agent = Agent(encoder, open_backend("openai", "small", base_url=url))
read_files(agent, [document], ["Which note?"], journal=journal)
"""


def test_a_reading_killed_many_times_ends_as_an_unbroken_one(tmp_path, encoder, tokenizer_folder):
    notes = tmp_path / "notes.txt"
    notes.write_text(DOCUMENT)

    def finish(server, journal):
        agent = Agent(encoder, open_backend("openai", "small", base_url=server.url))
        reading = read_files(agent, [notes], ["Which note?"], journal=journal)
        agent.close()
        return reading.trace

    with serving() as server:
        expected = finish(server, tmp_path / "calm")
    with serving() as server:
        answer = server.reply
        server.reply = lambda body: (time.sleep(0.05), answer(body))[1]
        for turns in (3, 5):
            seen = server.posts
            command = [sys.executable, "-c", SCRIPT, server.url, tokenizer_folder, str(notes), str(tmp_path / "killed")]
            with subprocess.Popen(command, cwd=Path(__file__).parents[1]) as process:
                while server.posts - seen < turns:
                    assert process.poll() is None
                    time.sleep(0.01)
                process.send_signal(signal.SIGKILL)
        server.reply = answer
        resumed = finish(server, tmp_path / "killed")
        asked_twice = sum(n - 1 for n in server.answered.values())
    assert resumed == expected
    assert len(expected.turns) > 10
    assert asked_twice <= 2, "at most the one turn that was under way at each kill"
