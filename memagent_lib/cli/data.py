"""``memagent data``: make examples of a task, convert other projects' files, or list both."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.cli.agent_options import add_chat_template_option, chat_template_of
from memagent_lib.cli.arguments import Verbs, add_verb, look_next, option, switch, warn
from memagent_lib.models import find_model, load_tokenizer
from memagent_lib.paths import default_model, display
from memagent_lib.settings import key_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from memagent_lib.agent import Agent
    from memagent_lib.data import Example

EXAMPLES = """\
examples:
  memagent data --list                         every task with its question and what a guess scores; every format
  memagent data --list vt                      one task with its parameters
  memagent data my_task.py:riddle --chunks 16 --out riddles.parquet          a task of your own
  memagent data vt --length-tokens 32000 --n 200 --out vt.parquet
  memagent data needle distractors=1 --chunks 16 --out needles.parquet --seed 7
  memagent data --from hotpot hotpot_train_v1.1.json --documents 200 --n 8192 --rule boxed --out train.parquet
  memagent data --from plain mine.csv --out mine.parquet           columns question, document, answers; or .xlsx, .jsonl
  memagent data --from ruler data/niah_single_1/validation.jsonl --out niah.parquet
"""
USAGE = """memagent data --list [TASK]
       memagent data TASK [key=value ...] --out FILE.parquet [options]         TASK: a name, or FILE.py:NAME
       memagent data --from FORMAT FILE [FILE ...] [key=value ...] --out FILE.parquet [options]"""


def add_parser(verbs: Verbs) -> None:
    from memagent_lib.backends import BACKENDS

    verb = add_verb(
        verbs, "data", run, "make examples of a task, convert other projects' files, or list both", EXAMPLES
    )
    verb.usage = USAGE
    verb.add_argument("task", nargs="?", metavar="TASK", help="a name from --list, or FILE.py:NAME")
    own = "parameters of the task (--list TASK shows them) or of the format"
    verb.add_argument("settings", nargs="*", metavar="key=value", help=own)
    switch(verb, "--list", "show every task and format, or one task with its parameters")
    option(verb, "--out", "FILE.parquet", "the file to write")
    option(verb, "--n", "N", "how many examples to write (default: 128 of a task, all of a file)")
    order = "the random seed: which examples of a task (default: 0), or which order of a file's questions"
    option(verb, "--seed", "N", f"{order} (default: the file's own)")
    option(verb, "--length-tokens", "N", "document length in tokens; or use --chunks, or --documents")
    option(verb, "--chunks", "N", "document length in chunks")
    option(verb, "--documents", "N", "document length in documents, for formats that have a pool of them")
    option(verb, "--chunk-tokens", "N", "chunk length in tokens (default: the task's own; 5000 for a file)")
    option(verb, "--rule", "JUDGE", "the judge, if not the task's own: a name such as boxed, or FILE.py:NAME")
    option(verb, "--workers", "N", "processes (default: 1); the examples are the same for any number")
    counts = "the model whose tokenizer counts tokens (default: the one named in pyproject.toml)"
    option(verb, "--model", "MODEL", counts)
    files = verb.add_argument_group("other projects' files")
    files.add_argument("--from", dest="origin", nargs="+", metavar=("FORMAT", "FILE"), help="a format and its files")
    option(files, "--first", "N", "skip the first N questions in the order of --seed (default: 0)")
    apart = "leave out questions that are in this data set; repeat it for more data sets"
    option(files, "--apart-from", "FILE.parquet", apart, action="append", default=[])
    known = "leave out questions that this model answers without the document; repeat it for more models"
    option(files, "--drop-known", "MODEL", known, action="append", default=[])
    option(files, "--samples", "N", "answers of each --drop-known model to each question (default: 2)")
    run_by = "how the --drop-known models run: vllm (the default), transformers or openai"
    option(files, "--backend", "NAME", run_by, choices=list(BACKENDS))
    option(files, "--base-url", "URL", "the server of the --drop-known models, for --backend openai")
    add_chat_template_option(files)
    option(files, "--thinking-tokens", "N", "tokens for the thought of a --drop-known model before its answer")


def run(a: argparse.Namespace) -> int:
    _refuse_without_effect(a)
    if a.list:
        return _print_tasks(a.task)
    if not a.out or not (a.task or a.origin):
        raise ValueError(
            "nothing to make or no file to write to: memagent data TASK --out FILE.parquet, or "
            "memagent data --from FORMAT FILE --out FILE.parquet; see memagent data --list"
        )
    return _convert(a) if a.origin else _make(a)


def _refuse_without_effect(a: argparse.Namespace) -> None:
    """Raise ``ValueError`` for an option that would have no effect together with the others."""
    of_filter = ("samples", "backend", "base_url", "chat_template", "thinking_tokens")
    without_effect: tuple[str, ...] = ()
    needs = "--from FORMAT FILE, not with examples that are made"
    if not a.origin:
        without_effect = ("first", "apart_from", "drop_known", *of_filter)
    elif not a.drop_known:
        without_effect = of_filter
        needs = "--drop-known, whose models it is about"
    for name in without_effect:
        if getattr(a, name) not in (None, []):
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} goes with {needs}; leave {flag} out")
    if a.workers is not None and a.origin:
        raise ValueError("--workers is for examples that are made; files are converted by one process: leave it out")


def _make(a: argparse.Namespace) -> int:
    from memagent_lib.data import FORMATS, TASKS, configured, make, require_parquet

    if a.task in FORMATS and a.task not in TASKS:
        raise ValueError(
            f"{a.task!r} is a format of files, not a task: "
            f"memagent data --from {a.task} FILE --out {shlex.quote(a.out)}"
        )
    parameters = dict(key_value(text) for text in a.settings)
    for name in parameters:
        if name in ("n", "seed", "length_tokens", "chunks", "documents", "chunk_tokens", "rule", "workers"):
            raise ValueError(f"{name} is an option of every task: --{name.replace('_', '-')} {parameters[name]}")
    configured(a.task, **parameters)  # a wrong parameter fails here, before a tokenizer is loaded
    require_parquet(a.out)
    n = 128 if a.n is None else a.n
    counting = _counting_model(a.model)
    # Nothing is made yet: _written() below draws the examples one by one.
    examples = make(
        a.task,
        n,
        a.seed or 0,
        load_tokenizer(counting),
        length_tokens=a.length_tokens,
        chunks=a.chunks,
        documents=a.documents,
        chunk_tokens=a.chunk_tokens,
        workers=1 if a.workers is None else a.workers,
        rule=a.rule,
        **parameters,
    )
    _warn_of_guesses(a.rule)
    written = _written(examples, n, a.out)
    print(f"{n:,} examples of {a.task} in {written}; tokens are those of {a.model or display(Path(counting))}")
    look_next(command=f"memagent evaluate {shlex.quote(written)} --model MODEL --out FOLDER")
    return 0


def _convert(a: argparse.Namespace) -> int:
    from memagent_lib.data import Length, Selection, convert, require_options, require_parquet
    from memagent_lib.paths import require_apart

    # Files may follow --from directly or, after another option, be parsed as a task's name and parameters.
    words = [*a.origin, *filter(None, [a.task]), *a.settings]
    form = words[0]
    rest = words[1:]
    settings = [text for text in rest if "=" in text and not Path(text).exists()]
    paths = [text for text in rest if text not in settings]
    if not paths:
        raise ValueError(f"no file after --from {form}; give at least one: memagent data --from FORMAT FILE ...")
    require_parquet(a.out)
    require_apart({"--out": a.out}, [path for path in (*paths, *a.apart_from) if Path(path).is_file()])
    size = {"tokens": a.length_tokens, "chunks": a.chunks, "documents": a.documents}
    sized = any(value is not None for value in size.values())
    if a.chunk_tokens is not None and a.chunks is None:
        raise ValueError("--chunk-tokens goes with --chunks, the length of a document in chunks; leave it out")
    if a.chunk_tokens is not None:  # else the default of Length
        size["chunk_tokens"] = a.chunk_tokens
    length = Length(**size) if sized else None
    agents: list[Agent] = []
    known = _no_context_filter(a, agents) if a.drop_known else None
    selection = Selection(first=a.first or 0, n=a.n, seed=a.seed, apart_from=tuple(a.apart_from), known=known)
    rule, options = _rule_and_options(a.rule, settings)
    require_options(form, options)  # convert() would take an unknown one for a parameter of its own
    _warn_of_guesses(rule)
    tokenizer = None
    if length:
        tokenizer = load_tokenizer(_counting_model(a.model))
    try:
        chosen, examples = convert(form, paths, selection, length=length, tokenizer=tokenizer, rule=rule, **options)
    finally:
        for agent in agents:
            agent.close()
    written = _written(examples, len(chosen.questions), a.out)
    for note in chosen.notes:
        print(note)
    print(f"{len(chosen.questions):,} questions of {', '.join(paths)} in {written} ({chosen.summary()})")
    look_next(command=f"memagent evaluate {shlex.quote(written)} --model MODEL --out FOLDER")
    return 0


def _warn_of_guesses(rule: str | None) -> None:
    from memagent_lib.scoring import guess_warning

    warning = guess_warning([rule]) if rule else ""
    if warning:
        warn(warning)


def _counting_model(name: str | None) -> str:
    return find_model(name or default_model())


def _rule_and_options(rule: str | None, settings: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """Return the judge that ``--rule`` or ``rule=`` names, and the other ``key=value`` words as a format's options."""
    # Texts, whatever they look like: a sheet or a column may be called 2024.
    options: dict[str, Any] = dict(text.split("=", 1) for text in settings)
    if "rule" not in options:
        return rule, options
    named = options.pop("rule")
    if rule not in (None, named):
        raise ValueError(f"--rule {rule} and rule={named} contradict each other; leave one of them out")
    return named, options


