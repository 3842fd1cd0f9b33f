"""Measure the parts of a training step, with our trainer, verl's own loop and, on request, another checkout of ours.

All sides train the same policy on the same documents, one after the other, and take turns in being first. For
comparison, the engine alone reads the same documents. The first step of a run warms up and is left out. Seconds are
wall seconds unless they are called processor seconds, which depend little on other work on the machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.studies.speed.processes import Watched, spent_between, watch
from experiments.studies.speed.results import Measured, Ratio
from memagent_lib.agent import AgentSettings, open_agent, run_sync
from memagent_lib.backends import Sampling
from memagent_lib.data import load, make, save
from memagent_lib.driver import gather
from memagent_lib.models import find_model
from memagent_lib.paths import absolute, root
from memagent_lib.rl import Recipe
from memagent_lib.text import Tokenizer

RECIPE = "experiments/pocket/recipes/pocket_demo.toml"
POLICY = "experiments/pocket/warm_start"
PROSE = "experiments/studies/prose/train.toml"
STEP = "timing_s/step"
ROLLOUT = "timing_s/gen"
PARTS = ("gen", "old_log_prob", "adv", "update_actor", "update_weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBench:
    """Sizes of the measurement: ``prompts`` x ``rollouts`` readings of ``chunks`` chunks per step.

    ``base`` is a checkout to compare with. ``model`` trains another model than the pocket policy, with the settings of
    the study of prose.
    """

    prompts: int = 8
    rollouts: int = 4
    chunks: int = 8
    steps: int = 3
    rounds: int = 1
    model: str = ""
    base: str = ""
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise ValueError(f"steps must be at least 2, because the first warms up; got {self.steps}")


def bench_train(settings: TrainBench, report: Callable[[str], None] = print) -> dict[str, Measured]:
    """Run every side in every round. The rows have all metrics and the processor seconds of each step."""
    s = settings
    runs = []
    with TemporaryDirectory(prefix="memagent-bench-") as home:
        folder = Path(home)
        recipe = bench_recipe(s, folder)
        sides = {"memagent": train_ours, "verl": _verl} | ({"base": train_ours} if s.base else {})
        for round_ in range(s.rounds):
            # The side that runs second may benefit from file caches.
            for name in list(sides) if round_ % 2 == 0 else list(sides)[::-1]:
                report(f"round {round_ + 1} of {s.rounds}: {name}")
                path = str(absolute(s.base) if name == "base" else root())
                seen = sides[name](recipe, folder / f"{name}-{round_}", path)
                runs.append({"side": name, "round": round_, "seen": seen})
                report(_summary(seen))
        engine = _engine_alone(s, recipe)
    rows = [row for run in runs for row in step_rows(**run)]
    ends = [run_ends(**run) for run in runs]
    return {
        "step": Measured(step_ratios(rows), rows, _parts(rows)),
        "rollout": Measured(_rollout_ratios(rows, engine), engine, _roles(rows)),
        "start and end": Measured(_end_ratios(ends), ends, "from the command to the first step, and after the last"),
    }


def bench_recipe(s: TrainBench, folder: Path) -> Recipe:
    """Make the documents of a measurement in ``folder``, and the recipe that trains on them."""
    policy = Path(find_model(s.model)) if s.model else root() / POLICY
    original = root() / (PROSE if s.model else RECIPE)
    tokenizer = Tokenizer.load(policy)
    reading = Recipe.load(original).reading
    size = reading.chunk_tokens if s.model else AgentSettings.load(POLICY).budget.chunk_tokens
    task = "prose_needle" if s.model else "needle"
    for name, n, seed in (("train", s.prompts * s.steps, s.seed), ("eval", 2, s.seed + 1)):
        save(make(task, n, seed, tokenizer, chunks=s.chunks, chunk_tokens=size), folder / f"{name}.parquet")
    overrides = [
        f"model.path='{policy}'",
        f"data.train=['{folder / 'train.parquet'}']",
        f"data.eval=['{folder / 'eval.parquet'}']",
        f"model.device={s.device}",
        f"verl.trainer.total_training_steps={s.steps}",
        f"verl.data.train_batch_size={s.prompts}",
        f"verl.actor_rollout_ref.rollout.n={s.rollouts}",
        "verl.trainer.test_freq=-1",
        "verl.actor_rollout_ref.actor.optim.lr_warmup_steps=0",
        f"tracking.uri='sqlite:///{folder / 'mlflow.db'}'",
    ]
    if s.model:
        overrides += ["data.stages=[]", "data.mix=examples", f"reading.template='{root() / reading.template}'"]
    # A copy, so that another checkout trains the same recipe and not its own version of it.
    recipe = folder / "recipe.toml"
    recipe.write_text(original.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "overrides.txt").write_text("\n".join(overrides), encoding="utf-8")
    return Recipe.load(recipe, overrides)


def train_ours(recipe: Recipe, out: Path, checkout: str) -> Watched:
    """Train the recipe of :func:`bench_recipe` with the code of ``checkout``, and write the run to ``out``."""
    home = out.parent
    overrides = (home / "overrides.txt").read_text(encoding="utf-8").splitlines()
    command = [sys.executable, "-m", "memagent_lib.cli", "train", str(home / "recipe.toml"), *overrides]
    command += ["--out", str(out)]
    return watch(command, {"PYTHONPATH": checkout}, checkout, out / "metrics.part.jsonl", out.with_suffix(".log"))


def _verl(recipe: Recipe, out: Path, checkout: str) -> Watched:
    from experiments.studies.speed.verl_command import arguments, verl_environment
    from memagent_lib.rl import RunFolder
    from memagent_lib.rl.verl.verl_settings import leave_out_slow_imports

    folder = RunFolder(out)
    device = recipe.model.device
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *arguments(recipe, folder, device)]
    leave_out_slow_imports(folder)
    variables = verl_environment(recipe, folder, checkout)
    return watch(command, variables, checkout, folder.verl_metrics, out.with_suffix(".log"))


def _engine_alone(s: TrainBench, recipe: Recipe) -> list[dict[str, Any]]:
    """Read each step's documents with the engine alone, all rollouts at once; return a row per step but the first."""
    examples = list(load(recipe.data.train[0]))
    sampling = Sampling(temperature=recipe.verl["actor_rollout_ref.rollout.temperature"], seed=s.seed)
    reading = recipe.reading
    options = {"template": reading.template, "budget": reading.budget, "sampling": sampling}
    agent = open_agent(recipe.model.path, "vllm", **options)
    rows = []

    async def step(number: int) -> None:
        batch = examples[number * s.prompts : (number + 1) * s.prompts]
        wall = time.perf_counter()
        cpu = time.process_time()
        traces = await gather(agent.aread(e.document, e.question) for e in batch for _ in range(s.rollouts))
        took = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        rows.append({"side": "engine alone", "step": number + 1, "turns": sum(len(t.turns) for t in traces), **took})

    async def steps() -> None:
        for number in range(s.steps):
            await step(number)
        await agent.backend.close()

    run_sync(steps())
    return rows[1:]  # the first step warms the engine up


