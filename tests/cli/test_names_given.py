"""A file of another verb, a store that is not there, data that are not made yet: the command says so at once."""

from pathlib import Path

import pytest

from memagent_lib.cli import main

ROOT = Path(__file__).parents[2]
FILES = {
    "sweep": ROOT / "experiments" / "demo.toml",
    "train": ROOT / "experiments" / "pocket" / "recipes" / "pocket_demo.toml",
    "sft": ROOT / "experiments" / "studies" / "prose" / "warm_start.toml",
}


@pytest.mark.parametrize("verb", FILES)
@pytest.mark.parametrize("right", FILES)
def test_a_file_of_another_verb_is_an_error_that_names_the_verb(verb, right, capsys):
    if verb == right:
        return
    file = FILES[right]
    assert main([verb, str(file)]) == 2
    assert capsys.readouterr().err == (
        f"memagent {verb}: {file} is a file of `memagent {right}`; run it with: memagent {right} {file}\n"
    )


def test_a_report_makes_no_store_of_a_misspelt_name(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--tracking", str(tmp_path / "stoer")]) == 2
    assert "there is no such folder; give the store's own folder" in capsys.readouterr().err
    assert not (tmp_path / "stoer").exists()


def test_examples_are_said_to_be_counted_in_whose_tokens(tmp_path, tokenizer_folder, capsys):
    made = ["data", "needle", "--n", "1", "--chunks", "1", "--out", str(tmp_path / "a.parquet")]
    assert main([*made, "--model", tokenizer_folder]) == 0
    assert capsys.readouterr().out.endswith(f"a.parquet; tokens are those of {tokenizer_folder}\n")


def test_a_dry_run_without_data_does_not_promise_a_start(tmp_path, monkeypatch, capsys):
    pytest.importorskip("verl")
    settings = [f'data={{train=["{tmp_path}/gone.parquet"], eval="{tmp_path}/gone.parquet"}}']
    settings.append(f"model.path={ROOT / 'experiments' / 'pocket' / 'warm_start'}")
    assert main(["train", str(FILES["train"]), *settings, "--out", str(tmp_path / "run"), "--dry-run"]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("next    make or fetch ") and "gone.parquet; then the same command without" in last


def test_a_judge_without_a_tokenizer_names_its_own_option(tmp_path):
    from memagent_lib.evaluation import open_judge

    with pytest.raises(ValueError, match=r"the judge 'no/such': .*\(--judge-tokenizer\)"):
        open_judge("no/such", "openai", base_url="http://127.0.0.1:9/v1")
