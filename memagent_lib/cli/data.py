"""``memagent data``: make examples of a task, convert other projects' files, or list both."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memagent_lib.cli.options import agent_of, look_next, warn
from memagent_lib.models import find_model, load_tokenizer
from memagent_lib.paths import default_model, display
from memagent_lib.settings import key_value

if TYPE_CHECKING:
    from memagent_lib.data import Example


@click.command()
@click.argument("words", metavar="[TASK | FILE...] [key=value]...", nargs=-1)
@click.option("--list", "listing", is_flag=True, help="Show every task and format, or one task with its parameters.")
@click.option("--from", "form", metavar="FORMAT", help="Convert files of this format.")
@click.option("--out", metavar="FILE.parquet", help="The file to write.")
@click.option("--n", metavar="N", type=int, help="How many examples.  [default: 128 of a task, all of a file]")
@click.option("--seed", metavar="N", type=int, help="Which examples of a task, or which order of a file's questions.")
@click.option("--length-tokens", metavar="N", type=int, help="Document length in tokens; or --chunks, or --documents.")
@click.option("--chunks", metavar="N", type=int, help="Document length in chunks.")
@click.option("--documents", metavar="N", type=int, help="Document length in documents of a format's pool.")
@click.option("--chunk-tokens", metavar="N", type=int, help="Chunk length.  [default: the task's own; 5000 for a file]")
@click.option("--rule", metavar="JUDGE", help="The judge, if not the task's own: boxed, ..., or FILE.py:NAME.")
@click.option("--model", metavar="MODEL", help="Whose tokenizer counts.  [default: the one named in pyproject.toml]")
@click.option("--apart-from", metavar="FILE.parquet", multiple=True, help="Leave out questions that this data set has.")
@click.option("--drop-known", metavar="MODEL", multiple=True, help="Leave out questions that it answers blind.")
@click.option("--samples", metavar="N", type=int, default=2, help="Answers of each --drop-known model to a question.")
@click.option("--backend", metavar="NAME", help="The backend of the --drop-known models.  [default: vllm]")
@click.option("--base-url", metavar="URL", help="Their server.")
@click.option("--set", "of_known", metavar="KEY=VALUE", multiple=True, help="Their settings, as in `memagent read`.")
def data(words: tuple[str, ...], listing: bool, form: str | None, out: str | None, **options: Any) -> None:
    """Make examples of a task, convert other projects' files, or list both.

    \b
    examples:
      memagent data --list                         every task with its question and what a guess scores; every format
      memagent data my_task.py:riddle --chunks 16 --out riddles.parquet          a task of your own
      memagent data vt --length-tokens 32000 --n 200 --out vt.parquet
      memagent data --from hotpot hotpot_train_v1.1.json --documents 200 --n 8192 --rule boxed --out train.parquet
      memagent data --from plain mine.csv --out mine.parquet           columns question, document, answers; or .jsonl
    """
    if listing:
        _print_tasks(words[0] if words else None)
    elif not out or not words:
        raise ValueError("nothing to make: give TASK, or --from FORMAT FILE, and --out FILE.parquet; see --list")
    elif form:
        _convert(form, words, out, options)
    else:
        _make(words[0], words[1:], out, options)


def _make(task: str, settings: Sequence[str], out: str, o: dict[str, Any]) -> None:
    from memagent_lib.data import configured, make, require_parquet

    if o["apart_from"] or o["drop_known"]:
        raise ValueError("--apart-from and --drop-known choose among a file's questions; they need --from")
    parameters = dict(map(key_value, settings))
    configured(task, **parameters)  # a wrong parameter fails here, before a tokenizer is loaded
    require_parquet(out)
    n = 128 if o["n"] is None else o["n"]
    counting = find_model(o["model"] or default_model())
    sizes = {name: o[name] for name in ("length_tokens", "chunks", "documents", "chunk_tokens", "rule")}
    examples = make(task, n, o["seed"] or 0, load_tokenizer(counting), **sizes, **parameters)
    _warn_of_guesses(o["rule"])
    written = _written(examples, n, out)
    print(f"{n:,} examples of {task} in {written}; tokens are those of {o['model'] or display(Path(counting))}")
    look_next(command=f"memagent evaluate {shlex.quote(written)} --model MODEL --out FOLDER")


def _convert(form: str, words: Sequence[str], out: str, o: dict[str, Any]) -> None:
    from memagent_lib.data import Length, Selection, convert, format_named, known_without_document, require_parquet
    from memagent_lib.paths import require_apart

    # Texts, whatever they look like: a column may be called 2024.
    settings = dict(word.split("=", 1) for word in words if "=" in word and not Path(word).exists())
    paths = [word for word in words if "=" not in word or Path(word).exists()]
    rule = settings.pop("rule", o["rule"])
    require_parquet(out)
    require_apart({"--out": out}, [path for path in (*paths, *o["apart_from"]) if Path(path).is_file()])
    sizes = {name: o[name] for name in ("chunks", "documents", "chunk_tokens") if o[name] is not None}
    if o["length_tokens"] is not None:
        sizes["tokens"] = o["length_tokens"]
    length = Length(**sizes) if sizes else None
    tokenizer = load_tokenizer(find_model(o["model"] or default_model())) if length else None
    backend = o["backend"] or (None if o["base_url"] else "vllm")
    sampled = ("temperature=1.0", "top_p=0.7", *o["of_known"])  # MemAgent's filter.py
    agents = [agent_of(named, backend, o["base_url"], settings=sampled, reader="blind") for named in o["drop_known"]]
    known = partial(known_without_document, agents=agents, samples=o["samples"]) if agents else None
    selection = Selection(n=o["n"], seed=o["seed"], apart_from=tuple(o["apart_from"]), known=known)
    _warn_of_guesses(rule)
    try:
        chosen, examples = convert(form, paths, selection, length=length, tokenizer=tokenizer, rule=rule, **settings)
    finally:
        for agent in agents:
            agent.close()
    written = _written(examples, len(chosen.questions), out)
    if format_named(form).note:
        print(format_named(form).note)
    print(f"{len(chosen.questions):,} questions of {', '.join(paths)} in {written} ({chosen.summary()})")
    look_next(command=f"memagent evaluate {shlex.quote(written)} --model MODEL --out FOLDER")


def _warn_of_guesses(rule: str | None) -> None:
    from memagent_lib.scoring import guess_warning

    warning = guess_warning([rule]) if rule else ""
    if warning:
        warn(warning)


def _written(examples: Iterable[Example], n: int, out: str) -> str:
    """Save examples as they are made, and return the file's name as every command resolves it."""
    from tqdm.auto import tqdm

    from memagent_lib.data import save

    return display(save(tqdm(examples, total=n, unit="example", disable=None), out).absolute())


def _print_tasks(only: str | None) -> None:
    from memagent_lib.data import format_named, format_names, preset, presets

    family = None
    for name, about in ({only: preset(only)} if only else presets()).items():
        if about.family != family:
            family = about.family
            print(family)
        needs = f" (needs {about.needs})" if about.needs else ""
        print(f"  {name:<18} {about.description}{needs}; a guess scores {100 * about.chance:.0f} %")
    if only:
        print(f"\nparameters: {preset(only).parameters}")
        return
    print("your own\n  FILE.py:NAME    a memagent_lib.data.Preset in a Python file, or an entry of its PRESETS")
    print("formats for --from")
    for name in format_names():
        known = format_named(name)
        takes = ", ".join(f"{option}=" for option in known.options)
        print(f"  {name:<18} {known.files}{takes and f'; takes {takes}'}")