def _written(examples: Iterable[Example], n: int, out: str) -> str:
    """Save examples as they are made, and return the file's name as every command resolves it."""
    from tqdm.auto import tqdm

    from memagent_lib.data import save

    return display(save(tqdm(examples, total=n, unit="example", disable=None), out).absolute())


def _no_context_filter(a: argparse.Namespace, agents: list[Agent]) -> Callable[[Sequence[Example]], list[bool | None]]:
    """Return MemAgent's filter, which finds the questions that a ``--drop-known`` model answers without the document.

    Each model answers each question ``--samples`` times at temperature 1 and top_p 0.7. At its first call, the filter
    opens the models and appends them to ``agents``, for the caller to close.
    """
    from memagent_lib.agent import open_agent
    from memagent_lib.backends import Sampling
    from memagent_lib.data import known_without_document

    sampling = Sampling(temperature=1.0, top_p=0.7)  # MemAgent's filter.py
    backend = a.backend or "vllm"
    samples = 2 if a.samples is None else a.samples

    def known(examples: Sequence[Example]) -> list[bool | None]:
        if not agents:
            options = {"reader": "blind", "sampling": sampling, "base_url": a.base_url}
            options["chat_template"] = chat_template_of(a)
            options["budget"] = {"thinking_tokens": a.thinking_tokens} if a.thinking_tokens else None
            agents.extend(open_agent(named, backend, **options) for named in a.drop_known)
        return known_without_document(examples, agents, samples)

    return known


