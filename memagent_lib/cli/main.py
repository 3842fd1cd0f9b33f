"""The ``memagent`` command: one parser for all verbs, and one line for an error that a user can fix.

Knows only the names of the verbs' modules. Options and notebook parameters carry the same names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from memagent_lib.cli import data, demo, doctor, evaluate, lab, read, report, serve, sweep, template, train
from memagent_lib.cli.arguments import VerbParser
from memagent_lib.errors import UserError

VERBS = (doctor, demo, data, read, evaluate, serve, train, sweep, report, template, lab)
EPILOG = """\
the main path:
  memagent doctor                              check this machine and its packages
  memagent demo                                data, training, evaluation and figure at a small size
  memagent train RECIPE.toml                   train by reinforcement; --dry-run prints the plan
  memagent sweep experiments/demo.toml         run notebooks over a grid
  memagent report runs/demo                    write one page: figures, tables, readings
  memagent read FILE --question "..." --model MODEL --html report.html
  memagent lab                                 start JupyterLab and MLflow

memagent VERB --help shows the options of one verb.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit status.

    An error that the user can fix is one line on stderr and status 2; a bug raises with its traceback. Ctrl-C is 130.
    """
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except KeyboardInterrupt:
        hint = arguments.how_to_continue(arguments)
        print(f"memagent {arguments.verb}: " + "; ".join(filter(None, ("stopped", hint))), file=sys.stderr)
        return 130
    except Exception as error:
        if arguments.traceback or not is_user_error(error):
            raise
        print(f"memagent {arguments.verb}: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command and all its verbs; loads no engine and no store."""
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


def is_user_error(error: Exception) -> bool:
    """Whether the message is enough to fix the error: a wrong value, file, server or installation."""
    expected = (UserError, ValueError, OSError, ImportError)
    # A missing module without a message of ours is a broken installation or a bug, and its traceback names it.
    return isinstance(error, expected) and not isinstance(error, ModuleNotFoundError)
