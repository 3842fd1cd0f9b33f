"""Fine-tuning a small model on a few lessons: it learns them, continues after a stop, and reads as it was trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

from memagent_lib.cli.main import main
from memagent_lib.data import load, make, save
from memagent_lib.prompts import Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.sft import SftRecipe, fine_tune, lessons_from_examples, require_own, rows
from memagent_lib.sft.fine_tuning import Diverged

WEIGHTS = ("model/model.safetensors", "adapter/adapter_model.safetensors")
READER = reader_named("overwrite")
FACT = r"The code of the \w+ \w+ is \d+\."


def recipe(model: str, data: Path, **sft: object) -> SftRecipe:
    settings = {
        "statements": FACT,
        "steps": 6,
        "batch": 4,
        "lr": 1e-3,
        "warmup_steps": 1,
        "save_steps": 3,
        "threads": 1,
    }
    return SftRecipe.from_tables(
        {
            "model": {"path": model, "device": "cpu"},
            "data": {"train": str(data)},
            "reading": {
                "template": "short",
                "chunk_tokens": 160,
                "memory_tokens": 200,
                "answer_tokens": 40,
                "question_tokens": 80,
            },
            "sft": settings | sft,
        }
    )


@pytest.fixture(scope="module")
def data(tokenizer, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sft") / "train.parquet"
    save(make("needle", 8, 1, tokenizer, chunks=1, chunk_tokens=160), path)
    return path


def trained(settings: SftRecipe, tokenizer, out: Path, **options: object) -> list[float]:
    reading = settings.reading
    encoder = Encoder(tokenizer, Template.load(reading.template), reading.budget)
    lessons = lessons_from_examples(load(settings.data.train[0]), encoder, settings.sft, READER)
    losses: dict[int, float] = {}
    fine_tune(
        settings,
        rows(lessons, encoder),
        encoder,
        out,
        on_log=lambda step, metrics: losses.update({step: metrics["loss"]}),
        **options,
    )
    return [losses[step] for step in sorted(losses)]


def test_a_stopped_run_continues_as_if_it_had_not_stopped(model_folder, tokenizer, data, tmp_path):
    whole = trained(recipe(model_folder, data), tokenizer, tmp_path / "whole")
    assert whole[-1] < whole[0] - 0.1

    class Stopped(Exception):
        pass

    def stop(step, metrics):
        if step == 5:
            raise Stopped

    settings = recipe(model_folder, data)
    encoder = Encoder(tokenizer, Template.load("short"), settings.reading.budget)
    made = rows(lessons_from_examples(load(data), encoder, settings.sft, READER), encoder)
    with pytest.raises(Stopped):
        fine_tune(settings, made, encoder, tmp_path / "part", on_log=stop)
    (tmp_path / "part/checkpoints/checkpoint-9 (copy)").mkdir()
    (tmp_path / "part/checkpoints/checkpoint-9 (copy)/trainer_state.json").touch()
    for changed in ({"lr": 2e-3}, {"steps": 7}):
        with pytest.raises(ValueError, match=next(iter(changed))):
            trained(recipe(model_folder, data, **changed), tokenizer, tmp_path / "part", resume=True)
    with pytest.raises(ValueError, match="lessons"):
        fine_tune(settings, made[1:], encoder, tmp_path / "part", resume=True)
    assert trained(settings, tokenizer, tmp_path / "part", resume=True) == whole[3:]


def test_a_run_that_diverges_ends_without_a_model(model_folder, tokenizer, data, tmp_path):
    with pytest.raises(Diverged, match=r"step \d: the gradient's norm is (nan|inf); lower sft\.lr \(now 1e\+30\)"):
        trained(recipe(model_folder, data, lr=1e30, save_steps=1), tokenizer, tmp_path)
    assert not (tmp_path / "model").exists()


def test_adapters_are_merged_and_saved_apart(model_folder, tokenizer, data, tmp_path):
    trained(recipe(model_folder, data, lora_rank=4, steps=2), tokenizer, tmp_path)
    names = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert names["r"] == 4
    new_file = tmp_path / "new"
    new_file.touch()
    saved = [tmp_path / "model/model.safetensors", tmp_path / "adapter/adapter_model.safetensors"]
    assert {file.stat().st_mode for file in saved} == {new_file.stat().st_mode}
    with safe_open(Path(model_folder) / "model.safetensors", "pt") as weights:
        original = set(weights.keys())
    with safe_open(tmp_path / "model/model.safetensors", "pt") as weights:
        names = set(weights.keys())
    assert names == original
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    again = AutoModelForCausalLM.from_pretrained(model_folder)
    again = PeftModel.from_pretrained(again, tmp_path / "adapter").merge_and_unload()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    for name, weight in again.state_dict().items():
        assert (weight - merged[name]).abs().max() < 1e-6


def recipe_file(model: str, data: Path, folder: Path) -> str:
    path = folder / "r.toml"
    path.write_text(
        f"""
        model = {{path = "{model}", device = "cpu"}}
        data = {{train = "{data}"}}
        reading.template = "short"
        reading.chunk_tokens = 160
        reading.memory_tokens = 100
        reading.answer_tokens = 40
        reading.question_tokens = 80
        sft = {{statements = '{FACT}', steps = 2, batch = 2, warmup_steps = 0, threads = 1}}
        """
    )
    return str(path)


@pytest.mark.parametrize("taken", ["model", "adapter", "config.json"])
def test_a_folder_of_another_run_is_refused(tmp_path, taken):
    require_own(tmp_path, resume=True)
    (tmp_path / taken).mkdir()
    for resume in (False, True):
        with pytest.raises(ValueError, match=taken):
            require_own(tmp_path, resume)


def test_a_template_that_opens_a_thought_is_refused(model_folder, data, tokenizer, tmp_path):
    from memagent_lib.text import Tokenizer

    tokenizer.hf.save_pretrained(tmp_path / "thinks")
    with (tmp_path / "thinks/chat_template.jinja").open("a") as template:
        template.write("{% if add_generation_prompt %}<think>\n{% endif %}")
    settings = recipe(model_folder, data)
    encoder = Encoder(Tokenizer.load(tmp_path / "thinks"), Template.load("short"), settings.reading.budget)
    assert not encoder.tokenizer.thoughts.split("The code is 4.").finished, "what a lesson would have taught"
    with pytest.raises(ValueError, match="inside a thought"):
        rows(lessons_from_examples(load(data), encoder, settings.sft, READER), encoder)


def test_lessons_have_the_template_arguments_of_readings(model_folder, data, tokenizer, tmp_path, capsys):
    model = shutil.copytree(model_folder, tmp_path / "thinks")
    (model / "chat_template.jinja").write_text(tokenizer.hf.chat_template + "{% if quick %}<quick>{% endif %}")
    path = recipe_file(model, data, tmp_path)
    for settings, shown in (([], 0), (["chat_template.quick=true"], 2)):
        assert main(["sft", path, *settings, "--dry-run"]) == 0
        assert capsys.readouterr().out.count("<quick>") == shown
    (model / "memagent.json").write_text('{"chat_template": {"quick": true}}')
    assert main(["sft", path, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("<quick>") == 2


def test_the_command_trains_once_and_resumes_what_a_kill_left(model_folder, data, tmp_path, capsys):
    out = tmp_path / "out"
    (out / "checkpoints/checkpoint-1").mkdir(parents=True)  # as a kill while it is saved leaves it
    command = ["sft", recipe_file(model_folder, data, tmp_path), "sft.lora_rank=2", "--out", str(out)]
    command += ["--tracking", str(tmp_path / "mlflow")]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "16 lessons of" in printed.out and f"model in {out}/model" in printed.out
    assert "memagent evaluate DATA.parquet --model" in printed.err
    assert json.loads((out / "model/memagent.json").read_text())["budget"]["memory_tokens"] == 100
    assert main(command) == 2
    assert "--resume" in capsys.readouterr().err
    before = [(out / name).read_bytes() for name in WEIGHTS]
    for name in WEIGHTS:  # as after a kill before the export
        (out / name).unlink()
    assert main([*command, "--resume"]) == 0
    assert [(out / name).read_bytes() for name in WEIGHTS] == before
    assert [folder.name for folder in (out / "checkpoints").iterdir() if any(folder.iterdir())] == ["checkpoint-2"]
