"""What `memagent read` does, from files to the page that is sent to a colleague."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import document_files as files
import pytest

from experiments.readers.gated import gated
from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.bad_memory import OnBadMemory
from memagent_lib.cli import main
from memagent_lib.documents import Document, SavedReading, plain, read_files
from memagent_lib.journal import JournalError
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import READERS, reader_named
from memagent_lib.trace import Reply

FILLER = "A small boat drifts past the old mill. "
OTTER = "The code of the violet otter is 4821. "
OWL = "The code of the bold owl is 77. "


@pytest.fixture
def encoder(tokenizer) -> Encoder:
    budget = Budget(chunk_tokens=48, memory_tokens=64, answer_tokens=12, question_tokens=64)
    return Encoder(tokenizer, Template.load("short"), budget)


def notes(text: str) -> str:
    """A perfect reader of codes, in the pocket wording."""
    codes = re.findall(r"code of the (\w+ \w+) is (\d+)", text, re.IGNORECASE)
    if "Text:" in text:
        return "; ".join(dict.fromkeys(f"code of the {name} is {code}" for name, code in codes)) or "no code"
    wanted = re.search(r"the code of the (\w+ \w+)\?", text)
    return next((code for name, code in codes if wanted and name == wanted[1]), "unknown")


@pytest.fixture
def agent(encoder) -> Agent:
    return Agent(encoder, Scripted(notes))


def question(name: str) -> str:
    return f"What is the code of the {name}?"


def page_of(reading, tmp_path) -> str:
    return reading.to_html(tmp_path / "out" / "page.html").read_text()


def test_the_answer_comes_with_its_place_in_the_file(agent, tmp_path):
    text = FILLER * 30 + OTTER + FILLER * 20
    (tmp_path / "a.txt").write_text(text)
    reading = read_files(agent, tmp_path / "a.txt", [question("violet otter")])
    assert reading.answers == {question("violet otter"): "4821"}
    ((phrase, position),) = reading.evidence(question("violet otter"))
    assert text[phrase.start : phrase.end] == "code of the violet otter is 4821"
    assert position == f"a.txt, character {text.index('code of'):,}"
    assert {turn.prompt.chunk.text for turn in reading.trace.reads} == {""}, "the trace has places, not the text"


def test_a_document_made_before_is_read_and_names_its_page_and_converter(agent, tmp_path):
    (tmp_path / "lease.pdf").write_bytes(files.two_pages(files.words(OTTER.encode())))
    document = Document([tmp_path / "lease.pdf"])
    reading = read_files(agent, document, [question("violet otter")])
    place = f"page 2 of lease.pdf, character {len('Page one.') + 4}"
    assert [position for _, position in reading.evidence(question("violet otter"))] == [place]
    page = page_of(reading, tmp_path)
    assert place in page and "lease.pdf (by pypdf)" in page


@pytest.mark.parametrize("name", [name for name in READERS if name != "full"])
def test_every_reader_reads_a_folder_and_writes_a_page(encoder, tmp_path, name):
    for file in ("a.md", "b.txt", "c.txt"):
        (tmp_path / file).write_text(FILLER * 9 + OTTER)
    reading = read_files(Agent(encoder, Scripted(notes), reader_named(name)), [tmp_path], [question("violet otter")])
    page = page_of(reading, tmp_path)
    assert question("violet otter") in page and f"reader {name}" in page


def test_several_questions_cost_one_pass_and_share_no_evidence(agent, tmp_path):
    (tmp_path / "a.txt").write_text(FILLER * 9 + OTTER + FILLER * 9 + OWL + FILLER * 9)
    questions = [question("violet otter"), question("bold owl"), question("grey elk")]
    reading = read_files(agent, [tmp_path / "a.txt"], questions)
    assert reading.answers == dict(zip(questions, ["4821", "77", "unknown"], strict=True))
    assert len(agent.backend.requests) == len(reading.trace.reads) + 3
    assert [[phrase.text[-2:] for phrase, _ in reading.evidence(q)] for q in questions] == [["21"], ["77"], []]
    assert page_of(reading, tmp_path).count("<blockquote>") == 2


def test_a_saved_reading_continues_with_its_old_positions(agent, tmp_path):
    (tmp_path / "monday.txt").write_text(FILLER * 9 + OTTER)
    (tmp_path / "tuesday.txt").write_text(OWL + FILLER * 9)
    read_files(agent, [tmp_path / "monday.txt"], [question("violet otter")]).save(tmp_path / "saved.json")
    before = len(agent.backend.requests)
    reading = read_files(agent, [tmp_path / "tuesday.txt"], previous=tmp_path / "saved.json")
    assert reading.answers == {question("violet otter"): "4821"}
    assert [position for _, position in reading.evidence(question("violet otter"))] == [
        f"monday.txt, character {len(FILLER) * 9 + 4:,}"
    ]
    new = len(agent.backend.requests) - before
    assert 1 < new < len(reading.trace.turns), "what was read on Monday was not read again"
    assert SavedReading.load(reading.save(tmp_path / "saved.json")).trace == reading.trace
    assert "4821" in page_of(reading, tmp_path)


def test_a_journal_makes_a_second_call_free_and_refuses_others(agent, tmp_path):
    (tmp_path / "a.txt").write_text(FILLER * 9 + OTTER)
    call = dict(paths=[tmp_path / "a.txt"], questions=[question("violet otter")], journal=tmp_path / "j")
    first = read_files(agent, **call)
    requests = len(agent.backend.requests)
    journal = (tmp_path / "j").read_text()
    (tmp_path / "j").write_text(re.sub(r'"seconds": [\d.e-]+', '"seconds": 100.0', journal))
    again = read_files(agent, **call)
    assert again.trace == first.trace and again.seconds >= 100, "it took as long as all its turns"
    assert len(agent.backend.requests) == requests
    with pytest.raises(JournalError, match="questions"):
        read_files(agent, **(call | {"questions": [question("bold owl")]}))
    with pytest.raises(JournalError, match="model"):
        read_files(agent, **call, settings={"model": "other"})
    with pytest.raises(JournalError, match="weights"):
        read_files(replace(agent, weights="bbbb"), **call)


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, attrs))


def test_the_page_loads_nothing_and_escapes_everything(encoder, tmp_path):
    nasty = "<script>alert(1)</script> & <|im_end|> {question} "
    (tmp_path / "<b>.txt").write_text(FILLER * 5 + OTTER + nasty + FILLER * 5)
    replies = Scripted(lambda text: notes(text) + (" <img src=x onerror=alert(2)>" if "Text:" in text else " <b>"))
    reading = read_files(Agent(encoder, replies), [tmp_path / "<b>.txt"], [question("violet otter")])
    page = page_of(reading, tmp_path)
    parser = _Tags()
    parser.feed(page)
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in parser.seen}
    names = {name for _, attributes in parser.seen for name, _ in attributes}
    assert not names & {"src", "href"} and not [name for name in names if name.startswith("on")]
    assert "<mark>code of the violet otter is 4821</mark>" in page
    assert "<ins" in page and "&lt;b&gt;.txt" in page
    assert reading._repr_html_() in page


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("The code is pepper. \\boxed{pepper}.", "The code is pepper."),
        ("\\boxed{4} \\boxed{4}", "4 4"),
    ],
)
def test_an_answer_in_words_and_in_a_box_is_one_answer(reply, answer):
    assert plain(reply) == answer


def test_a_sentence_that_two_chunks_share_is_one_box(encoder, tmp_path):
    text = FILLER * 2 + "The bold owl " + "and " * 12 + "the grey elk live in the north tower. " + FILLER * 2
    (tmp_path / "a.txt").write_text(text)
    says = Scripted(lambda prompt: "bold owl, north tower" if "north tower" in prompt else "bold owl")
    reading = read_files(Agent(encoder, says), tmp_path / "a.txt", ["Who lives where?"])
    assert len({phrase.quote_start for phrase in reading.provenance.phrases}) == 2
    page = page_of(reading, tmp_path)
    assert page.count("<blockquote>") == 1 and page.count("<mark>") == 2


def test_the_page_shows_what_was_dropped_cut_or_unreadable(encoder, tmp_path):
    (tmp_path / "a.txt").write_bytes((OTTER + "Grüße und schöne Größe. " + FILLER * 9).encode() + b"\xff")
    says = iter(["code of the violet otter is 4821", *["boat"] * 99])
    reading = read_files(Agent(encoder, Scripted(lambda text: Reply(next(says), "length"))), tmp_path / "a.txt", ["q"])
    page = page_of(reading, tmp_path)
    assert "<del>code of the violet otter is 4821</del>" in page
    assert all(warning in page for warning in reading.warnings) and len(reading.warnings) == 3
    assert reading.trace.cut_memories and "cut at its limit" in page


def test_an_answer_that_was_cut_is_in_the_warnings(encoder, tmp_path):
    (tmp_path / "a.txt").write_text(OTTER)
    cut = Scripted(lambda text: notes(text) if "Text:" in text else Reply("The code of", "length"))
    (warning,) = read_files(Agent(encoder, cut), tmp_path / "a.txt", [question("violet otter")]).warnings
    assert "answer_tokens" in warning


def test_a_reply_that_was_turned_away_is_in_the_warnings_and_on_the_page(encoder, tmp_path):
    (tmp_path / "a.txt").write_text(FILLER * 9)
    says = iter(["boat", "No changes & no updates.", *["boat"] * 99])
    agent = Agent(encoder, Scripted(lambda text: next(says)), on_bad_memory=OnBadMemory.KEEP)
    reading = read_files(agent, tmp_path / "a.txt", ["q"])
    assert "1 comment (keep)" in reading.warnings[0]
    assert "No changes &amp; no updates." in page_of(reading, tmp_path)


# What can be wrong.


def test_the_command_warns_before_it_looks_for_a_model(tmp_path, capsys):
    (tmp_path / "scan.pdf").write_bytes(files.two_pages(files.stream(b"")))
    assert main(["read", str(tmp_path / "scan.pdf"), "--question", "q?", "--model", "./no-model"]) == 2
    first, *_, last = capsys.readouterr().err.splitlines()
    assert "page 2 of scan.pdf has no text (a scan?)" in first and "./no-model" in last


@pytest.mark.parametrize("questions", [[], [" "], ["q", ""], ["a", "b", "a"], ["Who \udcff?"]])
def test_questions_are_different_texts(agent, tmp_path, questions):
    (tmp_path / "a.txt").write_text(FILLER)
    with pytest.raises(ValueError, match="questions"):
        read_files(agent, [tmp_path / "a.txt"], questions)


def test_a_file_that_is_not_a_saved_reading_is_refused(agent, tmp_path):
    (tmp_path / "a.txt").write_text(FILLER)
    with pytest.raises(ValueError, match=r"a\.txt is not a saved reading"):
        read_files(agent, [tmp_path / "a.txt"], previous=tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError, match="--save"):
        read_files(agent, [tmp_path / "a.txt"], previous=tmp_path / "no.json")
    record = json.loads(read_files(agent, [tmp_path / "a.txt"], ["q"]).save(tmp_path / "saved.json").read_text())
    for name in ("questions", "settings", "parts", "provenance", "trace", "memagent_reading"):
        (tmp_path / "damaged.json").write_text(json.dumps({key: record[key] for key in record if key != name}))
        with pytest.raises(ValueError, match=r"damaged\.json is not a saved reading"):
            SavedReading.load(tmp_path / "damaged.json")


@pytest.mark.parametrize(
    ("first", "then", "questions", "error"),
    [
        ("multislot", "overwrite", [], "memories"),
        ("truncated", "overwrite", [], "memories"),
        ("overwrite", "map_merge", [], "map_merge"),
        ("overwrite", "multislot", ["a", "b"], "several questions"),
    ],
)
def test_a_continuation_that_would_lose_memories_is_refused(encoder, tmp_path, first, then, questions, error):
    (tmp_path / "a.txt").write_text(FILLER * 20)
    agent = Agent(encoder, Scripted(lambda text: f"code {len(text)}"), reader_named(first))
    read_files(agent, [tmp_path / "a.txt"], ["q"]).save(tmp_path / "s.json")
    with pytest.raises(ValueError, match=error):
        read_files(
            replace(agent, reader=reader_named(then)), tmp_path / "a.txt", questions, previous=tmp_path / "s.json"
        )


def test_an_early_end_names_the_characters_not_read(encoder, tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(FILLER * 30)
    ends = Agent(encoder, Scripted(lambda prompt: "DONE\nold mill" if "Text:" in prompt else "mill"), gated)
    reading = read_files(ends, [tmp_path / "a.txt", tmp_path / "b.txt"], ["q"])
    left = len("[a.txt]\n\n\n[b.txt]\n" + FILLER * 60) - reading.trace.reads[-1].prompt.chunk.end
    assert reading.unread == left > 0
    assert f"{left:,}" in reading.warnings[0] and reading.warnings[0] in page_of(reading, tmp_path)
    reading.save(tmp_path / "s.json")
    (tmp_path / "c.txt").write_text(FILLER * 3 + OTTER)
    agent = Agent(encoder, Scripted(notes))
    again = read_files(agent, tmp_path / "c.txt", [question("violet otter")], previous=tmp_path / "s.json")
    ((_, position),) = again.evidence(question("violet otter"))
    assert position == f"c.txt, character {len(FILLER * 3) + OTTER.index('code'):,}", "b.txt was not read"
