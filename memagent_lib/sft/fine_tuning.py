"""Train a causal language model on lessons with transformers' ``Trainer``, so that the result reads as it was trained.

The loss is the mean cross-entropy of the replies' tokens, their end token included; prompts have no loss. Prompts are
encoded by the encoder that readings use, so training and evaluation have the same tokens.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.errors import UserError
from memagent_lib.journal import digest
from memagent_lib.models import save_adapter
from memagent_lib.paths import apply_umask, write_atomically
from memagent_lib.prompts import Encoder
from memagent_lib.provenance import model_hash
from memagent_lib.rl import RunFolder, chosen_device, differences
from memagent_lib.settings import flatten
from memagent_lib.sft.lessons import Lesson
from memagent_lib.sft.sft_recipe import SftRecipe
from memagent_lib.system import cores, multiplies

if TYPE_CHECKING:
    import torch

WIDTHS = 32  # of batches; with any width, memory grew by 4 GB in 580 steps of SmolLM2-135M on a CPU, now not at all
LEAST_LR = 0.1  # of the peak; the rate falls to it along a line
RECIPE_FILE = "recipe.json"
FREE = ("model.device", "sft.save_steps", "sft.threads", "tracking.")  # what may differ when a run is resumed


class Diverged(UserError, ArithmeticError):
    """A gradient is NaN or infinite, after which every weight would be."""


class Row(NamedTuple):
    """A lesson as token ids. ``reply`` ends with the end token."""

    prompt: list[int]
    reply: list[int]


def rows(lessons: Iterable[Lesson], encoder: Encoder) -> list[Row]:
    """Encode lessons.

    Raises ``ValueError`` for a reply longer than its budget, a tokenizer without an end token, or a chat template that
    opens a thought, because what the model learnt would then be read as a thought without an end.
    """
    if encoder.tokenizer.thoughts.opened:
        raise ValueError("the model's chat template begins every reply inside a thought, and lessons have no thoughts")
    ends = encoder.tokenizer.end_ids
    if not ends:
        raise ValueError("the tokenizer has no token that ends a reply; set eos_token in tokenizer_config.json")
    found = []
    for prompt, reply in lessons:
        ids = [*encoder.tokenizer.encode(reply), ends[0]]
        limit = encoder.reply_limit(prompt.kind)
        if len(ids) > limit:
            raise ValueError(
                f"a lesson's {prompt.kind} reply is {len(ids):,} tokens and the budget allows {limit:,}: {reply:.80}; "
                "raise memory_tokens or answer_tokens"
            )
        found.append(Row(list(encoder.encode(prompt).ids), ids))
    return found


def fine_tune(
    recipe: SftRecipe,
    data: Sequence[Row],
    encoder: Encoder,
    out: Path,
    *,
    resume: bool = False,
    on_log: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None,
) -> Path:
    """Train the recipe's model on ``data``; return the folder of the finished model, ``out / "model"``.

    ``on_log`` receives the step and its metrics: ``loss``, ``learning_rate``, ``grad_norm`` and ``reply_accuracy``, the
    share of reply tokens that would have been chosen greedily. With ``resume``, continue from the last checkpoint in
    ``out``, or begin if there is none; ``ValueError`` says what differs from the recipe and the data that the run was
    begun with. :class:`Diverged` ends a run that diverges, before its weights are saved.
    Adapters are merged into the saved model, and also saved by themselves in ``out / "adapter"``.
    """
    import torch
    from transformers import PrinterCallback

    lessons = digest(json.dumps(data))[:16]
    checkpoint = _checkpoint_to_resume(recipe, out, lessons) if resume else None
    if checkpoint is None:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / RECIPE_FILE, json.dumps(_settings(recipe, lessons), indent=2) + "\n")
    config = recipe.sft
    on_cpu = chosen_device(recipe.model.device) == "cpu"
    if on_cpu:
        torch.set_num_threads(config.threads or cores())
    torch.manual_seed(config.seed)
    if checkpoint and _step_of(checkpoint) >= config.steps:
        # The trainer would begin by one more step. A kill after the last one may have left the model unsaved.
        return _saved(_model(recipe, checkpoint), encoder, out)
    model = _model(recipe)
    trainer = _trainer_class(on_log)(
        model=model,
        args=_arguments(recipe, out, on_cpu),
        train_dataset=[row._asdict() for row in data],
        data_collator=partial(_padded, pad=model.config.pad_token_id or 0),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return _saved(trainer.model, encoder, out)


def last_checkpoint(out: Path) -> Path | None:
    """Return the last whole checkpoint in ``out``, or ``None`` if there is none yet."""
    # transformers writes this file last, so a checkpoint that a kill cut short has none.
    whole = [file.parent for file in (out / "checkpoints").glob("checkpoint-*/trainer_state.json")]
    # A copy that somebody made beside it has another name.
    numbered = [folder for folder in whole if folder.name.removeprefix("checkpoint-").isdecimal()]
    return max(numbered, key=_step_of, default=None)


def require_own(out: Path, resume: bool) -> None:
    """Raise ``ValueError`` if ``out`` has a run that is not resumed, or a model that fine-tuning would replace."""
    begun = last_checkpoint(out)
    if begun and resume:
        return
    others = (path for path in (RunFolder(out).config, out / "model", out / "adapter") if path.exists())
    found = begun or next(others, None)
    if found:
        raise ValueError(
            f"{out} has {found.name} of another run; choose another --out, or continue a warm start with --resume"
        )


def _checkpoint_to_resume(recipe: SftRecipe, out: Path, lessons: str) -> Path | None:
    """Return the last checkpoint in ``out``, or ``None`` if a run has to begin anew.

    Raises ``ValueError``, which names every difference, if the run was begun with another recipe, or with lessons of
    another hash.
    """
    checkpoint = last_checkpoint(out)
    if checkpoint is None:
        return None
    before = json.loads((out / RECIPE_FILE).read_text(encoding="utf-8"))
    differ = differences(before, _settings(recipe, lessons), lambda name: name.startswith(FREE))
    if differ:
        raise ValueError(f"the run in {out} was begun with another recipe: {'; '.join(differ)}; choose another --out")
    return checkpoint


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _settings(recipe: SftRecipe, lessons: str) -> dict[str, Any]:
    hashes = {"weights of model.path": model_hash(recipe.model.path), "hash of the lessons": lessons}
    return json.loads(json.dumps(flatten(recipe.to_tables()) | hashes))  # as they are read back: lists for tuples


def _model(recipe: SftRecipe, checkpoint: Path | None = None) -> Any:
    """Load the model to train, or that of a checkpoint; adapters stay apart."""
    import torch
    from transformers import AutoModelForCausalLM

    rank = recipe.sft.lora_rank
    folder = recipe.model.path if rank or not checkpoint else checkpoint
    # fp32 weights, because an optimizer's small steps would round to nothing in bf16; bf16 is for products only.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if not rank:
        return model
    from peft import LoraConfig, PeftModel, get_peft_model

    if checkpoint:
        return PeftModel.from_pretrained(model, checkpoint)
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, adapters)


def _saved(trained: Any, encoder: Encoder, out: Path) -> Path:
    """Save the trained model, and its adapters by themselves; return the model's folder."""
    finished = out / "model"
    if hasattr(trained, "peft_config"):
        _save_adapter(trained, out / "adapter")
        trained = trained.merge_and_unload()
    trained.save_pretrained(finished)
    apply_umask(finished)
    encoder.tokenizer.hf.save_pretrained(finished)
    return finished


