"""Files in, as one text, with the position of every character; and files that are no text."""

import os
import subprocess
import sys
from dataclasses import asdict

import document_files as files
import pytest

from memagent_lib.documents import ConverterOptions, Document, DocumentError, SourcePosition
from memagent_lib.documents.converters.scanned_pages import MissingTool
from memagent_lib.documents.sources import Part


def text_of(*paths, **kw) -> tuple[str, Document]:
    document = Document(paths, **kw)
    return "".join(document.blocks()), document


def test_a_single_text_file_is_its_text_with_its_own_offsets(tmp_path):
    path = tmp_path / "a.md"
    path.write_bytes("# Title\r\n\r\nGrüße 東京 😀\n".encode())
    text, document = text_of(path)
    assert text == "# Title\r\n\r\nGrüße 東京 😀\n"
    assert document.locate(11) == SourcePosition("a.md", 11)
    assert str(document.locate(11)) == "a.md, character 11"


def test_a_single_path_needs_no_list(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    for path in (tmp_path / "a.txt", str(tmp_path / "a.txt")):
        assert "".join(Document(path).blocks()) == "text"


def test_no_file_is_read_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("text")
    for paths in (["sub/a.txt", tmp_path / "sub" / "a.txt"], ["sub", "./sub/../sub/a.txt"], [".", "sub"]):
        with pytest.raises(
            DocumentError, match=r"a\.txt' would be read twice; name each file once, itself or with its"
        ):
            Document(paths)


def test_a_folder_is_one_document_with_the_names_of_its_files(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "sub" / "c.log").write_text("third")
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "image.bin").write_bytes(b"\x00\x01")
    (tmp_path / "nothing.txt").touch()
    text, document = text_of(tmp_path)
    assert text == "[a.txt]\nfirst\n\n[b.txt]\nsecond\n\n[sub/c.log]\nthird"
    for name, word in (("a.txt", "first"), ("b.txt", "second"), ("sub/c.log", "third")):
        assert document.locate(text.index(word) + 2) == SourcePosition(name, 2)
    assert {p.name: reason.split(" ")[0] for p, reason in document.left_out} == {
        ".hidden": "hidden",
        "image.bin": "a",
        "nothing.txt": "empty;",
    }


def test_files_of_a_folder_are_in_the_order_of_their_numbers(tmp_path):
    names = ["a.txt", "a2.txt", "a10.txt", "part 9/1.txt", "part 10/1.txt"]
    for name in reversed(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert text_of(tmp_path)[1].names == names


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "private").mkdir()
    scandir = os.scandir  # replaced, because nothing is closed to the root user of a container

    def refusing(path):
        if "private" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert text_of(tmp_path)[1].warnings == [f"left out: {tmp_path / 'private'} (not yours to read (no permission))"]
    with pytest.raises(DocumentError, match=r"nothing to read in .*private is not yours to read"):
        Document([tmp_path / "private"])


def test_a_document_that_follows_another_is_placed_after_it(tmp_path):
    (tmp_path / "monday.txt").write_text("first day")
    (tmp_path / "tuesday.txt").write_text("second day")
    first, monday = text_of(tmp_path / "monday.txt")
    second, both = text_of(tmp_path / "tuesday.txt", start=len(first), previous=monday.parts)
    assert second == "\n\n[tuesday.txt]\nsecond day"
    assert both.locate(3) == SourcePosition("monday.txt", 3)
    assert both.locate(len(first) + second.index("second")) == SourcePosition("tuesday.txt", 0)


def test_invalid_bytes_are_counted_before_reading_or_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"ok \xff\xfe \xc3( " + "\ufffd".encode() + b" end \xe2\x82")
    with pytest.raises(DocumentError, match=r"a.txt' is not UTF-8 \(4 invalid bytes\), and its encoding is uncertain"):
        Document([path])
    document = Document([path], options=ConverterOptions(encoding="utf-8"))
    assert document.warnings == ["4 characters of a.txt stand for bytes that are not valid UTF-8"]
    assert "".join(document.blocks()) == "ok \ufffd\ufffd \ufffd( \ufffd end \ufffd"
    with pytest.raises(DocumentError, match=r"a.txt' is to be read as 'klingon', which is no encoding; try utf-8"):
        Document([path], options=ConverterOptions(encoding="klingon"))


def test_a_character_across_two_blocks_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("memagent_lib.documents.converters.encodings.BLOCK_BYTES", 3)
    path = tmp_path / "a.txt"
    path.write_text("aé東😀\ufffdz" * 20, encoding="utf-8")
    text, document = text_of(path)
    assert text == "aé東😀\ufffdz" * 20
    assert document.notes == []


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_says_the_encoding_and_is_not_read(tmp_path, encoding):
    path = tmp_path / "a.txt"
    path.write_text("héllo", encoding=encoding)
    assert text_of(path)[0] == "héllo"


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("empty.txt", b"", "empty.txt' is empty"),
        ("a.bin", b"MZ\x00\x01", r"binary file \(a zero byte at 2\)"),
        ("b.bin", bytes(range(1, 32)) * 9, "binary file .* control bytes"),
        ("broken.pdf", b"%PDF-1.4 nothing follows", "is no PDF that pypdf can read"),
        ("scan.pdf", files.one_page(content=b""), "'scan.pdf': no text at all"),
        ("blank.html", b"<html><script>1</script></html>", "no text at all"),
    ],
)
def test_what_holds_no_text_is_refused_with_the_reason(tmp_path, name, data, says):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DocumentError, match=says):
        text_of(path)


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
    warned = "\n".join(document.warnings)
    for name, reason in (
        ("contract.docx", "a damaged zip archive (File is not a zip file); save it again"),
        ("empty.txt", "empty"),
        (".git", "hidden"),
        ("broken.txt", "a link to nothing"),
        ("loop", "a link to a folder"),
        ("pipe", "a pipe or device"),
    ):
        assert f"left out: {tmp_path / name} ({reason}" in warned
    assert len(document.warnings) == 6


