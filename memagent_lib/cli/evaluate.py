"""``memagent evaluate``: read the documents in data files with a memory, and score the answers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memagent_lib.cli.options import (
    agent_of,
    agent_options,
    api_key,
    continues,
    look_next,
    open_settings,
    tracking_option,
    warn,
)
from memagent_lib.paths import absolute, require_apart
from memagent_lib.settings import key_value

if TYPE_CHECKING:
    import pandas as pd

    from memagent_lib.agent import Agent
    from memagent_lib.evaluation import EvaluationPlan, ModelJudge, Result

MOST_REASONS = 10


@click.command()
@click.argument("data", metavar="DATA.parquet...", nargs=-1, required=True)
@click.option("--out", metavar="FOLDER", required=True, help="The folder for finished turns, results and pages.")
@click.option("--n", "numbers", metavar="N", type=int, multiple=True, help="Examples of each file.  [default: all]")
@click.option("--policy", metavar="NAME", help="The name in tables and figures.  [default: the model's]")
@click.option("--concurrency", metavar="N", type=click.IntRange(1), default=64, help="Documents read at the same time.")
@click.option("--shared-reading", is_flag=True, help="Read a document once for all questions that follow one another.")
@click.option("--wrong", metavar="FILE.parquet", help="Write what the first reader got wrong to this file.")
@tracking_option
@agent_options
@click.option("--reader", "readers", metavar="NAME", multiple=True, help="As in `memagent read`; repeat it for more.")
@click.option("--judge", metavar="MODEL", help="A model for a second opinion on every answer, beside the rule's score.")
@click.option("--judge-base-url", metavar="URL", help="The judge's server.  [default: that of --base-url]")
@click.option("--judge-prompt", metavar="FILE", help="With {question}, {answers} and {reply}; or FILE.py:NAME.")
@click.option(
    "--judge-set", metavar="KEY=VALUE", multiple=True, help="Its backend, api, api_key_file, tokenizer, window."
)
def evaluate(
    data: tuple[str, ...],
    out: str,
    numbers: tuple[int, ...],
    policy: str | None,
    concurrency: int,
    shared_reading: bool,
    wrong: str | None,
    tracking: str,
    readers: tuple[str, ...],
    **agent: Any,
) -> int:
    """Read data files that `memagent data` wrote, of any length, and score the answers.

    \b
    examples:
      memagent evaluate runs/study/data/test_4.parquet --model runs/demo/train/model --out runs/evaluated
      memagent evaluate hqa_50.parquet hqa_25600.parquet --n 128 --model NAME \\
          --base-url http://localhost:8000/v1 --out runs/hqa          (the same command continues after a crash)
      memagent evaluate bench.parquet --model NAME --shared-reading --out runs/bench   (a context is read once)
    """
    from memagent_lib.backends import require_backend
    from memagent_lib.data import require_parquet
    from memagent_lib.evaluation import EvaluationPlan
    from memagent_lib.tracking import Experiment, evaluate_files, log_agent, policy_name

    # Every option is checked, and the store opened, before a model is loaded, which can take minutes.
    files = [absolute(file) for file in data]
    if wrong:
        require_parquet(wrong)
        require_apart({"--wrong": wrong}, data)
    n = list(numbers) or [0]
    named = list(dict.fromkeys(readers))
    # A trained model's own reader is known only once the model is open, but a plan with any reader finds bad files.
    EvaluationPlan(files, n, named or ["overwrite"])
    policy = policy or policy_name(agent["model"])
    agent["backend"] = agent["backend"] or ("openai" if agent["base_url"] else "vllm")
    for each in (agent["backend"], dict(map(key_value, agent["judge_set"])).get("backend", agent["backend"])):
        require_backend(each)
    experiment = Experiment.open(tracking)
    second = _judge(agent)
    opened = agent_of(**agent, reader=named[0] if named else None)
    plan = EvaluationPlan(files, n, named or [opened.reader.source], shared_reading)
    named_by = {name: open_settings(agent["settings"]).get(name) for name in ("tokenizer", "api")}
    how = f"finished turns are saved in {out}/readings, and the same command continues"
    try:
        with continues(how), experiment.run(plan.title(policy), _params(plan, n, opened, agent)) as tracked:
            log_agent(tracked, opened, agent["model"], agent["backend"], **named_by)
            results, rows = evaluate_files(tracked, opened, plan, out, agent["model"], policy, concurrency, second)
    finally:
        opened.close()
        if second:
            second.close()
    _print_tables(results, rows, policy)
    if wrong:
        _save_wrong(plan, results, wrong)
    page = _page(results, policy, absolute(out))
    look_next(page, tracked.page, f"memagent report {shlex.quote(out)} --tracking {shlex.quote(tracking)}")
    # If only some readings failed, the others are a result; if all did, nothing was measured.
    return 0 if rows["score"].notna().any() else 1


def _params(plan: EvaluationPlan, n: list[int], agent: Agent, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": options["model"],
        "data": [str(file) for file in plan.files],
        "n": n,
        "reader": ", ".join(plan.readers),
        "shared_reading": plan.shared_reading,
        "template": agent.encoder.template.name,
        "budget": agent.encoder.budget,
        "sampling": agent.identity["sampling"],
        "backend": options["backend"],
        "on_bad_memory": agent.on_bad_memory,
    }


def _judge(agent: dict[str, Any]) -> ModelJudge | None:
    """Open the model judge that the options describe, and take them out of ``agent``, whose others are its defaults."""
    from memagent_lib.evaluation import open_judge

    model = agent.pop("judge")
    base_url = agent.pop("judge_base_url")
    prompt = agent.pop("judge_prompt")
    options = dict(map(key_value, agent.pop("judge_set")))
    if not model:
        if base_url or prompt or options:
            raise ValueError("--judge-base-url, --judge-prompt and --judge-set need --judge MODEL")
        return None
    backend = options.pop("backend", "openai" if base_url else agent["backend"])
    key_file = options.pop("api_key_file", agent["api_key_file"])
    if backend == "openai":
        options["base_url"] = base_url or agent["base_url"]
        options.setdefault("api", open_settings(agent["settings"]).get("api"))
        options["api_key"] = api_key(key_file) if key_file else None
    return open_judge(model, backend, prompt=prompt or "", **options)


def _print_tables(results: Sequence[Result], rows: pd.DataFrame, policy: str) -> None:
    """Print the scores, and to standard error what a reader of them has to know."""
    from memagent_lib.evaluation import COSTS, agreement, failure_reasons, mixtures, overview
    from memagent_lib.plugins import shipped_module

    made = overview(rows)
    print(made.drop(columns=COSTS).to_string(index=False))
    if rows["turns"].notna().any():
        cost = made[["task", "reader", "file", *COSTS]].drop_duplicates()
        print(f"\nwhat a question cost:\n{cost.to_string(index=False, float_format='{:,.4g}'.format)}")
    benchmarks = shipped_module("scores", "benchmarks")
    table = benchmarks.benchmark_table(results, policy) if benchmarks else []
    if len(table):
        print(f"\nby the benchmarks' own metrics, in per cent:\n{table.to_string(index=False)}")
    for sentence in agreement(rows):
        print(sentence, file=sys.stderr)
    warn(*mixtures(rows), *rows.attrs.get("replaced", ()), *failure_reasons(rows)[:MOST_REASONS])


def _save_wrong(plan: EvaluationPlan, results: Sequence[Result], path: str) -> None:
    from memagent_lib.evaluation import save_wrong

    number = save_wrong(plan, results, absolute(path))
    saved = f"saved in {path}" if number else f"no {path} is written"
    print(f"\n{number:,} not answered right, {saved}", file=sys.stderr)


def _page(results: Sequence[Result], policy: str, folder: Path) -> Path | str:
    """Write the inspector's page of this call's readings; return its path, or "" if there are none."""
    from memagent_lib import inspector
    from memagent_lib.status_line import status_line

    read = [result for result in results if result.trace is not None]
    with status_line("writing the page of readings"):
        return inspector.to_html({policy: read}).save(folder / "inspector.html") if read else ""
