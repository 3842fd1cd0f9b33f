"""A push takes the model and its card, nothing else, and replaces nothing without being told to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import TOKEN, Hub, hub
from huggingface_hub import HfApi
from small_policies import BUDGET, write_model

from memagent_lib.agent import AgentSettings
from memagent_lib.cli import main
from memagent_lib.publishing import (
    Policy,
    PublishingError,
    Upload,
    copy_to_folder,
    is_folder,
    model_card,
    push_to_hub,
)

TAKEN = ["README.md", "config.json", "memagent.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def upload(policy: Policy) -> Upload:
    """The upload of a run's policy whose folder has files that are none of a model."""
    (policy.folder / "README.md").write_text(model_card(policy, licence="mit").text)
    (policy.folder / "mine.parquet").write_text("private")
    (policy.folder / "traces").mkdir()
    return Upload.of(policy)


@pytest.fixture
def loopback() -> Iterator[Hub]:
    with hub() as server:
        yield server


@pytest.fixture
def api(loopback: Hub) -> HfApi:
    return HfApi(endpoint=loopback.url, token=TOKEN)


def test_only_files_of_a_model_are_taken_and_the_rest_is_named(upload) -> None:
    assert [file.name for file in upload.files] == TAKEN
    assert upload.left_out == ["mine.parquet", "traces/"]
    assert upload.size == sum(file.stat().st_size for file in upload.files)
    assert upload.lines()[-2] == f"5 files, {upload.size / 1000:.1f} kB"
    assert upload.lines()[-1] == "not published: mine.parquet, traces/"


def test_further_files_are_taken_by_pattern(upload) -> None:
    more = Upload.of(upload.policy, ["*.parquet"])
    assert [file.name for file in more.files if file.name not in TAKEN] == ["mine.parquet"]
    with pytest.raises(PublishingError, match=r"no file of .* matches \*\.py"):
        Upload.of(upload.policy, ["*.py", "*.parquet"])


def test_a_reader_is_published_without_its_folder(upload, own_reader, loopback, api, tmp_path) -> None:
    settings = upload.policy.folder / "memagent.json"
    AgentSettings(template="short", budget=BUDGET, reader=own_reader).save(settings.parent)
    before = settings.read_bytes()
    public = Upload.of(upload.policy)
    assert "memagent.json is published without this machine's folders" in public.lines()
    copied = copy_to_folder(public, tmp_path / "copy")
    assert copy_to_folder(public, copied) == copied  # an equal file, so nothing to replace
    push_to_hub(public, "me/seven", api=api)
    for published in ((copied / "memagent.json").read_bytes(), loopback.files["me/seven"]["memagent.json"]):
        assert json.loads(published) == json.loads(before) | {"reader": "my_readers.py:mine"}
    sizes = [file.stat().st_size for file in copied.iterdir()]
    assert (public.size, len(sizes)) == (sum(sizes), len(TAKEN))
    assert settings.read_bytes() == before, "the policy still works where it is"


def test_a_reader_relative_to_the_project_is_published_as_is(upload) -> None:
    AgentSettings(budget=BUDGET, reader="mine/my_readers.py:mine").save(upload.policy.folder)
    assert Upload.of(upload.policy).rewritten == {}


def test_weights_without_a_card_are_refused(policy) -> None:
    with pytest.raises(PublishingError, match=r"has no model card \(README.md\); write it with: memagent card "):
        Upload.of(policy)


def test_a_card_of_other_weights_is_refused(upload, tmp_path) -> None:
    other = Policy.of(write_model(tmp_path / "other", 5))
    (other.folder / "README.md").write_bytes((upload.policy.folder / "README.md").read_bytes())
    with pytest.raises(PublishingError, match=rf"describes the weights {upload.policy.weights}, and the folder has"):
        Upload.of(other)
    (other.folder / "README.md").write_text("# a card by hand")
    assert len(Upload.of(other).files) == 4
    (other.folder / "README.md").write_text("---\na: [\n---\n")
    with pytest.raises(PublishingError, match=r"README\.md cannot be read \(.*\); write it again with: memagent"):
        Upload.of(other)


@pytest.mark.parametrize(("target", "folder"), [("/a/b", True), ("./a/b", True), ("~/a", True), ("me/a.b-c", False)])
def test_a_target_is_a_folder_by_its_first_characters(target, folder) -> None:
    assert is_folder(target) is folder


@pytest.mark.parametrize(
    ("target", "says"), [("name", "is no target"), ("a/b/c", "is no target"), ("tests/a", "./tests/a")]
)
def test_a_target_that_could_be_both_is_refused(target, says, tmp_path, monkeypatch) -> None:
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)  # the fixture of JupyterLab leaves a worker in another folder
    with pytest.raises(PublishingError, match=says):
        is_folder(target)


def test_a_copy_has_the_same_files_with_their_times(upload, tmp_path) -> None:
    os.utime(upload.policy.folder / "model.safetensors", (1, 1))
    folder = copy_to_folder(upload, tmp_path / "new" / "copy")
    assert sorted(path.name for path in folder.iterdir()) == TAKEN
    assert (folder / "model.safetensors").stat().st_mtime == 1
    assert Policy.of(folder).weights == upload.policy.weights
    assert copy_to_folder(upload, folder) == folder
    assert [path.name for path in folder.parent.iterdir()] == ["copy"]


