"""Train three real steps on this machine's devices and judge the run, before a long run is started.

The policy is small and random unless a model is named, because this checks the machine, not learning. The run is judged
only by its folder and its metrics.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from memagent_lib.agent import AgentSettings
from memagent_lib.backends import shape_of
from memagent_lib.data import make, save
from memagent_lib.findings import Finding, Health
from memagent_lib.models import cached_folder, find_model
from memagent_lib.paths import bytes_of
from memagent_lib.prompts import Budget
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.cpu import computes_in_half
from memagent_lib.rl.run.checks import require_training
from memagent_lib.rl.run.export import weights_of, whole_weights
from memagent_lib.rl.run.launcher import chosen_device, launch
from memagent_lib.rl.run.training_run import POLL_S, TrainingRun
from memagent_lib.rl.run_folder import SAVE_SECONDS, values_of
from memagent_lib.rl.verl import verl_keys
from memagent_lib.text import Tokenizer

STEPS = 3
PROMPTS = 4
ROLLOUTS = 4
CHUNKS = 3
PLAIN = Budget(chunk_tokens=1024, memory_tokens=256, answer_tokens=64, question_tokens=128)
AGREEMENT = 1e-6  # mean difference of log-probabilities, with fp32 on both sides
AGREEMENT_HALF = 0.02  # with bf16 on both


def check_training(folder: Path, tokenizer: str | Path, model: str = "") -> list[Finding]:
    """Train three steps in ``folder`` and return the findings about the run.

    The policy is ``model``; if ``model`` is empty, it is a small random one with the tokenizer of ``tokenizer``.
    Raises any error that starting or waiting for a run raises.
    """
    require_training()
    device = chosen_device("auto")
    model = find_model(model) if model else ""
    settings = AgentSettings.load(model or tokenizer)
    if settings == AgentSettings():  # of no trained agent: the published sizes would take too long
        settings = AgentSettings(budget=PLAIN)
    if not model:
        model = str(folder / "policy")
        random_policy(tokenizer, model, width=128, layers=2, window=512)
    print(f"{STEPS} steps of {PROMPTS} x {ROLLOUTS} rollouts on {device}, in {folder}")
    run = launch(_recipe(folder, model, settings, device), folder / "run")
    peak = 0.0
    status = run.status()
    while not status.state.over:
        peak = max(peak, _memory_gb(status.pid))
        time.sleep(POLL_S)
        status = run.status()
    run.wait()
    return list(check_run(run, device, Path(model), peak))


def _recipe(folder: Path, model: str, settings: AgentSettings, device: str) -> Recipe:
    own = Tokenizer.load(model)
    for name, n, seed in (("train", STEPS * PROMPTS, 0), ("eval", 2, 1)):
        examples = make("needle", n, seed, own, chunks=CHUNKS, chunk_tokens=settings.budget.chunk_tokens)
        save(examples, folder / f"{name}.parquet")
    verl = {
        verl_keys.STEPS: STEPS,
        verl_keys.PROMPTS: PROMPTS,
        verl_keys.ROLLOUTS: ROLLOUTS,
        f"{verl_keys.ACTOR}.optim.lr": 1e-4,
        verl_keys.KL_LOSS: False,
        f"{verl_keys.ACTOR}.entropy_coeff": 0.01,  # random replies are never right: only this moves the weights
    }
    verl |= {f"{verl_keys.CHAT_TEMPLATE}.{name}": value for name, value in settings.chat_template.items()}
    shipped = "chunk_first"
    if isinstance(settings.template, str):
        shipped = settings.template
    reading = {"template": shipped, "reader": settings.reader, "on_bad_memory": settings.on_bad_memory}
    reading |= asdict(settings.budget)
    return Recipe.from_tables(
        {
            "model": {"path": model, "device": device},
            "data": {"train": str(folder / "train.parquet"), "eval": str(folder / "eval.parquet")},
            "reading": reading,
            "verl": verl,
            "tracking": {"uri": f"sqlite:///{folder / 'mlflow.db'}"},
        }
    )


def check_run(run: TrainingRun, device: str, original: Path, peak_gb: float) -> Iterator[Finding]:
    """Return findings about a finished run: its metrics, its exported policy and its last checkpoint.

    ``original`` is the model that training began with, a folder or hub name. ``peak_gb`` is the measured peak of
    memory.
    """
    rows = [row["metrics"] for row in run.folder.rows() if "timing_s/gen" in row["metrics"]]
    apart = max(row["rollout/actor_difference"] for row in rows)
    alike = min(row["rollout/actor_correlation"] for row in rows)
    advice = "the rollouts do not use the actor's weights, or another precision: do not train here before this is found"
    found = f"correlation {alike:.7f}, mean difference {apart:.1e}"
    half = device == "cuda" or computes_in_half(shape_of(str(original)))
    agree = apart <= (AGREEMENT_HALF if half else AGREEMENT)
    yield Finding.check("log-probabilities of rollouts and actor", found, agree, advice)
    rows_alike = all(row["rows/produced"] == row["rows/carried"] == row["rows/trained"] for row in rows)
    trained = f"{sum(row['rows/trained'] for row in rows):.0f} of {sum(row['rows/produced'] for row in rows):.0f}"
    lost = "rows were lost between rollouts and update"
    yield Finding.check("rows trained of rows produced", trained, rows_alike, lost)
    yield weights_moved(original, run.folder.model)
    warm = rows[1:]  # the first step also fills caches and compiles
    rollout = [(row["rollout/prompt_tokens"] + row["rollout/reply_tokens"]) * row["rollout/count"] for row in warm]
    yield Finding("rollout", _rate(rollout, [row["timing_s/gen"] for row in warm]))
    update = [row["perf/total_num_tokens"] for row in warm]
    yield Finding("update", _rate(update, [row["timing_s/update_actor"] for row in warm]))
    yield Finding("step", f"{statistics.median(row['timing_s/step'] for row in warm):.1f} s, without the first")
    on_device = max(row.get("actor/perf/max_memory_reserved_gb", 0.0) for row in rows)
    gpu = ""
    if on_device:
        gpu = f", {on_device:.1f} GB of the GPU by the actor"
    yield Finding("peak memory", f"{peak_gb:.1f} GB{gpu}")
    yield _checkpoint(run)


def _rate(tokens: list[float], seconds: list[float]) -> str:
    return f"{sum(tokens) / sum(seconds):,.0f} tokens a second (prompts and replies, {len(tokens)} steps)"


def weights_moved(before: Path, after: Path) -> Finding:
    """Measure how far matrices moved. Norms are left out, because small bf16 steps do not change weights near one."""
    folder = before if before.is_dir() else cached_folder(str(before))
    one = {name: w for name, w in weights_of(folder).items() if w.dim() > 1} if folder else {}
    if not one:
        return Finding("weights moved", f"not measured: no safetensors of {before} on this machine", Health.NOTE)
    other = weights_of(after)
    far = {name: float((tensor.float() - other[name].float()).abs().max()) for name, tensor in one.items()}
    moved = sum(distance > 0 for distance in far.values())
    found = f"{moved} of {len(far)} matrices, by at most {max(far.values()):.1e}"
    fix = "matrices that stand still are not trained"
    return Finding.check("weights moved", found, passed=moved == len(far), fix=fix)


def _checkpoint(run: TrainingRun) -> Finding:
    """Compare the exported policy with the checkpoint that it came from, both as read from the disk."""
    last = run.folder.latest_checkpoint()
    if last is None:
        return Finding("checkpoint", "none", Health.FAILED, f"see {run.folder.log}")
    saved = whole_weights(last.folder / "actor")
    exported = weights_of(run.folder.model)
    equal = saved.keys() == exported.keys() and all(bool((saved[name] == exported[name]).all()) for name in saved)
    size = bytes_of(last.folder)
    seconds = sum(values_of((row["metrics"] for row in run.folder.rows()), SAVE_SECONDS))
    found = f"step {last.step}: {size / 1e6:,.1f} MB written in {seconds:.1f} s, and read back"
    return Finding.check("checkpoint", found, equal, "the exported policy is not the checkpoint's")


def _memory_gb(pid: int) -> float:
    """Return the memory in GB of a process and its descendants; shared pages are counted once per process."""
    import psutil

    if not pid:
        return 0.0
    total = 0
    with suppress(psutil.Error):
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total / 1e9


def random_policy(
    tokenizer: str | Path, folder: str | Path, width: int, layers: int, window: int, seed: int = 0
) -> None:
    """Write a random Qwen2 model and a tokenizer to ``folder``.

    Attention heads have 64 dimensions, and two query heads share a key head. ``window`` is in tokens.
    """
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    words = AutoTokenizer.from_pretrained(str(tokenizer))
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 128),
        max_position_embeddings=window,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    words.save_pretrained(folder)