def test_a_pipe_is_refused_at_once_and_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DocumentError, match="pipe' is a pipe or device; write its output to a file"):
        Document([tmp_path / "pipe"])
    code = "from memagent_lib.documents import Document; Document(['/dev/stdin'])"
    done = subprocess.run([sys.executable, "-c", code], input="text", capture_output=True, text=True, timeout=60)
    assert "is a pipe or device" in done.stderr


def test_what_is_missing_is_known_before_the_first_block(tmp_path):
    (tmp_path / "scan.pdf").write_bytes(files.two_pages(files.stream(b"")))
    (tmp_path / "blank.html").write_text("<html><script>1</script>")
    (tmp_path / "mail.eml").write_bytes(b"From: o@example.org\nSubject: Rent\n\nThe rent is 1200\n")
    (tmp_path / "old.txt").write_bytes("Señor Núñez pays 1200 €".encode("cp1252"))
    document = Document([tmp_path])
    assert document.warnings == [
        "blank.html has no text",
        "page 2 of scan.pdf has no text (blank?)",
        f"left out: {tmp_path / 'old.txt'} (not UTF-8 (4 invalid bytes), and its encoding is uncertain "
        "(perhaps cp1250, cp1252, cp1257); save it as UTF-8, or name its encoding with --encoding)",
    ]
    assert "".join(document.blocks()) == (
        "[blank.html]\n\n\n[mail.eml]\nFrom: o@example.org\nSubject: Rent\n\nThe rent is 1200\n"
        "\n\n[scan.pdf]\nPage one\n"
    )


def test_a_position_names_the_page_or_sheet_of_its_file(tmp_path):
    (tmp_path / "flat.xlsx").write_bytes(files.xlsx('<row r="1"><c r="A1"><v>12</v></c></row>', hidden="4711"))
    (tmp_path / "lease.pdf").write_bytes(files.two_pages(files.words(b"The code is 4821.")))
    text, document = text_of(tmp_path)
    assert str(document.locate(text.index("4711"))) == "sheet Secret of flat.xlsx, character 28"
    assert str(document.locate(text.index("one"))) == "page 1 of lease.pdf, character 5"
    assert str(document.locate(text.index("4821"))) == "page 2 of lease.pdf, character 21"
    assert str(document.locate(text.index("[lease.pdf]"))) == "lease.pdf, character 0"


def test_parts_saved_with_a_page_number_are_restored():
    record = {"name": "a.pdf", "start": 9, "offset": 3, "page": 2}
    assert Part.from_record(record) == Part("a.pdf", 9, 3, "page 2")
    assert Part.from_record(record | {"page": None}) == Part("a.pdf", 9, 3)
    assert Part.from_record(asdict(Part("a.pdf", 9, 3, "page 2"))) == Part("a.pdf", 9, 3, "page 2")


def test_text_recognition_reads_scans_and_says_so(tmp_path, monkeypatch):
    pytest.importorskip("pypdfium2")
    (tmp_path / "scan.pdf").write_bytes(files.two_pages(files.stream(b"")))
    program = tmp_path / "tesseract"
    program.write_text('#!/bin/sh\ncase $1 in --list-langs) echo eng;; *) cat > /dev/null; echo "Signed $4";; esac\n')
    program.chmod(0o755)
    options = ConverterOptions(ocr="eng")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    document = Document([tmp_path / "scan.pdf"], options=options)
    assert "".join(document.blocks()) == "Page one\nSigned eng\n"
    assert document.warnings == ["1 page of scan.pdf read by text recognition, which makes mistakes"]
    stamp = files.stream(b"BT /F1 12 Tf 10 200 Td (Page 2) Tj ET q 300 0 0 300 0 0 cm /I Do Q")
    (tmp_path / "stamped.pdf").write_bytes(files.two_pages(stamp, resources=b"/XObject << /I 8 0 R >> "))
    assert text_of(tmp_path / "stamped.pdf", options=options)[0] == "Page one\nPage 2\nSigned eng\n"
    with pytest.raises(MissingTool, match="needs the language 'deu', which tesseract has not; apt install"):
        Document([tmp_path / "scan.pdf"], options=ConverterOptions(ocr="eng+deu"))
    program.unlink()
    with pytest.raises(MissingTool, match="needs tesseract, which is not installed; apt install tesseract-ocr"):
        Document([tmp_path / "scan.pdf"], options=options)


def test_paths_that_are_not_there_are_named(tmp_path):
    with pytest.raises(DocumentError, match="no file or folder '-'; a pipe is not read: write its output to a file"):
        Document(["-"])
    for paths, says in [
        ([tmp_path / "no.txt"], "no file or folder '.*no.txt'"),
        ([], "no file to read"),
        ([tmp_path], "holds no files"),
    ]:
        with pytest.raises(DocumentError, match=says):
            Document(paths)
    (tmp_path / "a.bin").write_bytes(b"\0")
    with pytest.raises(DocumentError, match=r"nothing to read in .*: a.bin is a binary file \(a zero byte at 0\)"):
        Document([tmp_path])


def test_names_that_are_no_words_are_escaped(tmp_path):
    for name, text in (("a\nb.txt", "x"), ("c\udcff.txt", "y"), ("d\n.txt", "")):
        (tmp_path / name).write_text(text)
    document = Document([tmp_path])
    assert "".join(document.blocks()) == "[a\\nb.txt]\nx\n\n[c\\udcff.txt]\ny"
    (warning,) = document.warnings
    assert warning.isprintable() and "d\\n.txt (empty" in warning
