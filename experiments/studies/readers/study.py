"""The steps of the study of readers, as commands of ``memagent``, with the time that each is planned to take.

A step that has ended well leaves a file in the folder ``done``, and is not run again. Every reader has the same data,
warm-up steps, training steps and rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memagent_lib.rl import RunFolder
from memagent_lib.settings import read_toml, toml_value

HERE = Path(__file__).parent
WARM_START = "experiments/pocket/warm_start"
WORLD = "experiments/pocket/fair_world.py"
TASKS = ("needle", "update", "multikey", "bridge")
SPARSE = "sparse_2"
"""The training file of the first half: 2 chunks, nine of ten sentences filler, so that memories have room."""
TRAINED = {2: 960, 4: 960, 8: 960}
"""The number of training examples of the second half by length in chunks."""
TESTED = {1: 60, 2: 60, 4: 60, 16: 60, 64: 30, 256: 12}
"""The number of test examples of each task by length in chunks."""
FORM_CHUNKS = 4
"""The length of the documents on which the form of a warm start's replies is counted."""
WARM_CHUNKS = 16
"""The longest documents that a warm start reads; it is right on none of the longer ones."""
SEEDS = (0, 1)
MOST_HOURS = 20.0

# Of one step, on two idle cores. The study of length took 15 s for a step of this size on documents of up to 16 chunks.
_SECONDS = {"warm": 0.6, "train": 20.0}
_TURNS_A_SECOND = 150.0


@dataclass(frozen=True)
class Step:
    """One command of ``memagent``: its arguments, the file that marks it as done, and its planned hours."""

    name: str
    arguments: tuple[str, ...]
    mark: Path
    hours: float

    @property
    def done(self) -> bool:
        return self.mark.exists()


def objectives() -> dict[str, dict[str, float]]:
    """Return the rewards of each reader of the study, by name."""
    return read_toml(HERE / "objectives.toml", "table of objectives")


def steps(
    folder: Path,
    readers: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    train_steps: int | None = None,
    lengths: Sequence[int] = (),
) -> list[Step]:
    """Return the steps for ``readers`` (default: all), in order: data, warm starts, their form, training, evaluation.

    ``train_steps`` shortens training, and ``lengths`` are the lengths in chunks to evaluate. Raises ``ValueError`` for
    a reader without an objective.
    """
    known = objectives()
    unknown = [name for name in readers if name not in known]
    if unknown:
        raise ValueError(f"objectives.toml has no reader {unknown[0]!r}; choose from {', '.join(known)}")
    chosen = list(readers) or list(known)
    # The form of replies, and held-out scores in training, need documents of this length.
    tested = {length: n for length, n in TESTED.items() if not lengths or length in (*lengths, FORM_CHUNKS)}
    make = _Steps(folder, tested)
    return [
        *make.data(),
        *(step for reader in chosen for step in make.warm_start(reader)),
        *(make.before(reader) for reader in chosen),
        *(make.train(reader, seed, known[reader], train_steps) for seed in seeds for reader in chosen),
        *(make.evaluate(reader, seed) for seed in seeds for reader in chosen),
    ]


def plan(todo: Sequence[Step]) -> list[str]:
    """Return a line per group of steps with its number and hours, and their total. Steps that are done take none.

    Raises ``ValueError`` if the total exceeds :data:`MOST_HOURS`.
    """
    lines = []
    total = 0.0
    for group in dict.fromkeys(step.name.split()[0] for step in todo):
        of_group = [step for step in todo if step.name.split()[0] == group]
        left = [step for step in of_group if not step.done]
        hours = sum(step.hours for step in left)
        total += hours
        lines.append(f"{group:<10} {len(left):>3} of {len(of_group)} to do, {hours:5.2f} hours of two idle cores")
    lines.append(f"{'in all':<10} {total:.2f} hours; the study's budget is {MOST_HOURS:.0f}")
    if total > MOST_HOURS:
        raise ValueError(f"the steps need {total:.1f} hours and the budget is {MOST_HOURS:.0f}; choose fewer --readers")
    return lines


def missing(todo: Sequence[Step]) -> list[str]:
    """Return a line per group of steps that are not done, with their names and how far each training came."""
    lines = []
    for group in dict.fromkeys(step.name.split()[0] for step in todo):
        of_group = [step for step in todo if step.name.split()[0] == group]
        left = [step for step in of_group if not step.done]
        names = ", ".join(filter(None, map(_named, left)))
        if left and len(left) == len(of_group) and "(" not in names:
            names = "none has begun" if group == "train" else "all"
        if left:
            lines.append(f"missing: {group}, {len(left)} of {len(of_group)}: {names}")
    return lines


def _named(step: Step) -> str:
    group, _, name = step.name.partition(" ")
    folder = RunFolder(Path(step.arguments[step.arguments.index("--out") + 1]))
    if group != "train" or not (folder.path / "status.json").is_file():
        return name
    status = folder.status()
    return f"{name} ({status.state} at step {status.step} of {status.steps})"


def form_of(folder: Path, reader: str) -> Path:
    """Return the folder with the sampled readings of a reader's warm start, whose form is counted."""
    return folder / "form" / reader


