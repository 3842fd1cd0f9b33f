"""Fine-tuning a small model on a few lessons: it learns them, continues after a stop, and reads as it was trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from memagent_lib.cli.main import main
from memagent_lib.data import load, make, save
from memagent_lib.prompts import Encoder, Template
from memagent_lib.sft import SftRecipe, checkpoint_to_resume, fine_tune, lessons_from_examples, rows
from memagent_lib.sft.fine_tuning import Diverged
from memagent_lib.sft.resuming import last_checkpoint, save_recipe

WEIGHTS = ("model/model.safetensors", "adapter/adapter_model.safetensors")
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
    lessons = lessons_from_examples(load(settings.data.train[0]), encoder, settings.sft)
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


def test_the_loss_of_the_replies_falls(model_folder, tokenizer, data, tmp_path):
    losses = trained(recipe(model_folder, data, steps=12), tokenizer, tmp_path)
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.3
    assert (tmp_path / "model/model.safetensors").is_file()


@pytest.mark.parametrize(("flags", "half"), [("fpu avx2", False), ("fpu avx2 avx512_bf16", True)])
def test_products_are_in_bf16_only_in_hardware(
    flags, half, model_folder, tokenizer, data, processor, tmp_path, monkeypatch
):
    import transformers

    processor(flags)
    seen = []
    real = transformers.TrainingArguments
    monkeypatch.setattr(transformers, "TrainingArguments", lambda **how: seen.append(how["bf16"]) or real(**how))
    trained(recipe(model_folder, data, steps=2), tokenizer, tmp_path / "out")
    assert seen == [half]


def test_a_stopped_run_continues_as_if_it_had_not_stopped(model_folder, tokenizer, data, tmp_path):
    whole = trained(recipe(model_folder, data), tokenizer, tmp_path / "whole")

    class Stopped(Exception):
        pass

    def stop(step, metrics):
        if step == 5:
            raise Stopped

    settings = recipe(model_folder, data)
    encoder = Encoder(tokenizer, Template.load("short"), settings.reading.budget)
    made = rows(lessons_from_examples(load(data), encoder, settings.sft), encoder)
    with pytest.raises(Stopped):
        fine_tune(settings, made, encoder, tmp_path / "part", on_log=stop)
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


def test_the_command_trains_and_names_what_comes_next(model_folder, data, tmp_path, capsys):
    path = recipe_file(model_folder, data, tmp_path)
    out = tmp_path / "out"
    assert main(["sft", path, "--out", str(out), "--tracking", str(tmp_path / "mlflow")]) == 0
    printed = capsys.readouterr()
    assert "16 lessons of" in printed.out and f"model in {out}/model" in printed.out
    assert "memagent evaluate DATA.parquet --model" in printed.err
    assert json.loads((out / "model/memagent.json").read_text())["budget"]["memory_tokens"] == 100
    assert main(["sft", path, "--out", str(out), "--tracking", str(tmp_path / "mlflow")]) == 2
    assert "continue it with --resume" in capsys.readouterr().err


@pytest.mark.parametrize("option", [[], ["--resume"]])
def test_a_stop_before_the_first_checkpoint_loses_no_folder(model_folder, data, tmp_path, option):
    (tmp_path / "out/checkpoints/checkpoint-1").mkdir(parents=True)  # as a kill while it is saved leaves it
    path = recipe_file(model_folder, data, tmp_path)
    assert main(["sft", path, "--out", str(tmp_path / "out"), "--tracking", str(tmp_path / "mlflow"), *option]) == 0
    assert (tmp_path / "out/model/model.safetensors").is_file()


def test_a_run_is_not_continued_with_another_recipe(model_folder, data, tmp_path):
    begun = recipe(model_folder, data)
    save_recipe(begun, tmp_path, "aaaa")
    changed = recipe(model_folder, data, lr=2e-3, save_steps=1)
    assert checkpoint_to_resume(changed, tmp_path) is None, "nothing to continue"
    for step in (9, 12):
        (tmp_path / f"checkpoints/checkpoint-{step}").mkdir(parents=True)
        (tmp_path / f"checkpoints/checkpoint-{step}/trainer_state.json").touch()
    with pytest.raises(ValueError, match=r"the recipe differs: sft.lr was 0.001 and is 0.002\. Undo that, or start"):
        checkpoint_to_resume(changed, tmp_path)
    same = recipe(model_folder, data, save_steps=1)
    assert checkpoint_to_resume(same, tmp_path).name == checkpoint_to_resume(same, tmp_path, "aaaa").name
    assert checkpoint_to_resume(same, tmp_path, "aaaa").name == "checkpoint-12"
    with pytest.raises(ValueError, match=r"the lessons \(data, template, .*\) was aaaa and is bbbb"):
        checkpoint_to_resume(same, tmp_path, "bbbb")
    record = json.loads((tmp_path / "recipe.json").read_text())
    (tmp_path / "recipe.json").write_text(json.dumps({key: record[key] for key in record if "lessons" not in key}))
    assert checkpoint_to_resume(same, tmp_path, "bbbb").name == "checkpoint-12", "an older version recorded no lessons"
    assert checkpoint_to_resume(same, tmp_path).name == "checkpoint-12"


def test_a_copy_of_a_checkpoint_is_none(tmp_path):
    for name in ("checkpoint-9", "checkpoint-12 (copy)", "checkpoint-9.old"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "trainer_state.json").touch()
    assert last_checkpoint(tmp_path).name == "checkpoint-9"


def test_a_run_is_not_continued_with_other_data(model_folder, data, tokenizer, tmp_path, capsys):
    own = tmp_path / "own.parquet"
    own.write_bytes(data.read_bytes())
    command = ["sft", recipe_file(model_folder, own, tmp_path), "--out", str(tmp_path / "out")]
    command += ["--tracking", str(tmp_path / "mlflow")]
    assert main(command) == 0
    save(make("needle", 8, 2, tokenizer, chunks=1, chunk_tokens=160), own)
    assert main([*command, "--resume"]) == 2
    assert "the recipe differs: the hash of the lessons" in capsys.readouterr().err


def test_evidence_without_room_in_a_memory_is_named(model_folder, data, tmp_path, capsys):
    command = ["sft", recipe_file(model_folder, data, tmp_path), "--out", str(tmp_path / "out"), "--dry-run"]
    assert main([*command, "reading.memory_tokens=12"]) == 0
    printed = capsys.readouterr().err
    assert "warning: the evidence of 8 of 8 examples" in printed
    assert "longer than a memory of 12 tokens; their answers are taught as unknown" in printed


def test_a_template_that_opens_a_thought_is_refused(model_folder, data, tokenizer, tmp_path):
    from memagent_lib.text import Tokenizer

    tokenizer.hf.save_pretrained(tmp_path / "thinks")
    with (tmp_path / "thinks/chat_template.jinja").open("a") as template:
        template.write("{% if add_generation_prompt %}<think>\n{% endif %}")
    settings = recipe(model_folder, data)
    encoder = Encoder(Tokenizer.load(tmp_path / "thinks"), Template.load("short"), settings.reading.budget)
    assert not encoder.tokenizer.thoughts.split("The code is 4.").finished, "what a lesson would have taught"
    with pytest.raises(ValueError, match="begins every reply inside a thought, and lessons have no thoughts"):
        rows(lessons_from_examples(load(data), encoder, settings.sft), encoder)


def test_a_dry_run_prints_two_lessons_and_trains_nothing(model_folder, data, tmp_path, capsys):
    path = recipe_file(model_folder, data, tmp_path)
    assert main(["sft", path, "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("--- prompt") == printed.out.count("--- reply") == 2
    assert "warning" not in printed.err
    assert main(["sft", path, "sft.statements='is [0-9]+'", "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert "warning: sft.statements matches 0 of 8 statements of evidence" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_batch_beyond_the_lessons_is_said_before_training(model_folder, data, tmp_path, capsys):
    command = ["sft", recipe_file(model_folder, data, tmp_path), "--out", str(tmp_path / "out"), "--dry-run"]
    assert main([*command, "sft.batch=100"]) == 0
    printed = capsys.readouterr()
    assert "warning: sft.batch is 100 and there are 16 lessons, so a step takes each of them once" in printed.err
    assert " tokens; 32 turns are trained, 2.0 of each\n" in printed.out


def test_a_finished_run_is_not_trained_on(model_folder, data, tmp_path, capsys):
    path = recipe_file(model_folder, data, tmp_path)
    out = tmp_path / "out"
    command = ["sft", path, "sft.lora_rank=2", "--out", str(out), "--tracking", str(tmp_path / "mlflow")]
    assert main(command) == 0
    before = [(out / name).read_bytes() for name in WEIGHTS]
    for name in WEIGHTS:  # as after a kill before the export
        (out / name).unlink()
    assert main([*command, "--resume"]) == 0
    assert [(out / name).read_bytes() for name in WEIGHTS] == before
    assert [folder.name for folder in (out / "checkpoints").iterdir()] == ["checkpoint-2"]


@pytest.mark.parametrize("option", [[], ["--resume"]])
@pytest.mark.parametrize("taken", ["model", "adapter", "config.json"])
def test_a_folder_of_another_run_is_refused(model_folder, data, tmp_path, capsys, taken, option):
    path = recipe_file(model_folder, data, tmp_path)
    (tmp_path / "out" / taken).mkdir(parents=True)
    assert main(["sft", path, "--out", str(tmp_path / "out"), *option]) == 2
    assert f"has {taken} of another run, which fine-tuning would replace" in capsys.readouterr().err


def test_turns_longer_than_the_models_window_are_refused(model_folder, data, tmp_path, capsys):
    path = recipe_file(model_folder, data, tmp_path)
    assert main(["sft", path, "reading.memory_tokens=9000", "--out", str(tmp_path / "out")]) == 2
    assert "a turn can need 18,276 tokens" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_a_warm_start_does_not_do_is_refused(model_folder, data, tmp_path):
    path = recipe_file(model_folder, data, tmp_path)
    with pytest.raises(ValueError, match="average_with belongs to memagent train"):
        SftRecipe.load(path, ["model.average_with=x"])
    with pytest.raises(ValueError, match="run_id belongs to memagent train"):
        SftRecipe.load(path, ["tracking.run_id=abc"])
    with pytest.raises(ValueError, match="lr must be above 0 and finite, got inf"):
        SftRecipe.load(path, ["sft.lr=inf"])
    with pytest.raises(ValueError, match="warmup_steps must be below steps, 2, got 2"):
        SftRecipe.load(path, ["sft.warmup_steps=2"])
    with pytest.raises(ValueError, match=r"seed must be below 2 \*\* 32, NumPy's limit, got 4294967296"):
        SftRecipe.load(path, ["sft.seed=4294967296"])


def test_an_override_may_replace_a_table(model_folder, data, tmp_path):
    path = recipe_file(model_folder, data, tmp_path)
    assert SftRecipe.load(path, ['data={traces=["runs/base"]}']).data.traces == ("runs/base",)


def test_several_gpus_do_not_change_the_batch(tmp_path, monkeypatch) -> None:
    """transformers gives a batch to each GPU that it sees."""
    from transformers import TrainingArguments

    from memagent_lib.sft import fine_tuning

    with monkeypatch.context() as eight:
        eight.setattr(TrainingArguments, "n_gpu", property(lambda self: 8))
        arguments = fine_tuning._arguments(recipe("m", tmp_path / "x.parquet"), tmp_path, on_cpu=True)
    assert (arguments.n_gpu, arguments.train_batch_size) == (1, 4)
