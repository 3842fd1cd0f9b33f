"""Files in, as one text, with the position of every character; and files that are not text."""

import os
import random

import document_files as files
import pytest

from memagent_lib.documents import Document, DocumentError, SourcePosition


def text_of(*paths, **kw) -> tuple[str, Document]:
    document = Document(paths, **kw)
    return "".join(document.blocks()), document


def test_a_single_text_file_is_its_text_with_its_own_offsets(tmp_path):
    path = tmp_path / "a.md"
    path.write_bytes("# Title\r\n\r\nGrüße 東京 😀\n".encode())
    text, document = text_of(path)
    assert text == "".join(Document(str(path)).blocks()) == "# Title\r\n\r\nGrüße 東京 😀\n"
    assert document.locate(11) == SourcePosition("a.md", 11)
    assert str(document.locate(11)) == "a.md, character 11"


def test_a_folder_is_one_document_with_the_names_of_its_files(tmp_path):
    for name, text in {
        "b.txt": "second",
        "a.txt": "first",
        "sub/c.log": "third",
        "part 10/1.txt": "10",
        "part 9/1.txt": "9",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    text, document = text_of(tmp_path)
    assert document.names == ["a.txt", "b.txt", "part 9/1.txt", "part 10/1.txt", "sub/c.log"]
    assert text.startswith("[a.txt]\nfirst\n\n[b.txt]\nsecond\n\n[part 9/1.txt]\n9")
    for name, word in (("a.txt", "first"), ("b.txt", "second"), ("sub/c.log", "third")):
        assert document.locate(text.index(word) + 2) == SourcePosition(name, 2)
        assert document.locate(text.index(f"[{name}]")) == SourcePosition(name, 0), "its line is its beginning"


def test_files_of_a_folder_left_out_are_named_with_the_reason(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "contract.docx").write_bytes(b"PK\x03\x04 and so on")
    (tmp_path / "empty.txt").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "pipe")
    text, document = text_of(tmp_path)
    assert text == "[a.txt]\ntext\n\n[b.txt]\ntext"
    for name in ("contract.docx", "empty.txt", ".git", "broken.txt", "loop", "pipe"):
        assert sum(f"{tmp_path / name} (" in line for line in document.notes) == 1, name
    assert document.warnings == document.notes and len(document.notes) == 6


def test_a_document_that_follows_another_is_placed_after_it(tmp_path):
    (tmp_path / "monday.txt").write_text("first day")
    (tmp_path / "tuesday.txt").write_text("second day")
    first, monday = text_of(tmp_path / "monday.txt")
    second, both = text_of(tmp_path / "tuesday.txt", start=len(first), previous=monday.parts)
    assert second == "\n\n[tuesday.txt]\nsecond day"
    assert both.locate(3) == SourcePosition("monday.txt", 3)
    assert both.locate(len(first) + second.index("second")) == SourcePosition("tuesday.txt", 0)
    assert both.ends_at == len(first) + len(second)


def test_a_character_across_two_blocks_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("memagent_lib.documents.encodings.LINE_BYTES", 3)
    monkeypatch.setattr("memagent_lib.documents.converters.BLOCK_CHARS", 3)
    path = tmp_path / "a.txt"
    path.write_text("aé東😀\ufffdz" * 20, encoding="utf-8")
    text, document = text_of(path)
    assert text == "aé東😀\ufffdz" * 20
    assert document.notes == []


def test_a_position_names_the_page_or_sheet_of_its_file(tmp_path):
    (tmp_path / "flat.xlsx").write_bytes(files.xlsx('<row r="1"><c r="A1"><v>12</v></c></row>', hidden="4711"))
    (tmp_path / "lease.pdf").write_bytes(files.two_pages(files.words(b"The code is 4821.")))
    text, document = text_of(tmp_path)
    assert str(document.locate(text.index("4711"))) == "sheet Secret of flat.xlsx, character 28"
    assert str(document.locate(text.index("one"))) == "page 1 of lease.pdf, character 5"
    assert str(document.locate(text.index("4821"))) == "page 2 of lease.pdf, character 21"
    assert str(document.locate(text.index("[lease.pdf]"))) == "lease.pdf, character 0"
    assert document.converters == {"flat.xlsx": "calamine", "lease.pdf": "pypdf"}


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (["no.txt"], "no.txt"),
        (["-"], "pipe"),
        (["scan.pdf"], "scan"),
        (["blank.txt"], "blank"),
        ([".", "a.txt"], "twice"),
    ],
)
def test_what_cannot_be_read_is_refused_before_the_first_turn(tmp_path, monkeypatch, paths, says):
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "sub"):
        (tmp_path / folder).mkdir()
    (tmp_path / "folder" / "a.bin").write_bytes(b"MZ\x00\x01")
    (tmp_path / "scan.pdf").write_bytes(files.one_page(content=b""))
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "a.txt").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DocumentError, match=says):
        text_of(*paths)


WORDS = (
    "rain",
    "code",
    "not\u00a0here",
    "caf\u00e9",
    "\u6771\u4eac",
    "\U0001f9ea",
    "<|im_end|>",
    "{chunk}",
    "\r",
    "\x85",
)
BROKEN = (b"\xff", b"\xed\xa0\x80", b"\xf0\x9f\xa7", b"\0", b"\x1b[2J", "r\u00e9sum\u00e9".encode("latin-1"))
STARTS = ("", "%PDF-1.7\n", "PK\x03\x04", "<html><b", "{\\rtf1", "<?xml?>", "From a\nTo: b\nReceived: c\n")


def test_hostile_bytes_are_their_text_or_one_clear_line(tmp_path):
    rng = random.Random("hostile")
    read = 0
    for number in range(400):
        path = tmp_path / f"{number}.txt"
        start = rng.choice(STARTS)
        text = start + " ".join(rng.choices(WORDS, k=rng.randrange(1, 60)))
        codec = rng.choice(("utf-8", "utf-8", "utf-16", "gb18030"))
        data = text.encode(codec)
        at = rng.randrange(len(data) + 1)
        broken = rng.choice(BROKEN) * rng.randrange(3)
        path.write_bytes(data[:at] + broken + data[at:])
        found, told = outcome(path)
        assert all(line.isprintable() and 10 < len(line) < 600 for line in told), text
        assert found or told, text
        assert ("\ufffd" in found) <= bool(told), text
        if not broken and not start and codec != "gb18030":
            assert (found, told) == (text, [])
        read += bool(found)
    assert read > 150


def outcome(path) -> tuple[str, list[str]]:
    try:
        text, document = text_of(path)
    except DocumentError as refused:
        return "", [str(refused)]
    return text, document.notes
