"""The ``memagent`` command: one parser for all verbs, and one line for an error that a user can fix.

Each verb has a module, which declares its own options. Options and notebook parameters have the same names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from memagent_lib.cli import (
    card,
    data,
    demo,
    doctor,
    evaluate,
    init,
    lab,
    leaderboard,
    model,
    push,
    read,
    report,
    serve,
    sft,
    sweep,
    template,
    train,
)
from memagent_lib.cli.arguments import VerbParser
from memagent_lib.errors import is_user_error
from memagent_lib.system import Terminated

VERBS = (
    doctor,
    init,
    demo,
    data,
    model,
    read,
    evaluate,
    serve,
    sft,
    train,
    sweep,
    report,
    leaderboard,
    card,
    push,
    template,
    lab,
)
SUMMARY = "Read documents of any length with a language model that keeps a short memory; train it; measure it."
EPILOG = """\
the main path:
  memagent doctor                              check this machine and its packages
  memagent init FOLDER                         notebooks, recipes and small policies, without a clone
  memagent read FILE --question "..." --model MODEL --html report.html
  memagent demo                                data, training, evaluation and figure at a small size
  memagent sft RECIPE.toml                     a warm start by supervised fine-tuning
  memagent train RECIPE.toml                   train by reinforcement learning; --dry-run prints the plan
  memagent sweep experiments/demo.toml         run notebooks over a grid of parameters
  memagent report runs/demo                    write one page: figures, tables, readings
  memagent leaderboard                         one table of all evaluations: score and cost
  memagent card RUN                            write a model card for a trained policy
  memagent push RUN OWNER/NAME                 publish the policy on the Hugging Face hub, or in a folder
  memagent lab                                 start JupyterLab and MLflow

memagent VERB --help shows the options of one verb.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit status; without a verb, print the help and return 0.

    For an error that the user can fix, one line is printed on stderr and the status is 2. After Ctrl-C it is 130, after
    SIGTERM 143. Any other exception is a bug and is raised, and so is every error with ``--traceback``.
    """
    # A letter that the terminal's encoding lacks must not end a command after hours of work.
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    commands = parser()
    arguments = commands.parse_args(argv)
    if arguments.verb is None:
        commands.print_help()
        return 0
    try:
        return arguments.run(arguments) or 0  # a verb may return None
    except (KeyboardInterrupt, Terminated) as stop:
        hint = arguments.how_to_continue(arguments)
        print(f"memagent {arguments.verb}: " + "; ".join(filter(None, ("stopped", hint))), file=sys.stderr)
        return stop.code if isinstance(stop, Terminated) else 130
    except Exception as error:
        if arguments.traceback or not is_user_error(error):
            raise
        print(f"memagent {arguments.verb}: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command with all its verbs, without loading an engine or a store."""
    top = argparse.ArgumentParser(
        prog="memagent",
        description=SUMMARY,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--traceback", action="store_true", help="show where in the code an error came from")
    top.add_argument(
        "--version", action=_PrintVersion, nargs=0, help="show the version (in a clone, what git describes), and exit"
    )
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=VerbParser)
    for module in VERBS:
        module.add_parser(verbs)
    return top


class _PrintVersion(argparse.Action):
    """Prints the version. It is not computed in advance, because in a clone it takes a call of git."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from memagent_lib.provenance import library_version

        print(f"memagent {library_version()}")
        parser.exit()
