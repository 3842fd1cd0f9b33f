"""The ``memagent`` command: one verb for each thing that the library does. Verbs and notebook parameters carry the same names.

Knows only how to read arguments and print; every verb is a function of the library. Heavy imports wait until a verb runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

EPILOG = """\
the main path:
  memagent doctor                              what this machine has and lacks
  memagent demo                                data, training, evaluation, figure: all of it, small
  memagent train experiments/recipes/pocket_demo.toml
  memagent sweep experiments/demo.toml         any notebook over any grid
  memagent read FILE --question "..." --model MODEL --html report.html
  memagent lab                                 JupyterLab and MLflow, side by side
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. What a user can get wrong ends in one line on stderr and exit status 2; a bug keeps its traceback."""
    from memagent_lib.backends import BackendError, BackendUnavailable

    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except (ValueError, OSError, BackendError, BackendUnavailable, ImportError) as error:
        if isinstance(error, ModuleNotFoundError):
            raise
        if arguments.traceback:
            raise
        print(f"memagent {arguments.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"memagent {arguments.verb}: stopped", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="memagent",
        description="Train and study memory agents.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--traceback", action="store_true", help="show where an error came from")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for add in (_doctor, _demo, _data, _read, _train, _follow, _stop, _sweep, _bench, _lab):
        add(verbs)
    return top


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default where there is one worth showing."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


def _verb(verbs: argparse._SubParsersAction, run, name: str, summary: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=summary, description=summary, formatter_class=_Help)
    verb.set_defaults(run=run)
    return verb


def _doctor(verbs: argparse._SubParsersAction) -> None:
    def run(_: argparse.Namespace) -> int:
        from memagent_lib.cli.doctor import examine, report

        return report(examine())

    _verb(verbs, run, "doctor", "say what this machine has, what is missing, and how to mend it")


def _demo(verbs: argparse._SubParsersAction) -> None:
    def run(a: argparse.Namespace) -> int:
        from memagent_lib.cli.demo import demo

        return demo(Path(a.out))

    verb = _verb(verbs, run, "demo", "make data, train by RL, evaluate before and after, draw the figure, log it all")
    verb.add_argument(
        "--out",
        default="runs/demo",
        metavar="FOLDER",
        help="where results go; finished parts found there are not done again",
    )


def _data(verbs: argparse._SubParsersAction) -> None:
    def run(a: argparse.Namespace) -> int:
        from memagent_lib.data import describe, make, save
        from memagent_lib.text import Tokenizer

        if a.list:
            return _print_tasks(describe(a.task))
        if a.task is None or a.out is None:
            raise ValueError(
                "say which task and where to write it: memagent data TASK --out FILE.parquet; see memagent data --list"
            )
        lengths = {"length_tokens": a.length_tokens, "chunks": a.chunks, "documents": a.documents}
        parameters = dict(_parameter(text) for text in a.settings)
        examples = make(
            a.task, a.n, a.seed, Tokenizer.load(a.model), chunk_tokens=a.chunk_tokens, workers=a.workers, rule=a.rule,
            keychain_links=a.keychain_links, **lengths, **parameters,
        )  # fmt: skip
        print(f"{a.n:,} examples of {a.task} in {save(examples, a.out)}")
        return 0

    verb = _verb(verbs, run, "data", "make examples of a task, or list the tasks")
    verb.usage = "memagent data --list [TASK]\n       memagent data TASK [key=value ...] --out FILE.parquet [options]"
    verb.add_argument("task", nargs="?", metavar="TASK", help="a name from --list")
    verb.add_argument(
        "settings", nargs="*", metavar="key=value", help="the task's own parameters; --list TASK shows them"
    )
    verb.add_argument("--list", action="store_true", help="show every task, or one with its parameters")
    verb.add_argument("--out", metavar="FILE.parquet", help="where the examples go")
    verb.add_argument("--n", type=int, default=128, metavar="N", help="how many examples")
    verb.add_argument(
        "--length-tokens", type=int, metavar="N", help="document length in tokens; or give --chunks, or --documents"
    )
    verb.add_argument("--chunks", type=int, metavar="N", help="document length in chunks")
    verb.add_argument(
        "--documents", type=int, metavar="N", help="document length in documents, for tasks that have a pool of them"
    )
    verb.add_argument(
        "--chunk-tokens", type=int, metavar="N", help="chunk length in tokens; the task's own unless given"
    )
    verb.add_argument(
        "--keychain-links", type=int, default=0, metavar="N", help="hide the question behind a chain of so many keys"
    )
    verb.add_argument("--rule", metavar="JUDGE", help="another judge than the task's own")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="another seed makes other examples")
    verb.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes; the examples are the same for any number"
    )
    verb.add_argument(
        "--model", default="experiments/pocket/warm_start", metavar="MODEL", help="whose tokenizer counts"
    )


def _parameter(text: str) -> tuple[str, object]:
    """``key=value`` with a TOML value, or a bare word for a string."""
    import tomllib

    key, found, value = text.partition("=")
    if not found:
        raise ValueError(f"a parameter of the task is key=value, got {text!r}")
    try:
        return key, tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return key, value


def _print_tasks(rows: Sequence[dict[str, str]]) -> int:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("task", "asks for", "a guess scores"):
        table.add_column(column, no_wrap=column == "task", justify="right" if column == "a guess scores" else "left")
    family = None
    for row in rows:
        if row["family"] != family:
            table.add_row(f"[bold]{(family := row['family'])}[/bold]")
        needs = "" if row["needs"] == "nothing" else f" (needs {row['needs']})"
        table.add_row(f"  {row['task']}", row["asks for"] + needs, row["chance"])
    Console().print(table)
    if len(rows) == 1:
        print(f"\nparameters: {rows[0]['parameters']}")
    return 0


def _bench(verbs: argparse._SubParsersAction) -> None:
    benches = verbs.add_parser(
        "bench", help="measure, side by side in one run", description="measure, side by side in one run"
    ).add_subparsers(dest="what", required=True, metavar="WHAT")
    _bench_data(benches)
    _bench_read(benches)
    _bench_sweep(benches)


def _bench_data(benches: argparse._SubParsersAction) -> None:
    def run(a: argparse.Namespace) -> int:
        from experiments.bench.data import bench_data
        from memagent_lib.text import Tokenizer

        frame = bench_data(Tokenizer.load(a.model), a.task, a.length_tokens, a.n, a.workers)
        print(frame.to_string(index=False))
        return 0

    bench = _verb(benches, run, "data", "our generators beside one that tokenises everything at each step")
    bench.add_argument("--task", default="multihop_2")
    bench.add_argument("--length-tokens", type=int, default=3_500_000)
    bench.add_argument("--n", type=int, default=128)
    bench.add_argument("--workers", type=int, default=2)
    bench.add_argument("--model", default="experiments/pocket/warm_start")


def _bench_read(benches: argparse._SubParsersAction) -> None:
    def run(a: argparse.Namespace) -> int:
        from experiments.bench.read import ReadBench, bench_read

        settings = ReadBench(**{key: tuple(v) if isinstance(v, list) else v for key, v in map(_parameter, a.settings)})
        found = bench_read(a.model, settings, a.measure, report=lambda line: print(line, file=sys.stderr))
        return _measured(found, settings, a.out)

    bench = _verb(benches, run, "read", "reading: chunk first, our overhead, prefetch, lock step, length, a huge file")
    bench.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="sizes, such as rounds=1 or chunk_tokens=256; a wrong one lists them all",
    )
    bench.add_argument(
        "--measure", action="append", default=[], metavar="NAME", help="only this one; may be given several times"
    )
    bench.add_argument("--out", default="runs/bench_read.json", metavar="FILE.json", help="where all rows go")
    bench.add_argument(
        "--model", default="experiments/pocket/warm_start", help="whose tokenizer counts; the weights are random"
    )


def _bench_sweep(benches: argparse._SubParsersAction) -> None:
    def run(a: argparse.Namespace) -> int:
        from experiments.bench.ledger import SweepBench, bench_sweep

        settings = SweepBench(**dict(map(_parameter, a.settings)))
        return _measured(bench_sweep(settings, report=lambda line: print(line, file=sys.stderr)), settings, a.out)

    bench = _verb(
        benches, run, "sweep", "what a sweep adds to papermill, whether it loses a row, what memory traces cost"
    )
    bench.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="such as points=8 or logging_points=0; a wrong one lists them all",
    )
    bench.add_argument("--out", default="runs/bench_sweep.json", metavar="FILE.json", help="where all rows go")


def _measured(found: dict, settings, out: str) -> int:
    from experiments.bench.results import table, write_json

    print(table([ratio for measured in found.values() for ratio in measured.ratios]))
    for name, measured in found.items():
        if measured.note:
            print(f"{name}: {measured.note}")
    print(f"wrote {write_json(out, settings, found)}", file=sys.stderr)
    return 0


def _read(verbs: argparse._SubParsersAction) -> None:
    def run(a: argparse.Namespace) -> int:
        from tqdm.auto import tqdm

        from memagent_lib.documents.file_reading import plain, read_files
        from memagent_lib.documents.sources import Document

        if not a.question and not a.earlier:
            raise ValueError('no question; give at least one: --question "..."')
        Document(a.paths)  # what is wrong with the files is said before a model is loaded
        agent = _agent(a)
        settings = {"model": a.model, "backend": a.backend, "temperature": a.temperature, "seed": a.seed}
        try:
            with tqdm(unit="turn", disable=None) as bar:
                reading = read_files(
                    agent,
                    a.paths,
                    a.question,
                    journal=a.journal,
                    earlier=a.earlier,
                    settings=settings,
                    on_turn=lambda _: bar.update(),
                )
        finally:
            agent.close()
        for question, answer in reading.answers.items():
            print(plain(answer) if len(reading.answers) == 1 else f"{question}\n{plain(answer)}\n")
        for write, path in ((reading.save, a.save), (reading.to_html, a.html)):
            if path:
                print(f"wrote {write(path)}", file=sys.stderr)
        return 0

    from memagent_lib.prompts import Budget
    from memagent_lib.readers import READERS

    verb = _verb(verbs, run, "read", "answer questions about files of any length")
    verb.add_argument(
        "paths", nargs="+", metavar="PATH", help="files or folders (text, markdown, HTML, PDF), read as one document"
    )
    verb.add_argument(
        "--question",
        action="append",
        default=[],
        metavar="TEXT",
        help="may be given several times: all are answered in one pass",
    )
    verb.add_argument(
        "--model", required=True, metavar="MODEL", help="a model folder, a hub name, or the name that a server gives it"
    )
    verb.add_argument(
        "--backend",
        choices=["vllm", "transformers", "openai"],
        default="vllm",
        help="vLLM or transformers here, or a server",
    )
    verb.add_argument(
        "--base-url",
        metavar="URL",
        help="address of an OpenAI-compatible server, mostly ending in /v1; for --backend openai",
    )
    verb.add_argument(
        "--api", choices=["completions", "chat"], help="how the server is asked; chat where it takes no token ids"
    )
    verb.add_argument("--api-key-file", metavar="FILE", help="a file that holds the server's key")
    verb.add_argument(
        "--window",
        type=int,
        metavar="N",
        help="the longest prompt and reply in tokens, where the model or server does not say",
    )
    verb.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="whose tokenizer counts, where the model's name is not a folder or hub name",
    )
    verb.add_argument("--reader", default="overwrite", help=f"the strategy: {', '.join(READERS)}")
    verb.add_argument("--template", default="chunk_first", help="a template's name, or a .toml file of your own")
    for name, what in (
        ("chunk", "read at a time"),
        ("memory", "remembered"),
        ("answer", "of an answer"),
        ("question", "of a question"),
    ):
        verb.add_argument(
            f"--{name}-tokens",
            type=int,
            default=getattr(Budget(), f"{name}_tokens"),
            metavar="N",
            help=f"tokens {what}",
        )
    verb.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 always takes the likeliest token")
    verb.add_argument("--seed", type=int, metavar="N", help="draw the same replies again, above temperature 0")
    verb.add_argument(
        "--prefetch", action="store_true", help="prefill the next chunk while the present memory is being written"
    )
    verb.add_argument(
        "--journal", metavar="FILE", help="keep finished turns here: the same command goes on after a crash"
    )
    verb.add_argument("--earlier", metavar="FILE", help="a saved reading that these files continue")
    verb.add_argument("--save", metavar="FILE", help="write what a later --earlier needs")
    verb.add_argument(
        "--html", metavar="FILE", help="write one page: answer, evidence with its place, the memory's history"
    )


def _agent(a: argparse.Namespace):
    from memagent_lib.agent import Agent
    from memagent_lib.backends import Sampling, open_backend
    from memagent_lib.prompts import Budget, Encoder, Template
    from memagent_lib.readers import reader_named
    from memagent_lib.text import Tokenizer

    budget = Budget(
        **{name: getattr(a, name) for name in ("chunk_tokens", "memory_tokens", "answer_tokens", "question_tokens")}
    )
    encoder, reader = (
        Encoder(Tokenizer.load(a.tokenizer or a.model), Template.load(a.template), budget),
        reader_named(a.reader),
    )
    options = {name: value for name in ("base_url", "api") if (value := getattr(a, name))}
    if a.api_key_file:
        options["api_key"] = Path(a.api_key_file).read_text(encoding="utf-8").strip()
    if options and a.backend != "openai":
        raise ValueError(f"--base-url, --api and --api-key-file are for --backend openai, not {a.backend}")
    if a.window:
        options["window"] = a.window
    return Agent(
        encoder,
        open_backend(a.backend, a.model, Sampling(temperature=a.temperature, seed=a.seed), **options),
        reader,
        a.prefetch,
    )


def _train(verbs: argparse._SubParsersAction) -> None:
    def run(a: argparse.Namespace) -> int:
        from memagent_lib.rl.run.launcher import launch
        from memagent_lib.tracking.runs import Experiment
        from memagent_lib.workbench.panel import load_recipe, watch

        config = load_recipe(a.recipe, a.settings)
        ledger = Experiment.open(config.tracking.uri or a.tracking, experiment=config.tracking.experiment)
        config = replace(config, tracking=replace(config.tracking, uri=ledger.uri))
        started = launch(config, a.out or f"runs/{Path(a.recipe).stem}", resume=a.resume)
        print(f"training in {started.folder.path}; it goes on when this terminal closes")
        if a.detach:
            return 0
        print("Ctrl-C stops it after a checkpoint; --resume goes on from there", flush=True)
        print(_outcome(watch(started, stop_on_interrupt=True)))
        return 0

    verb = _verb(verbs, run, "train", "train a policy by multi-conversation RL, in a process of its own")
    verb.add_argument("recipe", metavar="FILE.toml")
    verb.add_argument("settings", nargs="*", metavar="table.key=value", help="settings that replace those of the file")
    verb.add_argument("--out", metavar="FOLDER", help="the run's folder; runs/NAME-OF-THE-FILE unless given")
    verb.add_argument(
        "--tracking",
        default="runs",
        help="the MLflow store, where the recipe names none: a folder or a server's address",
    )
    verb.add_argument("--resume", action="store_true", help="go on from the folder's last checkpoint")
    verb.add_argument("--detach", action="store_true", help="return at once; see it with: memagent follow FOLDER")


def _outcome(status) -> str:
    reward = "" if status.reward is None else f", reward {status.reward:.3f}"
    return f"{status.state}: step {status.step} of {status.steps}{reward}{', ' + status.error if status.error else ''}"


def _follow(verbs: argparse._SubParsersAction) -> None:
    def run(a: argparse.Namespace) -> int:
        from memagent_lib.rl.run.launcher import attach
        from memagent_lib.workbench.panel import watch

        print(_outcome(watch(attach(a.folder))))
        return 0

    _verb(verbs, run, "follow", "show the progress of a training run until it ends").add_argument("folder")


def _stop(verbs: argparse._SubParsersAction) -> None:
    def run(a: argparse.Namespace) -> int:
        from memagent_lib.rl.run.launcher import attach

        print(_outcome(attach(a.folder).stop()))
        return 0

    _verb(verbs, run, "stop", "stop a training run; its checkpoints stay").add_argument("folder")


def _sweep(verbs: argparse._SubParsersAction) -> None:
    def run(a: argparse.Namespace) -> int:
        from memagent_lib.workbench.sweep.runner import run_sweep

        return 0 if run_sweep(a.file, workers=a.workers, retry=a.retry).ok else 1

    verb = _verb(verbs, run, "sweep", "run notebooks over a grid, skipping what is done")
    verb.add_argument("file", metavar="FILE.toml")
    verb.add_argument("--workers", type=int, help="how many points at once; the file's own number unless given")
    verb.add_argument("--retry", action="store_true", help="run failed points again")


def _lab(verbs: argparse._SubParsersAction) -> None:
    def run(a: argparse.Namespace) -> int:
        from memagent_lib.cli.lab import lab

        return lab(a.port, a.mlflow_port)

    verb = _verb(verbs, run, "lab", "start JupyterLab and MLflow on this machine's own address")
    verb.add_argument("--port", type=int, default=8888)
    verb.add_argument("--mlflow-port", type=int, default=5000)
