"""``memagent evaluate``: read data files with memory, and say how good it was."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.cli.agent_options import add_agent_options, agent_of
from memagent_lib.cli.arguments import Verbs, add_verb, option

if TYPE_CHECKING:
    from memagent_lib.evaluation import Result
    from memagent_lib.tracking import Run

MOST_REASONS = 10
EXAMPLES = """\
examples:
  memagent evaluate runs/study/data/test_4.parquet --model runs/demo/train/model --out runs/evaluated
  memagent evaluate hqa_50.parquet hqa_25600.parquet --n 128 --model NAME --backend openai \\
      --base-url http://localhost:8000/v1 --out runs/hqa          (the same command continues after a crash)
"""


def add_parser(verbs: Verbs) -> None:
    summary = "read data files of any length and score the answers"
    verb = add_verb(verbs, "evaluate", run, summary, EXAMPLES, kept=_kept)
    verb.add_argument("data", nargs="+", metavar="DATA", help="parquet files that `memagent data` wrote")
    option(verb, "--out", "FOLDER", "keeps every finished turn, the results, and the inspector's page", required=True)
    each = "how many examples of each file, 0 for all; all unless given; once for every file, or for each file its own"
    option(verb, "--n", "N", each, action="append", default=[])
    option(verb, "--policy", "NAME", "what tables and figures call it; the model's name unless given", default="")
    option(verb, "--concurrency", "N", "documents read side by side", default=64)
    wrong = "where the examples go that the first reader got wrong, as data to train on or to read again"
    option(verb, "--wrong", "FILE.parquet", wrong, default="")
    option(verb, "--tracking", "WHERE", "the MLflow store: a folder or a server's address", default="runs")
    add_agent_options(verb, several_readers=True)


def _kept(a: argparse.Namespace) -> str:
    return f"finished turns are kept in {a.out}/readings, and the same command continues"


def run(a: argparse.Namespace) -> int:
    from memagent_lib.data import require_parquet
    from memagent_lib.evaluation import EvaluationPlan, benchmark_table, failure_reasons, mixtures, overview, save_wrong
    from memagent_lib.paths import absolute
    from memagent_lib.tracking import Experiment, evaluate_files, policy_name

    if loose := [text for text in a.data if text.isdigit() and not absolute(text).exists()]:
        again = "--n takes one number, and is given again for the next file: --n 64 --n 16"
        raise ValueError(f"{', '.join(loose)} is no data file; {again}")
    files, n, readers = [absolute(file) for file in a.data], a.n or [0], list(dict.fromkeys(a.reader))
    plan = EvaluationPlan(files, n, readers or ["overwrite"])  # what is wrong is said before a model is loaded
    if (out := absolute(a.out)).exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, and --out names a folder; give another name")
    if a.wrong:
        require_parquet(a.wrong)
    if a.concurrency < 1:
        raise ValueError(f"--concurrency must be at least 1, got {a.concurrency}")
    policy = a.policy or policy_name(a.model)
    agent = agent_of(a)
    identity = agent.identity
    _require_same_chunks(out, policy, agent.encoder.budget.chunk_tokens)
    plan = EvaluationPlan(files, n, readers or [agent.reader.source])
    words = {"template": agent.encoder.template.name, "budget": agent.encoder.budget, "sampling": identity["sampling"]}
    params = {"model": a.model, "policy": policy, "data": a.data, "n": n, "reader": ", ".join(plan.readers), **words}
    try:
        with Experiment.open(a.tracking).run(f"evaluate {policy}", params | {"backend": a.backend}) as tracked:
            results, rows = evaluate_files(tracked, agent, plan, a.out, a.model, policy, a.concurrency, add=True)
    finally:
        agent.close()
    print(overview(rows).to_string(index=False))
    if len(table := benchmark_table(results, policy)):
        print(f"\nby the benchmarks' own metrics, in per cent:\n{table.to_string(index=False)}")
    for note in (*mixtures(rows), *failure_reasons(rows)[:MOST_REASONS]):
        print(f"warning: {note}", file=sys.stderr)
    if a.wrong:
        wrong = save_wrong(plan, results, absolute(a.wrong))
        left = (
            f"{wrong:,} not answered right, kept in {a.wrong}"
            if wrong
            else f"no answer was wrong: no {a.wrong} is written"
        )
        print(f"\n{left}", file=sys.stderr)
    page = _page(tracked, results, policy, out)
    print(f"\nrun {tracked.id} in {a.tracking}; readings in {a.out}/readings{page}", file=sys.stderr)
    return 0 if rows["score"].notna().any() else 1


def _require_same_chunks(folder: Path, policy: str, chunk_tokens: int) -> None:
    """The folder's rows of this policy stay beside the new ones, so they must be of the same lengths."""
    import pandas as pd

    from memagent_lib.tracking import rows_file

    path = folder / f"{rows_file(policy)}.parquet"
    there = sorted(set(pd.read_parquet(path)["chunk_tokens"])) if path.is_file() else [chunk_tokens]
    if there != [chunk_tokens]:
        raise ValueError(
            f"{path} holds results of {policy!r} read in chunks of {', '.join(map(str, there))} tokens, and this "
            f"evaluation takes {chunk_tokens}; give another --policy or --out"
        )


def _page(tracked: Run, results: Sequence[Result], policy: str, folder: Path) -> str:
    """The inspector's page of this call's readings, and of those whose rows stand beside them in the folder."""
    from memagent_lib import inspector
    from memagent_lib.evaluation import gather_rows
    from memagent_lib.tracking import load_readings

    read = {policy: [result for result in results if result.trace is not None]}
    try:
        rows = gather_rows(folder)
        for name, found in load_readings(tracked.experiment, rows[rows["run_id"] != tracked.id]).items():
            read[name] = [*found, *read.get(name, [])]
    except (ValueError, OSError) as failure:
        print(f"warning: the page shows the readings of this call alone: {failure}", file=sys.stderr)
    if not any(read.values()):
        return "; every reading failed"
    return f"; inspector page {inspector.to_html(read).save(folder / 'inspector.html')}"