def _save_adapter(model: Any, folder: Path) -> None:
    """Round the adapters to bfloat16 and save them, so that the merged model is what the saved adapter gives."""
    import torch

    adapter = model.peft_config["default"]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_" in name:
                weight.copy_(weight.bfloat16())
    shutil.rmtree(folder, ignore_errors=True)
    save_adapter(model.state_dict(), adapter.r, adapter.lora_alpha, folder)


def _arguments(recipe: SftRecipe, out: Path, on_cpu: bool) -> Any:
    from transformers import TrainingArguments

    config = recipe.sft
    arguments = TrainingArguments(
        output_dir=str(out / "checkpoints"),
        use_cpu=on_cpu,
        bf16=not on_cpu or multiplies("bfloat16"),
        max_steps=config.steps,
        per_device_train_batch_size=config.batch,
        learning_rate=config.lr,
        warmup_steps=config.warmup_steps,
        lr_scheduler_type="polynomial",
        lr_scheduler_kwargs={"lr_end": LEAST_LR * config.lr},
        weight_decay=0.0,
        adam_beta2=0.95,  # the default, 0.999, averages over a thousand steps, which is all of a short run
        max_grad_norm=1.0,
        seed=config.seed,
        data_seed=config.seed,
        logging_steps=1,
        save_steps=config.save_steps,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,  # else all columns go that the model's forward does not take
        dataloader_pin_memory=not on_cpu,
    )
    # On a machine with several GPUs, transformers would give a batch to each of them, and so take larger ones.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _padded(batch: Sequence[Mapping[str, list[int]]], pad: int) -> dict[str, torch.Tensor]:
    """Pad a batch on the left, so that all replies end at the same position and the head computes only the replies.

    The width is a multiple of :data:`WIDTHS`.
    """
    import torch

    longest = max(len(row["prompt"]) + len(row["reply"]) for row in batch)
    width = -(-longest // WIDTHS) * WIDTHS
    replies = max(len(row["reply"]) for row in batch)
    ids = torch.full((len(batch), width), pad)
    mask = torch.zeros_like(ids)
    labels = torch.full((len(batch), replies), -100)
    for i, row in enumerate(batch):
        both = [*row["prompt"], *row["reply"]]
        ids[i, width - len(both) :] = torch.tensor(both)
        mask[i, width - len(both) :] = 1
        labels[i, replies - len(row["reply"]) :] = torch.tensor(row["reply"])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _trainer_class(on_log: Callable[[int, Mapping[str, float]], None]) -> type:
    """Return the trainer, defined here because importing transformers' takes seconds."""
    import torch
    from transformers import Trainer

    class TurnTrainer(Trainer):
        """Computes the loss of the replies only, and counts the tokens that greedy decoding would have got right."""

        right = 0
        total = 0

        def compute_loss(
            self, model: Any, inputs: Mapping[str, torch.Tensor], return_outputs: bool = False, **_: Any
        ) -> Any:
            labels = inputs["labels"]
            # One position more than the longest reply: the token before it predicts its first.
            output = model(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                position_ids=(inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0),  # as without padding
                logits_to_keep=labels.shape[1] + 1,
                use_cache=False,
            )
            scored = labels != -100
            logits = output.logits[:, :-1][scored].float()
            targets = labels[scored]
            self.right += int((logits.argmax(-1) == targets).sum())
            self.total += targets.numel()
            loss = torch.nn.functional.cross_entropy(logits, targets)
            return (loss, output) if return_outputs else loss

        def log(self, logs: dict[str, float], *rest: Any, **options: Any) -> None:
            if "loss" in logs:
                logs["reply_accuracy"] = self.right / self.total
                self.right = self.total = 0
                # The norm, because transformers logs another number for a loss that is not finite.
                if not math.isfinite(logs["grad_norm"]):
                    raise Diverged(
                        f"step {self.state.global_step}: the gradient's norm is {logs['grad_norm']}; lower sft.lr (now "
                        f"{self.args.learning_rate}) and start again with another --out"
                    )
                on_log(self.state.global_step, {name: float(value) for name, value in logs.items()})
            super().log(logs, *rest, **options)

    return TurnTrainer
