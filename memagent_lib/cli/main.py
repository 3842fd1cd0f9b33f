"""The ``memagent`` command: puts the verbs together and says in one line what went wrong.

Knows only the names of the verbs' modules. Verbs and notebook parameters carry the same names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from memagent_lib.cli import (
    data,
    demo,
    doctor,
    evaluate,
    lab,
    read,
    report,
    serve,
    sweep,
    template,
    train,
)
from memagent_lib.cli.arguments import VerbParser
from memagent_lib.errors import UserError

VERBS = (doctor, demo, data, read, evaluate, serve, train, sweep, report, template, lab)
EPILOG = """\
the main path:
  memagent doctor                              what this machine has and lacks
  memagent demo                                data, training, evaluation, figure: all of it, small
  memagent train RECIPE.toml                   reinforcement; --dry-run first prints the plan
  memagent sweep experiments/demo.toml         any notebook over any grid
  memagent report runs/demo                    one page of it: figures, tables, readings
  memagent read FILE --question "..." --model MODEL --html report.html
  memagent lab                                 JupyterLab and MLflow, side by side

memagent VERB --help shows the options of one verb.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. A user's mistake ends in one line on stderr and exit status 2; a bug keeps its traceback."""
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except KeyboardInterrupt:
        kept = f"; {told}" if (told := arguments.kept(arguments)) else ""
        print(f"memagent {arguments.verb}: stopped{kept}", file=sys.stderr)
        return 130
    except Exception as error:
        if arguments.traceback or not _is_the_users(error):
            raise
        print(f"memagent {arguments.verb}: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="memagent",
        description="Train and study memory agents.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--traceback", action="store_true", help="show where an error came from")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=VerbParser)
    for module in VERBS:
        module.add_parser(verbs)
    return top


def _is_the_users(error: Exception) -> bool:
    """Whether the message alone helps: a wrong value, file, server or installation, and not a mistake of ours."""
    expected = (UserError, ValueError, OSError, ImportError)
    return isinstance(error, expected) and not isinstance(error, ModuleNotFoundError)
