"""``memagent read``: answer questions about files of any length."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from memagent_lib.cli.agent_options import add_agent_options, agent_of
from memagent_lib.cli.arguments import Verbs, add_verb, look_next, option, require_own, require_page, warn

if TYPE_CHECKING:
    from memagent_lib.agent import Agent
    from memagent_lib.documents import Document
    from memagent_lib.trace import Turn

PATIENCE_S = 2  # a conversion that takes longer gets a progress bar
SAMPLE_CHARS = 20_000  # from which the number of chunks is estimated
KEPT = "keep, because one comment would lose all that was read; memagent evaluate takes it, as training does"
EXAMPLES = """\
examples:
  memagent read contract.pdf --question "Who signs?" --model Qwen/Qwen2.5-7B-Instruct --html report.html
  memagent read notes/ --question "What is the rent?" --model NAME --backend openai --base-url http://localhost:8000/v1
  memagent read book.txt --question "Who did it?" --model MODEL --journal book.jsonl    (continues after a crash)
"""


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(
        verbs, "read", run, "answer questions about files of any length", EXAMPLES, how_to_continue=_how_to_continue
    )
    paths = (
        "files or folders (text, HTML, XML, PDF, Word, EPUB, RTF, mail, notebooks, tables, subtitles), read as one text"
    )
    verb.add_argument("paths", nargs="+", metavar="PATH", help=paths)
    several = (
        "a question; repeat it for more, all answered in one pass by the reader overwrite. Needed unless --previous "
        "has questions"
    )
    option(verb, "--question", "TEXT", several, action="append", default=[])
    add_agent_options(verb, on_bad_memory=KEPT, small_models_in_transformers=True)
    files = verb.add_argument_group("files")
    option(files, "--encoding", "NAME", "read text, HTML, XML and subtitles in this encoding: utf-8, cp1252, ...")
    option(files, "--ocr", "LANGUAGE", "recognise the text of scanned pages with tesseract: eng, deu+fra, ...")
    journal = "save finished turns to this file, so that the same command continues after a crash"
    option(files, "--journal", "FILE", journal)
    option(files, "--previous", "FILE", "continue the reading that --save wrote to this file, with these files")
    option(files, "--save", "FILE", "save this reading, for a later --previous")
    page = "write one page with the answers, the evidence and its position, and the memory after every turn"
    option(files, "--html", "FILE", page)


def run(a: argparse.Namespace) -> int:
    from memagent_lib.backends import backend_for_one_reading, require_backend
    from memagent_lib.documents import on_bad_memory_for, plain, read_files
    from memagent_lib.status_line import status_line
    from memagent_lib.system import terminable

    if not a.backend:
        with status_line(f"choosing a backend for {a.model}"):  # it imports torch
            a.backend = backend_for_one_reading(a.model)
    require_backend(a.backend)  # before the files are converted
    document = _document(a)
    told = document.warnings
    warn(*told)
    a.on_bad_memory = a.on_bad_memory or on_bad_memory_for(a.model)
    agent = agent_of(a)
    settings = {"model": a.model, "backend": a.backend, "temperature": a.temperature, "seed": a.seed}
    try:
        about = _about_chunks(document, agent)
        with terminable(), status_line("reading", about, "chunks") as bar:
            reading = read_files(
                agent,
                document,
                a.question,
                journal=a.journal,
                previous=a.previous,
                settings=settings,
                on_turn=lambda turn: bar.advance(float(_is_new_chunk(turn)), _last_line(turn.reply.text)),
            )
    finally:
        agent.close()
    for question, answer in reading.answers.items():
        # A single answer is printed alone, so that a script can use the output.
        if len(reading.answers) == 1:
            print(plain(answer))
        else:
            print(f"{question}\n{plain(answer)}\n")
    warn(*(each for each in reading.warnings if each not in told))
    if a.save:
        print(f"wrote {reading.save(a.save)}", file=sys.stderr)
    if a.html:
        look_next(page=reading.to_html(a.html))
    else:
        look_next(command="--html PAGE.html shows how the memory grew, and the sentences that the answer rests on")
    return 0


def _about_chunks(document: Document, agent: Agent) -> int:
    """Estimate the number of chunks from the beginning of the text, because counting all of it would take a while."""
    beginning = ""
    # The first block may be only the line with a file's name, whose words take more tokens than others.
    for block in document.blocks():
        beginning = (beginning + block)[:SAMPLE_CHARS]
        if len(beginning) == SAMPLE_CHARS:
            break
    tokens = max(1, agent.encoder.tokenizer.count(beginning))
    chunk_characters = max(1, len(beginning)) / tokens * agent.encoder.budget.chunk_tokens
    return max(1, round(document.about_characters / chunk_characters))


def _is_new_chunk(turn: Turn) -> bool:
    from memagent_lib.readers import FOUND

    return turn.prompt.kind.reads and turn.prompt.kind != FOUND


def _last_line(text: str) -> str:
    return next(reversed(text.strip().splitlines()), "")


def _how_to_continue(a: argparse.Namespace) -> str:
    if a.journal:
        return f"the same command continues from {a.journal}"
    return "with --journal FILE it would continue"


def _document(a: argparse.Namespace) -> Document:
    """Convert the files to one document. Errors in questions and files are raised here, before a model is loaded."""
    from tqdm.auto import tqdm

    from memagent_lib.documents import (
        ConverterOptions,
        Document,
        SavedReading,
        questions_to_answer,
        require_continuable,
    )
    from memagent_lib.paths import require_apart, require_replaceable

    saved = SavedReading.load(a.previous) if a.previous else None
    questions_to_answer(a.question, saved, a.reader or "overwrite")
    if saved and a.reader:
        require_continuable(saved, a.reader)
    require_replaceable(*filter(None, (a.journal, a.save, a.html)))
    require_apart({"--journal": a.journal, "--save": a.save, "--html": a.html}, a.paths)
    if a.previous:  # --save may name the same file, which then has the longer reading
        require_apart({"--html": a.html}, [a.previous])
    if a.html:
        require_page("--html", a.html)
    if a.save:
        require_own("--save", a.save, '"memagent_reading"', "reading")
    options = ConverterOptions(encoding=a.encoding, ocr=a.ocr)
    start = 0
    parts = ()
    if saved:  # positions continue where the previous reading ended
        start = saved.end
        parts = saved.parts
    with tqdm(unit="file", disable=None, leave=False, delay=PATIENCE_S) as bar:
        return Document(a.paths, start, parts, options=options, on_file=lambda _: bar.update())
