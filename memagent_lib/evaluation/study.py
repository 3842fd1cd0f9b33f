"""The steps of a study, as notebooks take them: make data of several lengths, read it with several readers, gather and tabulate.

Knows files, agents and frames; what is logged where is the notebook's own choice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.agent import Agent
from memagent_lib.data import Example, data_hash, load, make, save
from memagent_lib.evaluation import trace_files
from memagent_lib.evaluation.evaluator import Rate, Result, evaluate, summarise, to_frame
from memagent_lib.files import code_hash, model_hash, place, replacing
from memagent_lib.prompts import Budget
from memagent_lib.readers import reader_named
from memagent_lib.text import Tokenizer
from memagent_lib.tracking.runs import Experiment, Run, load_results

if TYPE_CHECKING:
    import pandas as pd


def make_splits(
    folder: str | Path,
    task: str,
    splits: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    tokenizer: Tokenizer,
    seed: int,
    chunk_tokens: int | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Write one file per split and length, ``train_4.parquet``; a split is ``(lengths in chunks, how many of each)``.

    ``task`` is any of the catalogue's and ``settings`` are its own. Splits differ in their seed, so no document is in two.
    Returns a row per file.
    """
    import pandas as pd

    rows = []
    for number, (name, (lengths, counts)) in enumerate(splits.items()):
        for chunks, n in zip(lengths, _each(counts, lengths, f"{name} examples"), strict=True):
            examples = make(
                task, n, 1000 * seed + number, tokenizer, chunks=chunks, chunk_tokens=chunk_tokens, **settings
            )
            path = save(examples, split_file(folder, name, chunks))
            rows.append((name, chunks, n, path.stat().st_size >> 10, data_hash(path), str(path)))
    return pd.DataFrame(rows, columns=["split", "chunks", "examples", "kilobytes", "hash", "file"])


def split_file(folder: str | Path, split: str, chunks: int) -> Path:
    return place(folder) / f"{split}_{chunks}.parquet"


POCKET = Budget(chunk_tokens=128, memory_tokens=32, answer_tokens=16, question_tokens=32)
"""What the pocket policy was made for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to read: files of examples by length, how many of each, with which readers."""

    data: str
    chunks: Sequence[int]
    n: Sequence[int]
    readers: Sequence[str]
    split: str = "test"

    def __post_init__(self) -> None:
        for reader in self.readers:
            reader_named(reader)
        _each(self.n, self.chunks, "n")

    def examples(self) -> dict[int, list[Example]]:
        """The examples of each length; a file with fewer than asked for is an error."""
        found = {}
        for chunks, n in zip(self.chunks, _each(self.n, self.chunks, "n"), strict=True):
            path = split_file(self.data, self.split, chunks)
            found[chunks] = load(path, n)
            if len(found[chunks]) < n:
                raise ValueError(
                    f"{path} has {len(found[chunks]):,} examples and n asks for {n:,}; make more, or lower n"
                )
        return found


def evaluate_plan(
    agent: Agent, plan: Plan, folder: str | Path, identity: Mapping[str, Any], concurrency: int = 64
) -> list[Result]:
    """Read all of a plan with one engine. Finished readings are kept in ``folder`` and not done again when it is interrupted.

    ``identity`` says what else the readings depend on (:func:`identity`): other weights or words never meet old readings.
    """
    kept, results = place(folder) / "readings" / _digest({**identity, "code": code_hash()}), []
    for chunks, examples in plan.examples().items():
        for reader in plan.readers:
            journal = kept / f"{reader}_{_digest([e.to_record() for e in examples])}_{chunks}.jsonl"
            results += evaluate(replace(agent, reader=reader_named(reader)), examples, concurrency, journal)
    return results


def identity(model: str, agent: Agent, sampling: Any) -> dict[str, Any]:
    """What a reading depends on beside its example: weights, words, budget and sampling."""
    encoder = agent.encoder
    words = asdict(encoder.template)
    return {
        "model": model_hash(model),
        "template": words,
        "budget": asdict(encoder.budget),
        "sampling": asdict(sampling),
    }


def log_results(run: Run, results: Sequence[Result], model: str = "", **labels: Any) -> pd.DataFrame:
    """Log results to a run: a table, a metric per reader with the length as its step, the traces. Returns the rows, labelled.

    With ``model`` the metrics are also those of the MLflow model with its weights. The step counts chunks, and is 0 for documents
    whose length was not asked for in chunks.
    ``labels`` become columns (``policy="trained"``), and ``run_id`` is one of them, so a table of many runs says where each row is from.
    """
    frame = to_frame(results).assign(**labels, run_id=run.id)
    run.table(frame, "results.parquet")
    used = run.uses(model) if model else None
    for row in summarise(frame.assign(chunks=frame["chunks"].astype(float).fillna(0))).to_dict("records"):
        shown = {
            name: row[name] for name in ("accuracy", "low", "high", "capture", "retention") if row[name] == row[name]
        }
        run.metrics({f"{row['reader']}/{name}": value for name, value in shown.items()}, int(row["chunks"]), used)
    run.metrics({"scored": int(frame["score"].notna().sum()), "failed": int(frame["error"].notna().sum())})
    run.traces(results, **labels)
    return frame


