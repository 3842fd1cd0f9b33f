"""The sentences of real texts, from an installed package or from a user's files."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError

import pytest

from memagent_lib.data import make
from memagent_lib.data.tasks import texts
from memagent_lib.errors import MissingFile

PROSE = "It was described by Mr. Hooke, and see Fig. 2. of his book. The light was white [see the note] and _faint_."


def test_a_named_text_is_read_as_whole_sentences():
    found = texts.sentences("opticks")
    assert len(found) == 1721
    assert found[0].startswith("To avoid being engaged in Disputes about these Matters, I have hitherto delayed")
    assert not any("_" in sentence or "\n" in sentence for sentence in found)
    assert all(4 <= len(sentence.split()) <= 60 for sentence in found)


def test_abbreviations_end_no_sentence_and_notes_are_left_out(tmp_path):
    table = "    1    2\n    3    4"
    heading = "OF LIGHT."
    (tmp_path / "a.txt").write_text("\n\n".join([heading, table, *[PROSE] * 30]), encoding="utf-8")
    found = texts.sentences(str(tmp_path))
    assert len(found) == 60
    assert found[:2] == (
        "It was described by Mr. Hooke, and see Fig. 2. of his book.",
        "The light was white and faint.",
    )


def test_a_folder_of_a_users_own_becomes_the_filler(tmp_path, tokenizer):
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "own.txt").write_text("\n\n".join(f"The clock of house {i} has stopped." for i in range(60)))
    (example,) = make("prose_needle", 1, 1, tokenizer, length_tokens=900, text=str(tmp_path))
    assert "has stopped." in example.document and "Rays" not in example.document


@pytest.mark.parametrize("name", ["nowhere", "", "~no-such-user/x.txt"])
def test_a_text_that_is_nowhere_names_what_would_be_right(name, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.txt").write_text("\n\n".join(f"The clock of house {i} has stopped." for i in range(60)))
    with pytest.raises(MissingFile, match=rf"no text '{name}': it is neither a text file.*nor one of opticks"):
        list(make("prose_needle", 1, 1, tokenizer, length_tokens=900, text=name))


def test_a_text_of_few_sentences_is_refused_with_their_number(tmp_path):
    (tmp_path / "few.txt").write_text("One sentence has four words. And so has this one.")
    with pytest.raises(ValueError, match="has 2 sentences of prose and at least 50 are needed"):
        texts.sentences(str(tmp_path / "few.txt"))


def test_another_edition_of_a_named_text_is_refused(tmp_path, monkeypatch):
    (tmp_path / "book.txt").write_text("Another edition.")
    known = texts.NamedText(
        title="a book", licence="none", package="pytest", path=str(tmp_path / "book.txt"), sha256="0" * 64, begin="A"
    )
    monkeypatch.setitem(texts.TEXTS, "book", known)
    found = hashlib.sha256(b"Another edition.").hexdigest()[:12]
    with pytest.raises(ValueError, match=f"another edition .sha256 {found}, expected 000000000000"):
        texts.sentences("book")


def test_a_text_of_a_missing_package_names_the_package(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(texts, "distribution", absent)
    texts.sentences.cache_clear()
    with pytest.raises(MissingFile, match="comes with the package apache-tvm-ffi, which vLLM installs"):
        texts.sentences("opticks")
