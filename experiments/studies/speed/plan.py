"""Put the plan of a training run beside a measurement: ``python -m experiments.studies.speed plan``.

The plan is an upper bound: every memory and reply is full, and a micro-batch consists of replies. Each measured number
has the planned one as its bound, so "missed" means that the plan promised too little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.studies.speed.results import Measured, Ratio
from experiments.studies.speed.train import STEP, TrainBench, bench_recipe, train_ours
from memagent_lib.paths import absolute, root
from memagent_lib.rl import RunFolder, TrainingPlan, dry_run

GB = 1e9
GIB = 1 << 30
TRAINING = "training process"
SERVERS = "rollout servers"
BESIDE = "Ray and trainer"
ROLES = {"actor": TRAINING, "rollouts": SERVERS}  # of processes; every other role is beside them
MACHINE_GIB = "actor/perf/cpu_memory_used_gb"  # of the whole machine, other programs included
GPU_GIB = "actor/perf/max_memory_allocated_gb"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBench:
    """The steps to train: ``prompts``, ``rollouts``, ``chunks``, ``steps``, ``model`` as in :class:`TrainBench`.

    With ``run``, the folder of a training run, nothing is trained: its recipe is planned, and its own rows are the
    measurement.
    """

    prompts: int = 8
    rollouts: int = 4
    chunks: int = 8
    steps: int = 3
    model: str = ""
    device: str = "cpu"
    run: str = ""
    seed: int = 0


def bench_plan(settings: PlanBench, report: Callable[[str], None] = print) -> dict[str, Measured]:
    """Plan a run, take or make its measurement, and return both beside each other."""
    s = settings
    if s.run:
        folder = RunFolder(absolute(s.run))
        if not folder.config.is_file():
            raise ValueError(f"no training run at {folder.path}; run must be the folder that memagent train printed")
        recipe, device = folder.recipe()
        steps = steps_of(folder)
        recipe = replace(recipe, model=replace(recipe.model, device=device))
        plan = dry_run(recipe, folder.path, resume=True)  # the folder is the run's own
        return {"plan": beside(plan, steps, [])}
    sizes = {name: getattr(s, name) for name in ("prompts", "rollouts", "chunks", "steps", "model", "device", "seed")}
    with TemporaryDirectory(prefix="memagent-bench-") as home:
        recipe = bench_recipe(TrainBench(**sizes), Path(home))
        plan = dry_run(recipe, Path(home) / "run")
        report(f"training {s.steps} steps")
        seen = train_ours(recipe, Path(home) / "run", str(root()))
    return {"plan": beside(plan, seen.rows, seen.memory)}


def steps_of(folder: RunFolder) -> list[Mapping[str, Any]]:
    """Return the metrics of a run's steps, without the row of a validation before the first one."""
    return [row["metrics"] for row in folder.rows() if STEP in row["metrics"]]


def beside(plan: TrainingPlan, steps: Sequence[Mapping[str, Any]], looks: Sequence[Mapping[str, float]]) -> Measured:
    """Return what was measured, bounded by the plan.

    ``steps`` are the metrics of a run's steps, and ``looks`` the memory of :class:`Watched`; without looks, the memory
    is what verl logged.
    """
    if not steps:
        raise ValueError("the run has finished no step, so there is nothing to measure")
    later = steps[1:] or steps  # the first step warms up
    memory = {"cpu": _cpu_memory, "cuda": _gpu_memory}[plan.device]
    ratios = [*memory(plan, steps, looks), *_tokens(plan, later), *_seconds(plan, later)]
    lines = list(plan.lines())
    rows = [{"planned": lines}, *({"step": number, **row} for number, row in enumerate(steps, 1))]
    return Measured(ratios, rows, "".join(f"\n  {line}" for line in lines))


def _cpu_memory(
    plan: TrainingPlan, steps: Sequence[Mapping[str, Any]], looks: Sequence[Mapping[str, float]]
) -> list[Ratio]:
    planned = dict.fromkeys((TRAINING, SERVERS, BESIDE), 0.0)
    for use, size in plan.cpu_bytes().items():
        part = SERVERS if "rollout server" in use else use
        planned[part if part in planned else TRAINING] += size / GB
    total = sum(planned.values())
    if not looks:
        used = max(row[MACHINE_GIB] for row in steps) * GIB / GB
        what = f"the whole machine, other programs included; planned for the run alone {total:.1f} GB"
        return [Ratio("memory", what, (used,), unit=" GB")]  # without a bound, because of the other programs
    # The most that a part had at one moment: its processes reach their peaks at different ones.
    ratios = []
    for part in planned:
        sizes = (sum(size for role, size in look.items() if ROLES.get(role, BESIDE) == part) for look in looks)
        ratios.append(Ratio("memory", part, (max(sizes) / 1e3,), at_most=planned[part], unit=" GB"))
    together = max(sum(look.values()) for look in looks) / 1e3
    return [*ratios, Ratio("memory", "all together", (together,), at_most=total, unit=" GB")]


def _gpu_memory(plan: TrainingPlan, steps: Sequence[Mapping[str, Any]], *_: Any) -> list[Ratio]:
    """Compare what torch allocated in the training process; vLLM's memory is in another process."""
    phases = (plan.gpu.training_bytes(), plan.gpu.scoring_bytes())
    planned = max(sum(size for use, size in phase.items() if use != "vLLM asleep") for phase in phases) / GB
    used = max(row[GPU_GIB] for row in steps) * GIB / GB
    return [Ratio("memory", "a GPU, update or log-probabilities", (used,), at_most=planned, unit=" GB")]


def _tokens(plan: TrainingPlan, steps: Sequence[Mapping[str, Any]]) -> list[Ratio]:
    found = []
    for name, planned in (("prompt", plan.work.prompt_tokens), ("reply", plan.work.reply_tokens)):
        counted = tuple(row[f"rollout/{name}_tokens"] * row["rollout/count"] / 1e3 for row in steps)
        found.append(Ratio("tokens", f"{name} tokens of a step", counted, at_most=planned / 1e3, unit="K"))
    return found


def _seconds(plan: TrainingPlan, steps: Sequence[Mapping[str, Any]]) -> list[Ratio]:
    seconds = tuple(row[STEP] for row in steps)
    bound = None if plan.device == "cpu" else _planned_seconds(plan)
    flop = sum(plan.flops.values())
    rate = tuple(flop / each / 1e9 for each in seconds)
    return [
        Ratio("seconds", "a step", seconds, at_most=bound, unit=" s"),
        Ratio("seconds", "the planned arithmetic over a step's seconds", rate, unit=" GFLOP/s"),
    ]


def _planned_seconds(plan: TrainingPlan) -> float | None:
    """Return the planned seconds of a step on this machine's GPU, or ``None`` if the plan does not know the GPU."""
    import torch

    from memagent_lib.rl.run.training_plan import GPUS

    name = torch.cuda.get_device_properties(0).name if torch.cuda.is_available() else ""
    known = {key.rsplit(" ", 2)[0]: gpu for key, gpu in GPUS.items()}  # "RTX 4090 24 GB" without its size
    found = next((gpu for key, gpu in known.items() if key in name), None)
    return None if found is None else plan.hours(found) * 3600