def _print_tasks(only: str | None) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from memagent_lib.data import FORMATS, TASKS, preset

    if only in FORMATS and only not in TASKS:
        return _print_format(only)
    table = Table(box=None, pad_edge=False)
    table.add_column("task", no_wrap=True)
    table.add_column("question")
    table.add_column("a guess scores", justify="right")
    family = None
    tasks = {only: preset(only)} if only else TASKS
    for name, about in tasks.items():
        if about.family != family:
            family = about.family
            table.add_row(f"[bold]{escape(family)}[/bold]")
        needs = f" (needs {about.needs})" if about.needs else ""
        table.add_row(f"  {escape(name)}", escape(about.description + needs), f"{100 * about.chance:.0f} %")
    if only is None:
        table.add_row("[bold]your own[/bold]")
        table.add_row("  FILE.py:NAME", "a memagent_lib.data.Preset in a Python file, or an entry of its PRESETS", "")
        table.add_row("[bold]formats for --from[/bold]")
        for name, known in FORMATS.items():
            options = ", ".join(f"{option}=" for option in known.options)
            takes = f"; takes {options}" if options else ""
            table.add_row(f"  {name}", known.files + takes, "")
    Console().print(table)
    if only:
        print(f"\nparameters: {preset(only).parameters}")
    return 0


def _print_format(name: str) -> int:
    from memagent_lib.data import FORMATS

    known = FORMATS[name]
    options = "".join(f" [{option}=...]" for option in known.options)
    length = ""
    if known.pool:
        length = " [--length-tokens N | --chunks N | --documents N]"
    print(f"{name} is a format, not a task: {known.files}")
    print(f"memagent data --from {name} FILE [FILE ...]{options}{length} --out FILE.parquet")
    return 0