def step_rows(side: str, round: int, seen: Watched) -> list[dict[str, Any]]:
    """Return the metrics and the processor seconds by process of every step except the first."""
    return [
        {"side": side, "round": round, "cpu": spent_between(seen, at - 1, at)} | seen.rows[at]
        for at in range(1, len(seen.rows))
    ]


def run_ends(side: str, round: int, seen: Watched) -> dict[str, Any]:
    """Return the seconds before the first step and after the last one, and the processor seconds of both together."""
    start = seen.times[0] - seen.rows[0][STEP]
    end = seen.seconds - seen.times[-1]
    # The first step's processor time is unknown, so each step is counted as an average one.
    steps = sum(spent_between(seen, 0, -1).values()) / (len(seen.rows) - 1) * len(seen.rows)
    return {
        "side": side,
        "round": round,
        "start_s": start,
        "end_s": end,
        "cpu_s": sum(seen.total.values()) - steps,
        "processes": seen.processes,
    }


def step_ratios(rows: list[dict[str, Any]]) -> list[Ratio]:
    """Return the wall and processor seconds of a step by side, and the ratios of the other sides to ours."""
    found = [Ratio("step", f"{side}, wall", _column(rows, side, STEP), unit=" s") for side in _sides(rows)]
    found += [Ratio("step", f"{side}, processor", _cpu(rows, side), unit=" s") for side in _sides(rows)]
    for other, bound in (("base", None), ("verl", 2.0)):
        if other in _sides(rows):
            values = _over(_column(rows, other, STEP), _column(rows, "memagent", STEP))
            found.append(Ratio("step", f"{other} over memagent, wall", values, at_least=bound))
            values = _over(_cpu(rows, other), _cpu(rows, "memagent"))
            found.append(Ratio("step", f"{other} over memagent, processor", values, at_least=bound))
    return found


