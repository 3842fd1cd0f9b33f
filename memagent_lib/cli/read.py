"""``memagent read``: answer questions about files of any length."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.cli.arguments import Verbs, add_verb

if TYPE_CHECKING:
    from memagent_lib.agent import Agent

EXAMPLES = """\
examples:
  memagent read contract.pdf --question "Who signs?" --model Qwen/Qwen2.5-7B-Instruct --html report.html
  memagent read notes/ --question "What is the rent?" --model NAME --backend openai --base-url http://localhost:8000/v1
  memagent read book.txt --question "Who did it?" --model MODEL --journal book.jsonl    (continues after a crash)
"""


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "read", run, "answer questions about files of any length", EXAMPLES)
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
    add_agent_options(verb)
    files = verb.add_argument_group("files")
    for name, text in (
        ("journal", "keep finished turns here: the same command continues after a crash"),
        ("earlier", "a saved reading that these files continue"),
        ("save", "write what a later --earlier needs"),
        ("html", "write one page: answer, evidence with its place, the memory's history"),
    ):
        files.add_argument(f"--{name}", metavar="FILE", help=text)


def add_agent_options(verb: argparse.ArgumentParser) -> None:
    """What makes an agent: model, backend, reader, template, budget and sampling. :func:`agent_of` reads them."""
    _add_model_options(verb.add_argument_group("model"))
    _add_reading_options(verb.add_argument_group("reading"))


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model", required=True, metavar="MODEL", help="a model folder, a hub name, or the name that a server gives it"
    )
    group.add_argument(
        "--backend",
        choices=["vllm", "transformers", "openai"],
        default="vllm",
        help="vLLM or transformers here, or a server",
    )
    group.add_argument(
        "--base-url",
        metavar="URL",
        help="address of an OpenAI-compatible server, mostly ending in /v1; for --backend openai",
    )
    group.add_argument(
        "--api", choices=["completions", "chat"], help="how the server is asked; chat where it takes no token ids"
    )
    group.add_argument("--api-key-file", metavar="FILE", help="a file that holds the server's key")
    group.add_argument(
        "--window",
        type=int,
        metavar="N",
        help="the longest prompt and reply in tokens, where the model or server does not say",
    )
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="whose tokenizer counts, where the model's name is not a folder or hub name",
    )


def _add_reading_options(group: argparse._ArgumentGroup) -> None:
    from memagent_lib.readers import READERS

    of_model = "; what the model was trained with unless given, else"
    group.add_argument("--reader", metavar="NAME", help=f"the strategy: {', '.join(READERS)}{of_model} overwrite")
    group.add_argument(
        "--template", metavar="NAME", help=f"a template's name, or a .toml file of your own{of_model} chunk_first"
    )
    for name, what, default in (
        ("chunk", "read at a time", "5,000"),
        ("memory", "remembered", "1,024"),
        ("answer", "of an answer", "1,024"),
        ("question", "of a question", "1,024"),
    ):
        group.add_argument(f"--{name}-tokens", type=int, metavar="N", help=f"tokens {what}{of_model} {default}")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 always takes the likeliest token")
    group.add_argument("--seed", type=int, metavar="N", help="draw the same replies again, above temperature 0")


def run(a: argparse.Namespace) -> int:
    from tqdm.auto import tqdm

    from memagent_lib.documents import Document, plain, read_files

    if not a.question and not a.earlier:
        raise ValueError('no question; give at least one: --question "..."')
    Document(a.paths)  # what is wrong with the files is said before a model is loaded
    agent = agent_of(a)
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
    for warning in reading.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for write, path in ((reading.save, a.save), (reading.to_html, a.html)):
        if path:
            print(f"wrote {write(path)}", file=sys.stderr)
    return 0


def agent_of(a: argparse.Namespace) -> Agent:
    """The agent that the options of :func:`add_agent_options` describe."""
    from memagent_lib.agent import open_agent
    from memagent_lib.backends import Sampling

    sizes = {name: getattr(a, name) for name in ("chunk_tokens", "memory_tokens", "answer_tokens", "question_tokens")}
    options = {name: value for name in ("base_url", "api") if (value := getattr(a, name))}
    if a.api_key_file:
        options["api_key"] = Path(a.api_key_file).read_text(encoding="utf-8").strip()
    if options and a.backend != "openai":
        raise ValueError(f"--base-url, --api and --api-key-file are for --backend openai, not {a.backend}")
    return open_agent(
        a.model,
        a.backend,
        reader=a.reader,
        template=a.template,
        budget={name: size for name, size in sizes.items() if size is not None},
        sampling=Sampling(temperature=a.temperature, seed=a.seed),
        tokenizer=a.tokenizer,
        window=a.window,
        **options,
    )
