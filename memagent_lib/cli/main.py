"""The ``memagent`` command: all verbs, and one line for an error that a user can fix.

Each verb is a function of its name. Options and notebook parameters have the same names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper

import click

from memagent_lib.cli import data, evaluate, machine, publish, read, servers, sft, sweep, template, train
from memagent_lib.cli.options import require_words
from memagent_lib.errors import is_user_error, nearest_path
from memagent_lib.system import Terminated


@click.group(
    no_args_is_help=False,
    invoke_without_command=True,
    context_settings={"show_default": True, "max_content_width": 120},
)
@click.option("--version", is_flag=True, help="Show the version (in a clone, what git describes), and exit.")
@click.pass_context
def commands(ctx: click.Context, version: bool) -> None:
    """Read documents of any length with a language model that keeps a short memory; train it; measure it.

    \b
    the main path:
      memagent doctor                              check this machine and its packages
      memagent read FILE --question "..." --model MODEL --html report.html
      memagent demo                                data, training, evaluation and figure at a small size
      memagent train RECIPE.toml                   train by reinforcement learning; --dry-run checks it
      memagent report runs/demo                    write one page: figures, tables, readings
      memagent lab                                 start JupyterLab and MLflow

    `memagent VERB --help` shows the options of a verb; --traceback shows where in the code an error came from.
    """
    if version:
        from memagent_lib.provenance import library_version

        print(f"memagent {library_version()}")
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


VERBS = (
    machine.doctor, machine.init, sweep.demo, data.data, machine.model, read.read, evaluate.evaluate, servers.serve,
    sft.sft, train.train, train.follow, train.stop, train.resume, train.export, sweep.sweep, publish.report,
    publish.leaderboard, publish.card, publish.push, template.template, servers.lab,
)  # fmt: skip
for verb in VERBS:
    commands.add_command(verb)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit status; without a verb, print the help and return 0.

    For an error that the user can fix, one line is printed on stderr and the status is 2. After Ctrl-C it is 130, after
    SIGTERM 143. Any other exception is a bug and is raised, and so is every error with ``--traceback``.
    """
    # A letter that the terminal's encoding lacks must not end a command after hours of work.
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if argv is None else argv)
    traceback = "--traceback" in words
    words = [word for word in words if word != "--traceback"]
    verb = f"memagent {words[0]}" if words else "memagent"
    try:
        require_words(words)
        return commands.main(words, prog_name="memagent", standalone_mode=False) or 0
    except click.UsageError as wrong:
        path = wrong.ctx.command_path if wrong.ctx else "memagent"
        print(f"{path}: {wrong.format_message()} `{path} --help` shows the options", file=sys.stderr)
        return 2
    except click.Abort as stop:  # click's form of KeyboardInterrupt
        return _stopped(verb, stop.__cause__, 130)
    except Terminated as stop:
        return _stopped(verb, stop, stop.code)
    except Exception as error:
        if traceback or not is_user_error(error):
            raise
        missing = error.filename if isinstance(error, FileNotFoundError) else None
        print(f"{verb}: {error}{nearest_path(missing) if missing else ''}", file=sys.stderr)
        return 2


def _stopped(verb: str, stop: BaseException | None, status: int) -> int:
    print("; ".join([f"{verb}: stopped", *getattr(stop, "__notes__", ())]), file=sys.stderr)
    return status