def _rollout_ratios(rows: list[dict[str, Any]], engine: list[dict[str, Any]]) -> list[Ratio]:
    found = [Ratio("rollout", f"{side}, wall", _column(rows, side, ROLLOUT), unit=" s") for side in _sides(rows)]
    ours = _column(rows, "memagent", ROLLOUT)
    for other, bound in (("base", 1.7), ("verl", None)):
        if other in _sides(rows):
            values = _over(_column(rows, other, ROLLOUT), ours)
            found.append(Ratio("rollout", f"{other} over memagent, wall", values, at_least=bound))
    alone = tuple(row["seconds"] for row in engine)
    found.append(Ratio("rollout", "engine alone, wall", alone, unit=" s"))
    found.append(Ratio("rollout", "engine alone, processor", tuple(r["cpu_seconds"] for r in engine), unit=" s"))
    found.append(Ratio("rollout", "memagent over engine alone, wall", _over(ours, alone)))
    return found


def _end_ratios(ends: list[dict[str, Any]]) -> list[Ratio]:
    found = []
    for side in dict.fromkeys(row["side"] for row in ends):
        both = tuple(row["start_s"] + row["end_s"] for row in ends if row["side"] == side)
        bound = 60.0 if side == "memagent" else None
        found.append(Ratio("start and end", f"{side}, wall", both, at_most=bound, unit=" s"))
        cpu = tuple(row["cpu_s"] for row in ends if row["side"] == side)
        found.append(Ratio("start and end", f"{side}, processor", cpu, unit=" s"))
    return found


def _sides(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["side"] for row in rows))


def _column(rows: list[dict[str, Any]], side: str, name: str) -> tuple[float, ...]:
    return tuple(row[name] for row in rows if row["side"] == side)


def _cpu(rows: list[dict[str, Any]], side: str) -> tuple[float, ...]:
    return tuple(sum(row["cpu"].values()) for row in rows if row["side"] == side)


def _over(more: tuple[float, ...], less: tuple[float, ...]) -> tuple[float, ...]:
    """Divide step by step, which is fair because both sides read the same documents in a step."""
    return tuple(a / b for a, b in zip(more, less, strict=False))


def _parts(rows: list[dict[str, Any]]) -> str:
    """Format the wall seconds of a step's parts: the median over all steps of each side."""
    lines = []
    for side in _sides(rows):
        parts = {name: _column(rows, side, f"timing_s/{name}") for name in PARTS if f"timing_s/{name}" in rows[0]}
        parts = {name: statistics.median(values) for name, values in parts.items() if values}
        rest = statistics.median(_column(rows, side, STEP)) - sum(parts.values())
        lines.append(f"\n  {side}: " + _seconds(parts | {"rest": rest}))
    return "wall seconds" + "".join(lines)


def _roles(rows: list[dict[str, Any]]) -> str:
    """Format the processor seconds of a step by process: the median over all steps of each side."""
    lines = []
    for side in _sides(rows):
        spent = [row["cpu"] for row in rows if row["side"] == side]
        names = sorted({name for step in spent for name in step})
        lines.append(f"\n  {side}: " + _seconds({n: statistics.median(s.get(n, 0.0) for s in spent) for n in names}))
    return "processor seconds of a step by process" + "".join(lines)


def _seconds(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in parts.items() if value >= 0.005)


def _summary(seen: Watched) -> str:
    steps = ", ".join(f"{row[STEP]:.1f}" for row in seen.rows)
    return f"  steps {steps} s; whole run {seen.seconds:.0f} s, {sum(seen.total.values()):.0f} processor seconds"
