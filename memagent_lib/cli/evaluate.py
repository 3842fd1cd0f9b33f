"""``memagent evaluate``: read the documents in data files with a memory, and score the answers."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.cli.agent_options import add_agent_options, agent_of, api_key
from memagent_lib.cli.arguments import Verbs, add_verb, look_next, option, tracking_option, warn

if TYPE_CHECKING:
    import pandas as pd

    from memagent_lib.evaluation import EvaluationPlan, ModelJudge, Result
    from memagent_lib.tracking import Run

MOST_REASONS = 10
MOST_POLICY_CHARS = 120
EXAMPLES = """\
examples:
  memagent evaluate runs/study/data/test_4.parquet --model runs/demo/train/model --out runs/evaluated
  memagent evaluate hqa_50.parquet hqa_25600.parquet --n 128 --model NAME --backend openai \\
      --base-url http://localhost:8000/v1 --out runs/hqa          (the same command continues after a crash)
  memagent evaluate hqa_50.parquet --model Qwen/Qwen2.5-7B-Instruct --engines 8 --out runs/hqa        (8 GPUs here)
  memagent evaluate memoryagentbench.parquet --model NAME --shared-reading --out runs/bench   (a context is read once)
  memagent evaluate hqa_50.parquet --model /shared/model --engines 16 --cluster head:6379 --out runs/hqa