def save_results(frame: pd.DataFrame, folder: str | Path, name: str) -> Path:
    """Keep result rows as ``NAME.parquet``, atomically, for :func:`gather`."""
    path = place(folder) / f"{name}.parquet"
    with replacing(path) as unfinished:
        frame.to_parquet(unfinished, index=False)
    return path


def gather(folder: str | Path, first: Sequence[str] = ()) -> pd.DataFrame:
    """All result rows in a folder, the policies named in ``first`` first; their order is the order of colours and rows."""
    import pandas as pd

    files = sorted(place(folder).glob("*.parquet"))
    if not files:
        raise FileNotFoundError(f"no results in {place(folder)}; run 03_evaluate there first")
    frame = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    if missing := [name for name in first if name not in set(frame["policy"])]:
        raise ValueError(
            f"no results of {', '.join(map(repr, missing))} in {place(folder)}; there are {', '.join(frame['policy'].unique())}"
        )
    rank = {name: at for at, name in enumerate([*first, *frame["policy"].unique()][::-1])}
    return frame.sort_values("policy", key=lambda names: -names.map(rank), kind="stable", ignore_index=True)


def table(results: pd.DataFrame) -> pd.DataFrame:
    """Accuracy with its interval, n and failures, one row per policy and reader, one column per length."""
    summary = summarise(results, by=("policy", "reader", "chunks"))
    summary["shown"] = [_shown(row) for row in summary.to_dict("records")]
    wide = summary.pivot(index=["policy", "reader"], columns="chunks", values="shown").fillna("")
    order = list(dict.fromkeys(zip(results["policy"], results["reader"], strict=True)))
    return wide.reindex(order).rename(columns=lambda c: f"{int(c):,} chunks").rename_axis(columns=None).reset_index()


def _shown(row: Mapping[str, Any]) -> str:
    failed = f", {row['failed']} failed" if row["failed"] else ""
    return (
        f"{Rate(row['accuracy'], row['low'], row['high'], row['scored'])}{failed}"
        if row["scored"]
        else f"none scored{failed}"
    )


def _each(values: Sequence[int], lengths: Sequence[int], what: str) -> Sequence[int]:
    """One value per length; a single one serves all."""
    if len(values) == 1:
        return [values[0]] * len(lengths)
    if len(values) != len(lengths):
        raise ValueError(
            f"{what} has {len(values)} values for {len(lengths)} lengths; give one for each, or one for all"
        )
    return values


def _digest(facts: Mapping[str, Any] | Iterable[Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()[
        :12
    ]


def load_readings(ledger: Experiment, rows: pd.DataFrame, reader: str, chunks: int) -> dict[str, list[Result]]:
    """Each policy's readings of one length with one reader, from the traces of the runs that the result rows name."""
    readings = {}
    for policy, of_policy in rows.groupby("policy", sort=False):
        found = [r for run_id in of_policy["run_id"].unique() for r in load_results(ledger.join(run_id))]
        readings[policy] = [r for r in found if r.reader == reader and r.example.metadata.get("chunks") == chunks]
        if not readings[policy]:
            there = ", ".join(map(str, sorted(of_policy["chunks"].unique())))
            raise ValueError(
                f"no traces of {policy!r} at {chunks} chunks with the reader {reader!r}; there are results at {there} chunks"
            )
    return readings


def turns(readings: Mapping[str, Sequence[Result]]) -> pd.DataFrame:
    """One row per turn of all readings, with a column ``policy``."""
    import pandas as pd

    return pd.concat(
        [trace_files.to_frame(found).assign(policy=policy) for policy, found in readings.items()], ignore_index=True
    )


def fates(readings: Mapping[str, Sequence[Result]]) -> pd.DataFrame:
    """How many readings ended with the fact in memory, lost, or never noted; a row per policy."""
    import pandas as pd

    ends = {policy: [str(r.diagnosis.fate) for r in found if r.trace.reads] for policy, found in readings.items()}
    counts = {policy: pd.Series(found).value_counts() for policy, found in ends.items()}
    return pd.DataFrame(counts).T.fillna(0).astype(int).rename_axis("at the last chunk the fact is")
