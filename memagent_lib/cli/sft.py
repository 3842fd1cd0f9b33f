"""``memagent sft``: a warm start by supervised fine-tuning, before ``memagent train``."""

from __future__ import annotations

import itertools
import shlex
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memagent_lib.cli.options import file_of, look_next, tracking_option, warn

if TYPE_CHECKING:
    from memagent_lib.prompts import Encoder
    from memagent_lib.sft import Row, SftRecipe

LOGGED_STEPS = 10


@click.command()
@click.argument("recipe_file", metavar="FILE.toml")
@click.argument("settings", metavar="[table.key=value]...", nargs=-1)
@click.option("--out", metavar="FOLDER", help="The run's folder.  [default: runs/ and the recipe's name]")
@tracking_option
@click.option("--dry-run", is_flag=True, help="Make the lessons, print their number and two of them; train nothing.")
@click.option("--resume", is_flag=True, help="Continue from the folder's last checkpoint.")
def sft(
    recipe_file: str, settings: tuple[str, ...], out: str | None, tracking: str, dry_run: bool, resume: bool
) -> None:
    """Fine-tune a model on turns with known replies, as the recipe FILE.toml says: a warm start for memagent train.

    \b
    examples:
      memagent sft experiments/studies/prose/warm_start.toml     a teacher copies statements, blind to the question
      memagent sft R.toml sft.teacher=aware --out runs/aware     sees the question, notes what answers it
      memagent sft R.toml 'data={traces=["runs/base"]}'          from the right readings of an evaluation
    """
    from memagent_lib.models import find_model, record_base
    from memagent_lib.paths import absolute
    from memagent_lib.sft import SftRecipe, fine_tune, require_own
    from memagent_lib.system import require_packages
    from memagent_lib.tracking import Experiment

    recipe = SftRecipe.load(file_of(recipe_file), settings)
    base_name = recipe.model.path
    recipe = replace(recipe, model=recipe.model.with_paths(find_model))
    steps = recipe.sft.steps
    folder = absolute(out or f"runs/{Path(recipe_file).stem}")
    if not dry_run:
        require_own(folder, resume)
        require_packages("fine-tuning", "torch", "transformers")
    encoder, data = _lessons(recipe)
    tokens = sum(len(row.prompt) + len(row.reply) for row in data)
    turns = steps * min(recipe.sft.batch, len(data))
    print(f"{len(data):,} lessons of {tokens:,} tokens; {turns:,} turns are trained, {turns / len(data):.1f} of each")
    if dry_run:
        decode = encoder.tokenizer.backend.decode
        for row in (data[0], data[-1]):
            print(f"\n--- prompt, {len(row.prompt):,} tokens\n{decode(row.prompt, skip_special_tokens=False)}")
            print(f"--- reply, {len(row.reply):,} tokens\n{decode(row.reply, skip_special_tokens=False)}")
        return
    trained_with = recipe.reading.agent_settings(encoder.tokenizer.chat_arguments)
    store = recipe.tracking.uri or tracking
    experiment = Experiment.open(store, experiment=recipe.tracking.experiment)
    with experiment.run(recipe.tracking.run_name or f"sft {folder.name}", recipe.to_tables()) as tracked:
        started = time.monotonic()
        steps_here = itertools.count(1)  # since a resume, too

        def log(step: int, metrics: Mapping[str, float]) -> None:
            tracked.metrics(metrics, step)
            done = next(steps_here)
            if step == 1 or step % LOGGED_STEPS == 0:
                left = (time.monotonic() - started) / done * (steps - step) / 60
                scores = f"loss {metrics['loss']:.3f}  right tokens {metrics['reply_accuracy']:.1%}"
                print(f"step {step:4d} of {steps}  {scores}  {left:.0f} min left", flush=True)

        model = fine_tune(recipe, data, encoder, folder, resume=resume, on_log=log)
        trained_with.save(model)
        if recipe.sft.lora_rank:
            trained_with.save(folder / "adapter")
            record_base(folder / "adapter", base_name, Path(recipe.model.path))
        tracked.model(model)
    print(f"model in {model}; run {tracked.id} in {store}")
    evaluate = f"memagent evaluate DATA.parquet --model {shlex.quote(str(model))} --out FOLDER"
    train = f"memagent train RECIPE.toml {shlex.quote(f'model.path={model}')}"
    look_next(mlflow=tracked.page, command=f"{evaluate}, or {train}")


def _lessons(recipe: SftRecipe) -> tuple[Encoder, list[Row]]:
    """Return the lessons that the recipe describes, and how they are encoded. Warn of what they leave out."""
    from memagent_lib.backends import trained_window
    from memagent_lib.data import load
    from memagent_lib.evaluation import read_results
    from memagent_lib.paths import absolute
    from memagent_lib.readers import reader_named
    from memagent_lib.sft import lessons_from_examples, lessons_from_traces, rows

    reader = reader_named(recipe.reading.reader)
    model = recipe.model.path
    encoder = recipe.reading.encoder(model, recipe.chat_template)
    encoder.require_window(trained_window(model), f"the model {model}")
    if recipe.data.traces:
        results = [result for folder in recipe.data.traces for result in read_results(absolute(folder) / "readings")]
        left_out: Counter[str] = Counter()
        data = rows(lessons_from_traces(results, reader, left_out), encoder)
        if left_out:
            faults = ", ".join(f"{number:,} {fault}" for fault, number in left_out.most_common())
            warn(f"{left_out.total():,} turns are left out, whose reply was not a memory ({faults})")
    else:
        examples = [example for file in recipe.data.train for example in load(absolute(file))]
        data = rows(lessons_from_examples(examples, encoder, recipe.sft, reader), encoder)
    if not data:
        what = f"data.train has no example, or data.traces no right and whole reading by {reader.name!r}"
        raise ValueError(f"nothing to learn: {what}")
    return encoder, data
