"""Two evaluations side by side: which runs there are, what differs between two, and by how much on the documents both have read.

Knows runs, result rows and readings; draws nothing. :func:`small_pair` makes two small evaluations where none are kept yet.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

from memagent_lib.agent import open_agent
from memagent_lib.backends import Sampling
from memagent_lib.data import make
from memagent_lib.evaluation.evaluator import Result, evaluate, wilson
from memagent_lib.evaluation.study import POCKET, log_results
from memagent_lib.files import place
from memagent_lib.tracking.runs import Experiment, Run, load_results, load_runs
from memagent_lib.tracking.store import TrackingError

if TYPE_CHECKING:
    import pandas as pd

_TRIED = 30
_SAME = ["example", "document_chars", "answers"]
"""What says that two rows are about one document: ids alone are the same for other settings of a task."""


@dataclass(frozen=True)
class Pair:
    """Two runs that read some documents in common, each with the name that tables and figures call it."""

    left: Run
    right: Run
    names: tuple[str, str]

    def rows(self) -> pd.DataFrame:
        """The result rows of both; ``policy`` is the name."""
        import pandas as pd

        return pd.concat(
            [_rows(run).assign(policy=name) for run, name in zip((self.left, self.right), self.names, strict=True)]
        )

    def readings(self, reader: str, chunks: int) -> tuple[list[Result], list[Result]]:
        """The readings of one length that each run kept."""
        left, right = (
            [r for r in load_results(run) if r.reader == reader and r.example.metadata.get("chunks") == chunks]
            for run in self
        )
        return left, right

    def differing(self) -> pd.DataFrame:
        """The parameters in which the runs differ, a row each."""
        runs = load_runs(self.left.ledger).set_index("run_id").loc[[run.id for run in self]]
        params = runs.filter(like="params.").rename(columns=lambda name: name.removeprefix("params.")).fillna("").T
        params.columns = list(self.names)
        return params[params[self.names[0]] != params[self.names[1]]].rename_axis("parameter")

    def __iter__(self):
        return iter((self.left, self.right))


def evaluations(ledger: Experiment) -> pd.DataFrame:
    """The runs that kept results, newest first: ``run_id, name, policy, started`` and the rest of :func:`load_runs`."""
    runs = load_runs(ledger, "metrics.scored > 0 and status = 'FINISHED'")
    runs = runs.assign(policy=runs.get("params.policy", runs["name"]))
    first = ["run_id", "name", "policy", "started"]
    return runs[first + [column for column in runs.columns if column not in first]]


def choose(ledger: Experiment, left: str = "", right: str = "", reader: str = "overwrite") -> Pair | None:
    """The two newest evaluations that have read documents, of a length in chunks, in common; ``None`` where there are no two.

    ``left`` and ``right`` narrow the choice to a run (its id or the beginning of it) or to the runs of a policy.
    """
    runs = evaluations(ledger)
    recent = runs.head(_TRIED).to_dict("records")
    lefts = _named(runs, left) if left else recent
    rights = _named(runs, right) if right else recent

    @cache
    def read(run_id: str) -> frozenset[tuple]:
        rows = _rows(ledger.join(run_id))
        return frozenset(
            rows[(rows["reader"] == reader) & rows["score"].notna() & rows["chunks"].notna()][_SAME].itertuples(
                index=False, name=None
            )
        )

    for b, a in product(rights, lefts):
        if a["run_id"] != b["run_id"] and read(a["run_id"]) & read(b["run_id"]):
            return _pair(ledger, a, b)
    if left and right:
        raise TrackingError(
            f"{left!r} and {right!r} have read no document in common with the reader {reader!r}; evaluate both on the same data"
        )
    return None


def small_pair(
    ledger: Experiment,
    models: Sequence[str],
    chunks: Sequence[int] = (4, 16),
    n: int = 32,
    seed: int = 11,
    backend: str = "vllm",
    threads: int = 0,
) -> Pair:
    """Evaluate two pocket policies on a few generated documents, each in a run of its own; of a single one, its likeliest replies
    and replies drawn at temperature 1, as training draws them."""
    there = [m for m in models if (place(m) / "config.json").is_file()]
    if not there:
        raise FileNotFoundError(f"no model at {', '.join(models)}; `make demo` trains one")
    greedy, drawn = Sampling(), Sampling(temperature=1.0, seed=seed)
    plans = (
        [(m, m, greedy) for m in there[:2]]
        if len(there) > 1
        else [(there[0], "greedy", greedy), (there[0], "temperature 1", drawn)]
    )
    made = []
    for model, name, sampling in plans:
        agent = open_agent(model, backend, template="pocket", budget=POCKET, sampling=sampling, threads=threads)
        examples = [e for c in chunks for e in make("needle", n, seed, agent.encoder.tokenizer, chunks=c)]
        facts = {
            "model": model,
            "policy": name,
            "chunks": list(chunks),
            "n": n,
            "seed": seed,
            "sampling": sampling,
            "budget": POCKET,
        }
        with ledger.run(f"evaluate {name}", facts) as run:
            log_results(run, evaluate(agent, examples), model, policy=name, chunk_tokens=POCKET.chunk_tokens)
        agent.close()
        made.append((run, name))
    (left, a), (right, b) = made
    return Pair(left, right, (a, b))


def paired(results: pd.DataFrame, left: str, right: str, reader: str = "overwrite") -> pd.DataFrame:
    """Policy ``right`` minus policy ``left`` on the documents that both read, one row per length.

    Columns: ``difference`` of the mean scores, its 95 % interval ``low, high``, ``n`` documents, and on how many of them one alone
    scored higher (``right_only``, ``left_only``). A document that failed for either is left out.
    """
    import pandas as pd

    rows = results[(results["reader"] == reader) & results["score"].notna()]
    of_left, of_right = (rows[rows["policy"] == policy].set_index(_SAME) for policy in (left, right))
    both = of_left[["chunks"]].assign(left=of_left["score"]).join(of_right["score"].rename("right"), how="inner")
    if both.empty:
        raise ValueError(
            f"{left!r} and {right!r} have read no document in common with the reader {reader!r}; evaluate both on the same data"
        )
    made = []
    for chunks, of in both.groupby("chunks"):
        a, b = of["left"], of["right"]
        low, high = paired_interval(a.tolist(), b.tolist())
        made.append((int(chunks), b.mean() - a.mean(), low, high, len(of), int((b > a).sum()), int((a > b).sum())))
    frame = pd.DataFrame(made, columns=["chunks", "difference", "low", "high", "n", "right_only", "left_only"])
    frame.attrs["names"] = (left, right)
    return frame


def paired_interval(left: Sequence[float], right: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of mean(right) - mean(left) for scores of the same documents (Newcombe 1998, method 10).

    Wilson's intervals of the two shares, joined with regard to how they go together. Holds for few documents and for shares of
    0 and 1, where a bootstrap has nothing to draw from; made for shares, and used for fractional scores too.
    """
    n = len(left)
    a, b = wilson(sum(left), n), wilson(sum(right), n)
    together = n * sum(x * y for x, y in zip(left, right, strict=True)) - sum(left) * sum(right)
    if together > 0:
        together = max(0.0, together - n / 2)
    spread = math.sqrt(sum(left) * (n - sum(left)) * sum(right) * (n - sum(right)))
    phi = together / spread if spread else 0.0

    def half(up: float, down: float) -> float:
        return math.sqrt(max(0.0, up * up - 2 * phi * up * down + down * down))

    difference = b.value - a.value
    return difference - half(b.value - b.low, a.high - a.value), difference + half(b.high - b.value, a.value - a.low)


def _named(runs: pd.DataFrame, name: str) -> list[dict]:
    found = runs[(runs["policy"] == name) | runs["run_id"].str.startswith(name)]
    if found.empty:
        known = ", ".join(f"{policy!r}" for policy in runs["policy"].unique()) or "none"
        raise TrackingError(
            f"no evaluation {name!r}; there are {known}; run 03_evaluate, or give the id of one of its runs"
        )
    return found.head(_TRIED).to_dict("records")


def _pair(ledger: Experiment, left: dict, right: dict) -> Pair:
    names = [run["policy"] for run in (left, right)]
    if names[0] == names[1]:
        names = [f"{run['policy']} {run['run_id'][:6]}" for run in (left, right)]
    return Pair(ledger.join(left["run_id"]), ledger.join(right["run_id"]), (names[0], names[1]))


def _rows(run: Run) -> pd.DataFrame:
    import pandas as pd

    with tempfile.TemporaryDirectory() as folder:
        return pd.read_parquet(run.fetch("results.parquet", folder))
