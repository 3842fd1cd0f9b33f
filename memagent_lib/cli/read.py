"""``memagent read``: answer questions about files of any length."""

from __future__ import annotations

import argparse
import sys

from memagent_lib.cli.agent_options import add_agent_options, agent_of
from memagent_lib.cli.arguments import Verbs, add_verb, option

EXAMPLES = """\
examples:
  memagent read contract.pdf --question "Who signs?" --model Qwen/Qwen2.5-7B-Instruct --html report.html
  memagent read notes/ --question "What is the rent?" --model NAME --backend openai --base-url http://localhost:8000/v1
  memagent read book.txt --question "Who did it?" --model MODEL --journal book.jsonl    (continues after a crash)
"""


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "read", run, "answer questions about files of any length", EXAMPLES, kept=_kept)
    paths = "files or folders (text, markdown, HTML, PDF), read as one document"
    verb.add_argument("paths", nargs="+", metavar="PATH", help=paths)
    several = "may be given several times: all are answered in one pass"
    option(verb, "--question", "TEXT", several, action="append", default=[])
    add_agent_options(verb)
    files = verb.add_argument_group("files")
    option(files, "--journal", "FILE", "keep finished turns here: the same command continues after a crash")
    option(files, "--previous", "FILE", "a saved reading that these files continue")
    option(files, "--save", "FILE", "write what a later --previous needs")
    option(files, "--html", "FILE", "write one page: answer, evidence with its place, the memory's history")


def run(a: argparse.Namespace) -> int:
    from tqdm.auto import tqdm

    from memagent_lib.documents import plain, read_files

    _check(a)
    agent = agent_of(a)
    settings = {"model": a.model, "backend": a.backend, "temperature": a.temperature, "seed": a.seed}
    try:
        with tqdm(unit="turn", disable=None) as bar:
            reading = read_files(
                agent,
                a.paths,
                a.question,
                journal=a.journal,
                previous=a.previous,
                settings=settings,
                on_turn=lambda _: bar.update(),
            )
    finally:
        agent.close()
    for question, answer in reading.answers.items():
        print(plain(answer) if len(reading.answers) == 1 else f"{question}\n{plain(answer)}\n")
    for warning in reading.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for write, path in ((reading.save, a.save), (reading.to_html, a.html)):
        if path:
            print(f"wrote {write(path)}", file=sys.stderr)
    return 0


def _kept(a: argparse.Namespace) -> str:
    return f"the same command continues from {a.journal}" if a.journal else "with --journal FILE it would continue"


def _check(a: argparse.Namespace) -> None:
    """What is wrong with questions and files is said before a model is loaded and a document read."""
    from memagent_lib.documents import Document, SavedReading, questions_to_answer
    from memagent_lib.paths import require_replaceable

    saved = SavedReading.load(a.previous) if a.previous else None
    questions_to_answer(a.question, saved, a.reader or "overwrite")
    require_replaceable(*filter(None, (a.journal, a.save, a.html)))
    Document(a.paths, saved.end if saved else 0, saved.parts if saved else ())