"""


def add_parser(verbs: Verbs) -> None:
    summary = "read data files of any length and score the answers"
    verb = add_verb(verbs, "evaluate", run, summary, EXAMPLES, how_to_continue=_how_to_continue)
    verb.add_argument("data", nargs="+", metavar="DATA", help="parquet files that `memagent data` wrote")
    out = "the folder for finished turns, results and the inspector's page"
    option(verb, "--out", "FOLDER", out, required=True)
    each = "examples to read from each file (0, the default: all); repeat it to give each file its own number"
    option(verb, "--n", "N", each, action="append", default=[])
    policy = "the model's name in tables and figures (default: the model's folder or hub name)"
    option(verb, "--policy", "NAME", policy, default="")
    option(verb, "--concurrency", "N", "documents read at the same time", default=64)
    shared = (
        "read a document once for all questions about it that follow one another in DATA, before they are known "
        "(default: once for each, with the question in every prompt)"
    )
    verb.add_argument("--shared-reading", action="store_true", help=shared)
    text = "with --shared-reading: the text in place of the question while a document is read"
    option(verb, "--shared-question", "TEXT", text, default="")
    wrong = "write the examples that the first reader got wrong to this file, in the same form as DATA"
    option(verb, "--wrong", "FILE.parquet", wrong, default="")
    tracking_option(verb)
    add_agent_options(verb, several_readers=True)
    more = verb.add_argument_group("several engines", "Each is a process with a copy of the model, started by Ray.")
    engines = "how many engines read (default: one in this process): at most one per GPU, or per core without GPUs"
    option(more, "--engines", "N", engines)
    cluster = "the address of a running Ray cluster, or auto (default: a Ray on this machine, for this command)"
    option(more, "--cluster", "ADDRESS", cluster, default="")
    _add_judge_options(verb)


def _add_judge_options(verb: argparse.ArgumentParser) -> None:
    from memagent_lib.backends import BACKENDS

    judge = verb.add_argument_group(
        "model judge", "A second opinion on every answer, beside the rule's score; verdicts are saved in --out."
    )
    option(judge, "--judge", "MODEL", "a model that judges the answers: a folder, a hub name, or a server's name")
    option(judge, "--judge-backend", "NAME", "how it runs (default: as --backend)", choices=list(BACKENDS))
    option(judge, "--judge-base-url", "URL", "its server (default: that of --base-url)")
    option(judge, "--judge-api", "NAME", "its server's API (default: as --api)", choices=["completions", "chat"])
    option(judge, "--judge-api-key-file", "FILE", "a file with its server's key (default: that of --api-key-file)")
    option(judge, "--judge-tokenizer", "MODEL", "the tokenizer to count with, if the judge is a server's name")
    option(judge, "--judge-window", "N", "its context length, if neither model nor server states it")
    prompt = (
        "your own prompt, with {question}, {answers}, {needed} and {reply}; or LongMemEval's evaluate_qa.py, for its "
        "published words instead of ours (default: LongMemEval's questions have prompts of their own)"
    )
    option(judge, "--judge-prompt", "FILE", prompt)


def _judge(a: argparse.Namespace) -> ModelJudge | None:
    """Open the model judge that the options describe, if any."""
    from memagent_lib.evaluation import open_judge

    options = {name: value for name, value in vars(a).items() if name.startswith("judge_") and value}
    if not a.judge:
        if options:
            raise ValueError(f"--{next(iter(options)).replace('_', '-')} needs --judge MODEL")
        return None
    backend = a.judge_backend or a.backend
    server = {}
    if backend == "openai":
        key_file = a.judge_api_key_file or a.api_key_file
        server = {"base_url": a.judge_base_url or a.base_url, "api": a.judge_api or a.api, "api_key": api_key(key_file)}
    elif a.judge_base_url or a.judge_api or a.judge_api_key_file:
        raise ValueError(
            f"--judge-base-url, --judge-api and --judge-api-key-file need a judge on a server, not {backend}; leave "
            "them out, or add --judge-backend openai"
        )
    return open_judge(
        a.judge,
        backend,
        prompt=a.judge_prompt or "",
        tokenizer=a.judge_tokenizer or "",
        window=a.judge_window,
        **server,
    )


def _how_to_continue(a: argparse.Namespace) -> str:
    return f"finished turns are saved in {a.out}/readings, and the same command continues"


def run(a: argparse.Namespace) -> int:
    from memagent_lib.evaluation import EvaluationPlan, judges, shared_text
    from memagent_lib.status_line import status_line
    from memagent_lib.tracking import Experiment, evaluate_files, log_agent, policy_name

    # Every option is checked, and the store opened, before a model is loaded, which can take minutes.
    out, files = _checked_paths(a)
    shared = shared_text(a.shared_reading, a.shared_question)
    n = a.n or [0]
    readers = list(dict.fromkeys(a.reader))
    # A trained model's own reader is known only once the model is open, but a plan with any reader finds bad files.
    EvaluationPlan(files, n, readers or ["overwrite"])
    policy = _checked_policy(a.policy) if a.policy else policy_name(a.model)
    experiment = Experiment.open(a.tracking)
    judge = _judge(a)
    agent = agent_of(a, engines=a.engines, cluster=a.cluster)
    # Only now, because the chunk size may be a trained model's own.
    _require_same_chunks(out, policy, agent.encoder.budget.chunk_tokens)
    plan = EvaluationPlan(files, n, readers or [agent.reader.source], shared)
    params = {
        "model": a.model,
        "data": a.data,
        "n": n,
        "reader": ", ".join(plan.readers),
        "shared_reading": shared,
        "template": agent.encoder.template.name,
        "budget": agent.encoder.budget,
        "sampling": agent.identity["sampling"],
        "backend": a.backend,
        "engines": a.engines or 1,
        "on_bad_memory": agent.on_bad_memory,
    }
    try:
        with experiment.run(plan.title(policy, agent), params) as tracked:
            log_agent(tracked, agent, a.model, a.backend, tokenizer=a.tokenizer, api=a.api)
            results, rows = evaluate_files(tracked, agent, plan, a.out, a.model, policy, a.concurrency, judge)
    finally:
        agent.close()
        if judge:
            judge.close()
    _print_tables(results, rows, policy)
    if a.wrong:
        _save_wrong(plan, results, a.wrong)
    with status_line("writing the page of readings"):
        page = _page(tracked, results, policy, out)
    print(f"\njudged by {judges(rows)}", file=sys.stderr)
    if "model_judge" in rows.attrs:
        print(rows.attrs["model_judge"], file=sys.stderr)
    print(f"run {tracked.id} in {a.tracking}; readings in {a.out}/readings", file=sys.stderr)
    store = "" if a.tracking == "runs" else f" --tracking {shlex.quote(a.tracking)}"
    look_next(page, tracked.page, f"memagent report {shlex.quote(a.out)}{store}")
    # If only some readings failed, the others are a result; if all did, nothing was measured.
    return 0 if rows["score"].notna().any() else 1


def _print_tables(results: Sequence[Result], rows: pd.DataFrame, policy: str) -> None:
    """Print the scores, and to standard error what a reader of them has to know."""
    from memagent_lib.evaluation import (
        bad_memory_notes,
        benchmark_table,
        cost_overview,
        failure_reasons,
        mixtures,
        overview,
    )

    print(overview(rows).to_string(index=False))
    if rows["turns"].notna().any():
        print(f"\nwhat a question cost:\n{cost_overview(rows).to_string(index=False)}")
    table = benchmark_table(results, policy)
    if len(table):
        print(f"\nby the benchmarks' own metrics, in per cent:\n{table.to_string(index=False)}")
    replaced = rows.attrs.get("replaced", ())
    warn(*mixtures(rows), *bad_memory_notes(rows), *replaced, *failure_reasons(rows)[:MOST_REASONS])


def _checked_paths(a: argparse.Namespace) -> tuple[Path, list[Path]]:
    """Check the options; return the output folder and the data files as absolute paths."""
    from memagent_lib.backends import require_backend, require_engines
    from memagent_lib.data import require_parquet
    from memagent_lib.paths import absolute, require_apart

    require_backend(a.backend)
    if a.judge:
        require_backend(a.judge_backend or a.backend)
    require_engines(a.backend, a.engines or 0, a.cluster)

    numbers = [text for text in a.data if text.isdigit() and not absolute(text).exists()]
    if numbers:
        fix = "--n takes one number; repeat it for the next file: --n 64 --n 16"
        raise ValueError(f"{', '.join(numbers)} is no data file; {fix}")
    out = absolute(a.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, and --out names a folder; choose another name")
    if a.wrong:
        require_parquet(a.wrong)
        require_apart({"--wrong": a.wrong}, a.data)
    if a.concurrency < 1:
        raise ValueError(f"--concurrency must be at least 1, got {a.concurrency}")
    return out, [absolute(file) for file in a.data]


def _checked_policy(name: str) -> str:
    """Return the name of a policy; raise ``ValueError`` for one that no table, figure or file can have."""
    if not name.strip():
        raise ValueError(f"--policy {name!r} is blank; give a name for tables and figures")
    if len(name) > MOST_POLICY_CHARS:
        raise ValueError(
            f"--policy has {len(name)} characters, and tables, figures and file names have room for "
            f"{MOST_POLICY_CHARS}; shorten {name[:30]!r}..."
        )
    return name


def _save_wrong(plan: EvaluationPlan, results: Sequence[Result], path: str) -> None:
    from memagent_lib.evaluation import save_wrong
    from memagent_lib.paths import absolute
    from memagent_lib.readers import reader_named

    wrong = save_wrong(plan, results, absolute(path))
    if wrong:
        print(f"\n{wrong:,} not answered right, saved in {path}", file=sys.stderr)
    else:
        reader = reader_named(plan.readers[0]).name
        failed = sum(result.error is not None for result in results if result.reader == reader)
        without = f", and {failed:,} failed" if failed else ""
        print(f"\nno answer was wrong{without}: no {path} is written", file=sys.stderr)


def _require_same_chunks(folder: Path, policy: str, chunk_tokens: int) -> None:
    """Raise ``ValueError`` if ``folder`` has rows of this policy for another chunk size: one table has all rows."""
    import pandas as pd

    from memagent_lib.tracking import rows_file

    path = folder / f"{rows_file(policy)}.parquet"
    if not path.is_file():
        return
    sizes = sorted(set(pd.read_parquet(path)["chunk_tokens"]))
    if sizes != [chunk_tokens]:
        raise ValueError(
            f"{path} has results of {policy!r} read in chunks of {', '.join(map(str, sizes))} tokens, and this "
            f"evaluation takes {chunk_tokens}; give another --policy or --out"
        )


def _page(tracked: Run, results: Sequence[Result], policy: str, folder: Path) -> Path | str:
    """Write the inspector's page of all readings, of this call and earlier ones; return its path, or "" without one.

    The earlier ones are those whose rows are in ``folder``. If they cannot be loaded, a warning is printed.
    """
    from memagent_lib import inspector
    from memagent_lib.evaluation import gather_rows
    from memagent_lib.tracking import by_variant, load_readings

    read = {policy: [result for result in results if result.trace is not None]}
    try:
        rows = gather_rows(folder)
        own = rows["run_id"] == tracked.id
        earlier = load_readings(tracked.experiment, rows[~own])
        new = by_variant(results, rows[own])
        read = {name: [*earlier.get(name, []), *new.get(name, [])] for name in {**earlier, **new}}
    except (ValueError, OSError) as failure:
        warn(f"the page shows the readings of this call alone: {failure}")
    if not any(read.values()):
        return ""
    return inspector.to_html(read).save(folder / "inspector.html")
