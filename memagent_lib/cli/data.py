"""``memagent data``: make examples of a task, or list the tasks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from memagent_lib.cli.arguments import POCKET, Verbs, add_verb, key_value, option, switch

EXAMPLES = """\
examples:
  memagent data --list                         every task, what it asks for, what a guess scores
  memagent data --list vt                      one task with its parameters
  memagent data vt --length-tokens 32000 --n 200 --out vt.parquet
  memagent data niah_single_1 --chunks 16 --out needles.parquet --seed 7
"""


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "data", run, "make examples of a task, or list the tasks", EXAMPLES)
    verb.usage = "memagent data --list [TASK]\n       memagent data TASK [key=value ...] --out FILE.parquet [options]"
    verb.add_argument("task", nargs="?", metavar="TASK", help="a name from --list")
    own = "the task's own parameters; --list TASK shows them"
    verb.add_argument("settings", nargs="*", metavar="key=value", help=own)
    switch(verb, "--list", "show every task, or one with its parameters")
    option(verb, "--out", "FILE.parquet", "where the examples go")
    option(verb, "--n", "N", "how many examples", default=128)
    option(verb, "--length-tokens", "N", "document length in tokens; or give --chunks, or --documents")
    option(verb, "--chunks", "N", "document length in chunks")
    option(verb, "--documents", "N", "document length in documents, for tasks that have a pool of them")
    option(verb, "--chunk-tokens", "N", "chunk length in tokens; the task's own unless given")
    option(verb, "--rule", "JUDGE", "another judge than the task's own")
    option(verb, "--seed", "N", "another seed makes other examples", default=0)
    option(verb, "--workers", "N", "processes; the examples are the same for any number", default=1)
    option(verb, "--model", "MODEL", "whose tokenizer counts", default=POCKET)


def run(a: argparse.Namespace) -> int:
    from memagent_lib.data import describe, make, save
    from memagent_lib.data.tasks import configured
    from memagent_lib.text import Tokenizer

    if a.list:
        return _print_tasks(describe(a.task))
    if a.task is None or a.out is None:
        raise ValueError(
            "say which task and where to write it: memagent data TASK --out FILE.parquet; see memagent data --list"
        )
    parameters = dict(key_value(text) for text in a.settings)
    configured(a.task, **parameters)  # what is wrong with the task is said before a tokenizer is loaded
    lengths = {"length_tokens": a.length_tokens, "chunks": a.chunks, "documents": a.documents}
    examples = make(
        a.task, a.n, a.seed, Tokenizer.load(a.model), chunk_tokens=a.chunk_tokens, workers=a.workers, rule=a.rule,
        **lengths, **parameters,
    )  # fmt: skip
    print(f"{a.n:,} examples of {a.task} in {save(examples, a.out)}")
    return 0


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
