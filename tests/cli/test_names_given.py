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


def test_too_few_examples_are_told_instead_of_a_plan(tmp_path, capsys):
    pytest.importorskip("verl")
    model = str(ROOT / "experiments" / "pocket" / "warm_start")
    two = str(tmp_path / "two.parquet")
    made = ["data", "needle", "--n", "2", "--chunks", "1", "--chunk-tokens", "64", "--out", two, "--model", model]
    assert main(made) == 0
    capsys.readouterr()
    settings = [f'data={{train=["{two}"], eval="{two}"}}', f"model.path={model}"]
    assert main(["train", str(FILES["train"]), *settings, "--out", str(tmp_path / "run"), "--dry-run"]) == 2
    printed = capsys.readouterr()
    assert "2 examples can be trained on and a step takes data.train_batch_size = 32" in printed.err
    assert [line for line in printed.out.splitlines() if not line.startswith("loads ")] == []


def test_a_file_that_begins_with_a_dash_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = ["read", "--question", "q?", "--model", "./no-model"]
    (tmp_path / "-dash.txt").write_text("some text")
    assert main([*asked, "./-dash.txt"]) == 2
    assert capsys.readouterr().err.startswith("memagent read: no model folder './no-model'"), "the file was found"
    with pytest.raises(SystemExit):
        main([*asked, "-dash.txt"])
    assert "no option '-dash.txt'; for the file of this name write ./-dash.txt; " in capsys.readouterr().err


def test_the_help_says_why_read_keeps_what_evaluate_takes(capsys):
    for verb, default in (("read", "keep, because one comment would lose all"), ("evaluate", "take, as in training")):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert f"(default: {default}" in " ".join(capsys.readouterr().out.split())
