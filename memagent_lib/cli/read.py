"""``memagent read``: answer questions about files of any length."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from memagent_lib.cli.options import (
    agent_of,
    agent_options,
    continues,
    look_next,
    reader_option,
    require_own,
    warn,
)
from memagent_lib.system import terminable

if TYPE_CHECKING:
    from memagent_lib.agent import Agent
    from memagent_lib.documents import Document, SavedReading

SAMPLE_CHARS = 20_000  # from which the number of chunks is estimated


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--question", "questions", metavar="TEXT", multiple=True, help="A question; repeat it for more.")
@agent_options
@reader_option
@click.option("--encoding", metavar="NAME", help="Read text and HTML in this encoding: utf-8, cp1252, ...")
@click.option("--journal", metavar="FILE", help="Save finished turns; the same command continues after a crash.")
@click.option("--previous", metavar="FILE", help="Continue the reading that --save wrote, with these files.")
@click.option("--save", metavar="FILE", help="Save this reading, for a later --previous.")
@click.option("--html", metavar="FILE", help="Write a page: answers, evidence, the memory after every turn.")
def read(
    paths: tuple[str, ...],
    questions: tuple[str, ...],
    encoding: str | None,
    journal: str | None,
    previous: str | None,
    save: str | None,
    html: str | None,
    **agent: Any,
) -> None:
    """Answer questions about files or folders (text, HTML, PDF, Word, tables, mail), read as one text.

    \b
    examples:
      memagent read contract.pdf --question "Who signs?" --model Qwen/Qwen2.5-7B-Instruct --html report.html
      memagent read notes/ --question "What is the rent?" --model NAME --base-url http://localhost:8000/v1
      memagent read book.txt --question "Who did it?" --model MODEL --journal book.jsonl    (continues after a crash)
    """
    from memagent_lib.backends import backend_for_one_reading, require_backend
    from memagent_lib.documents import Document, SavedReading, on_bad_memory_for, plain, read_files
    from memagent_lib.status_line import status_line

    if not agent["backend"]:
        agent["backend"] = "openai" if agent["base_url"] else backend_for_one_reading(agent["model"])
    require_backend(agent["backend"])  # before the files are converted
    saved = SavedReading.load(previous) if previous else None
    _check(paths, questions, saved, agent["reader"], journal=journal, save=save, html=html, previous=previous)
    start, parts = (saved.end, saved.parts) if saved else (0, ())  # positions continue where the reading ended
    with status_line("converting", unit="files") as bar:
        document = Document(paths, start, parts, encoding=encoding, on_file=lambda _: bar.advance())
    warn(*document.warnings)
    action = on_bad_memory_for(agent["model"])
    if action:  # before the settings of the user, which win
        agent["settings"] = (f"on_bad_memory={action}", *agent["settings"])
    opened = agent_of(**agent)
    settings = {"model": agent["model"], "backend": agent["backend"], "sampling": opened.identity["sampling"]}
    how = f"the same command continues from {journal}" if journal else "with --journal FILE it would continue"
    try:
        with continues(how), terminable(), status_line("reading", _about_chunks(document, opened), "chunks") as bar:
            reading = read_files(
                opened,
                document,
                questions,
                journal=journal,
                previous=previous,
                settings=settings,
                on_turn=lambda turn: bar.advance(turn.prompt.kind.reads, turn.reply.text.strip().rpartition("\n")[2]),
            )
    finally:
        opened.close()
    for question, answer in reading.answers.items():
        # A single answer is printed alone, so that a script can use the output.
        print(plain(answer) if len(reading.answers) == 1 else f"{question}\n{plain(answer)}\n")
    warn(*(each for each in reading.warnings if each not in document.warnings))
    if save:
        print(f"wrote {reading.save(save)}", file=sys.stderr)
    if html:
        look_next(page=reading.to_html(html))
    else:
        look_next(command="--html PAGE.html shows how the memory grew, and the sentences that the answer rests on")


def _check(
    paths: tuple[str, ...],
    questions: tuple[str, ...],
    saved: SavedReading | None,
    reader: str | None,
    **files: str | None,
) -> None:
    """Raise an error for questions and files that cannot be, before anything is converted or loaded."""
    from memagent_lib.documents import questions_to_answer
    from memagent_lib.paths import require_apart, require_replaceable

    questions_to_answer(questions, saved, reader or "overwrite")
    previous = files.pop("previous")
    require_apart({f"--{name}": file for name, file in files.items()}, paths)
    if previous:  # --save may name the same file, which then has the longer reading
        require_apart({"--html": files["html"], "--journal": files["journal"]}, [previous])
    if files["journal"]:
        require_replaceable(files["journal"])
    if files["html"]:
        require_own("--html", files["html"], "<html", "page")
    if files["save"]:
        require_own("--save", files["save"], '"memagent_reading"', "reading")


def _about_chunks(document: Document, agent: Agent) -> int:
    """Estimate the number of chunks from the beginning of the text, because counting all of it would take a while."""
    # The first block may be only the line with a file's name.
    beginning = "".join(islice(document.blocks(), 2))[:SAMPLE_CHARS]
    tokens = max(1, agent.encoder.tokenizer.count(beginning))
    chunk_characters = max(1, len(beginning)) / tokens * agent.encoder.budget.chunk_tokens
    return max(1, round(document.about_characters / chunk_characters))