def results_of(folder: Path, reader: str, seed: int | None) -> Path:
    """Return the folder of a reader's evaluation; without a seed, that of its warm start."""
    name = f"reader={reader}" if seed is None else f"reader={reader},seed={seed}"
    return folder / "results" / name


@dataclass(frozen=True)
class _Steps:
    """Makes the steps in one folder. ``tested`` has the number of test examples by length in chunks."""

    folder: Path
    tested: dict[int, int]

    def data(self) -> Iterator[Step]:
        ask = f"ask={','.join(TASKS)}"
        yield self._file("warm_4", "fair_mix", 4, 320, 1, ask)
        yield self._file(SPARSE, "fair_mix", 2, 960, 3, ask, "density=0.1")
        for chunks, n in TRAINED.items():
            yield self._file(f"train_{chunks}", "fair_mix", chunks, n, 2, ask)
        for task in TASKS:
            for chunks, n in self.tested.items():
                yield self._file(f"test_{task}_{chunks}", f"fair_{task}", chunks, n, 9)

    def warm_start(self, reader: str) -> Iterator[Step]:
        recipe = HERE / "warm.toml"
        model = self.folder / "warm" / reader
        settings = (f"reading.reader={reader}", f"data.train={self._path('warm_4')}")
        count = read_toml(recipe, "recipe")["sft"]["steps"]
        arguments = ("sft", str(recipe), *settings, "--out", str(model), *self._tracking)
        yield self._step(f"warm {reader}", arguments, count * _SECONDS["warm"] / 3600)
        tested = {FORM_CHUNKS: TESTED[FORM_CHUNKS]}
        out = form_of(self.folder, reader)
        yield self._evaluation(f"form {reader}", reader, model / "model", "warm start", tested, out, temperature=1.0)

    def before(self, reader: str) -> Step:
        tested = {length: n for length, n in self.tested.items() if length <= WARM_CHUNKS}
        model = self.folder / "warm" / reader / "model"
        out = results_of(self.folder, reader, None)
        return self._evaluation(f"before {reader}", reader, model, "warm start", tested, out)

    def train(self, reader: str, seed: int, rewards: dict[str, float], count: int | None) -> Step:
        recipe = HERE / "train.toml"
        steps = count or read_toml(recipe, "recipe")["verl"]["trainer"]["total_training_steps"]
        full = [self._path(f"train_{chunks}") for chunks in TRAINED]
        stages = [{"files": [self._path(SPARSE)], "steps": -(-steps // 2)}, {"files": full}]
        settings = (
            f"model.path={self.folder / 'warm' / reader / 'model'}",
            f"data.stages={toml_value(stages)}",
            f"data.eval={self._path(f'test_{TASKS[0]}_{FORM_CHUNKS}')}",
            f"reading.reader={reader}",
            f"train.seed={seed}",
            f"verl.trainer.total_training_steps={steps}",
            *(f"rewards.{name}={value}" for name, value in rewards.items()),
        )
        out = ("--out", str(self.folder / "train" / f"{reader}_{seed}"))
        arguments = ("train", str(recipe), *settings, *out, *self._tracking)
        return self._step(f"train {reader} {seed}", arguments, steps * _SECONDS["train"] / 3600)

    def evaluate(self, reader: str, seed: int) -> Step:
        model = self.folder / "train" / f"{reader}_{seed}/model"
        out = results_of(self.folder, reader, seed)
        return self._evaluation(f"evaluate {reader} {seed}", reader, model, f"trained, seed {seed}", self.tested, out)

    def _evaluation(
        self,
        name: str,
        reader: str,
        model: Path,
        policy: str,
        tested: dict[int, int],
        out: Path,
        temperature: float = 0.0,
    ) -> Step:
        files = [self._path(f"test_{task}_{chunks}") for task in TASKS for chunks in tested]
        turns = len(TASKS) * sum(n * (chunks + 1) for chunks, n in tested.items())
        # Most memories stay as they are, and this backend checks the old one in a single pass.
        backend = ("--backend", "vllm" if temperature else "transformers")
        settings = ("--model", str(model), "--reader", reader, "--policy", policy)
        settings += ("--set", f"temperature={temperature}")
        arguments = ("evaluate", *files, *settings, *backend, "--out", str(out), *self._tracking)
        return self._step(name, arguments, turns / _TURNS_A_SECOND / 3600)

    def _file(self, name: str, task: str, chunks: int, n: int, seed: int, *settings: str) -> Step:
        sizes = ("--chunks", str(chunks), "--chunk-tokens", "96", "--n", str(n), "--seed", str(seed))
        arguments = ("data", f"{WORLD}:{task}", *settings, *sizes, "--model", WARM_START, "--out", self._path(name))
        return self._step(f"data {name}", arguments, chunks * n / 1e6)

    def _step(self, name: str, arguments: tuple[str, ...], hours: float) -> Step:
        return Step(name, arguments, self.folder / "done" / name.replace(" ", "_"), hours)

    def _path(self, name: str) -> str:
        return str(self.folder / "data" / f"{name}.parquet")

    @property
    def _tracking(self) -> tuple[str, str]:
        return "--tracking", str(self.folder)