def test_a_copy_is_readable_like_any_new_file(upload, tmp_path) -> None:
    (upload.policy.folder / "model.safetensors").chmod(0o600)  # as safetensors creates it
    folder = copy_to_folder(upload, tmp_path / "copy")
    (tmp_path / "new").write_text("")
    assert (folder / "model.safetensors").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_a_copy_replaces_a_file_only_when_told_to(upload, tmp_path) -> None:
    folder = copy_to_folder(upload, tmp_path / "copy")
    (folder / "README.md").write_text("mine")
    (folder / "config.json").unlink()
    with pytest.raises(PublishingError, match=r"has other versions of README.md; replace them with --overwrite"):
        copy_to_folder(upload, folder)
    assert not (folder / "config.json").exists()
    copy_to_folder(upload, folder, overwrite=True)
    assert (folder / "README.md").read_bytes() == (upload.policy.folder / "README.md").read_bytes()
    assert (folder / "config.json").is_file()


def test_a_copy_never_mixes_weights_of_two_policies(upload, tmp_path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "model-00001-of-00002.safetensors").touch()
    with pytest.raises(PublishingError, match=r"has other weights too \(model-00001-of-00002.safetensors\)"):
        copy_to_folder(upload, folder, overwrite=True)
    assert len(list(folder.iterdir())) == 1


def test_a_policy_is_not_copied_into_itself(upload) -> None:
    for folder in (upload.policy.folder, upload.policy.folder / "copy"):
        with pytest.raises(PublishingError, match="is the policy's own folder or in it"):
            copy_to_folder(upload, folder)


def test_a_push_creates_the_repository_and_commits_once(upload, loopback, api) -> None:
    address = push_to_hub(upload, "me/seven", private=True, api=api)
    assert address == f"{loopback.url}/me/seven/commit/{'1' * 40}"
    expected = {file.name: file.read_bytes() for file in upload.files}
    assert loopback.files["me/seven"] == expected | {".gitattributes": b""}
    assert (loopback.private, loopback.commits) == ({"me/seven"}, ["Upload seven with memagent push"])


def test_a_push_replaces_a_policy_only_when_told_to(upload, loopback, api) -> None:
    push_to_hub(upload, "me/seven", api=api)
    with pytest.raises(PublishingError, match=r"me/seven has a policy already; replace its files with --overwrite"):
        push_to_hub(upload, "me/seven", api=api)
    push_to_hub(upload, "me/seven", overwrite=True, api=api)
    assert len(loopback.commits) == 2


def test_a_push_never_mixes_weights_of_two_policies(upload, loopback, api) -> None:
    loopback.files["me/seven"] = {"model-00001-of-00002.safetensors": b""}
    with pytest.raises(PublishingError, match=r"me/seven has other weights too"):
        push_to_hub(upload, "me/seven", overwrite=True, api=api)


def test_a_private_push_to_a_public_repository_is_refused(upload, loopback, api) -> None:
    loopback.files["me/open"] = {}
    with pytest.raises(PublishingError, match=r"me/open exists and is public"):
        push_to_hub(upload, "me/open", private=True, api=api)
    assert loopback.files["me/open"] == {}


def test_a_refusal_of_the_hub_is_one_line(upload, loopback, api) -> None:
    with pytest.raises(PublishingError, match=r"refused: You don't have the rights .* namespace$"):
        push_to_hub(upload, "stranger/seven", api=api)
    wrong = HfApi(endpoint=loopback.url, token="hf_wrong")
    with pytest.raises(PublishingError, match=r"refused: Invalid username or password\.$"):
        push_to_hub(upload, "me/seven", api=wrong)
    assert loopback.files == {}


def test_a_hub_that_is_away_is_one_line(upload) -> None:
    with pytest.raises(PublishingError, match=r"^pushing to http://127.0.0.1:9 failed: [^\n]+$"):
        push_to_hub(upload, "me/seven", api=HfApi(endpoint="http://127.0.0.1:9", token=TOKEN))


def test_a_missing_token_is_one_line(upload, loopback, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(PublishingError, match="needs a token of yours; save one with `hf auth login`, or set HF_TOKEN"):
        push_to_hub(upload, "me/seven", api=HfApi(endpoint=loopback.url))
    assert loopback.files == {}


def test_the_command_shows_the_files_before_it_copies(upload, tmp_path, capsys, monkeypatch) -> None:
    run = str(upload.policy.run.path)
    assert main(["push", run, "me/seven", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [*upload.lines(), "nothing was sent to me/seven"]
    target = tmp_path / "a copy"
    assert main(["push", run, str(target)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [*upload.lines(), str(target)]
    assert printed.err == f"next    memagent read FILE --question \"...\" --model '{target}'\n"
    assert main(["push", run, str(target), "--private"]) == 2
    assert "--private is for a repository of the hub" in capsys.readouterr().err
    assert Path(target / "README.md").is_file()
