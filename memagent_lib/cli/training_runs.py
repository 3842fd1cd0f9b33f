"""``memagent follow`` and ``memagent stop``: a training run, from its folder, in any terminal."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from memagent_lib.cli.arguments import Verbs, add_verb

if TYPE_CHECKING:
    from memagent_lib.rl import TrainingStatus


def add_parser(verbs: Verbs) -> None:
    for name, run, summary in (
        ("follow", follow, "show the progress of a training run until it ends"),
        ("stop", stop, "stop a training run after a checkpoint"),
    ):
        verb = add_verb(verbs, name, run, summary)
        verb.add_argument("folder", metavar="FOLDER", help="the run's folder, as `memagent train` printed it")


def follow(a: argparse.Namespace) -> int:
    from memagent_lib.rl import attach
    from memagent_lib.workbench import watch

    print(outcome(watch(attach(a.folder))))
    return 0


def stop(a: argparse.Namespace) -> int:
    from memagent_lib.rl import attach

    print(outcome(attach(a.folder).stop()))
    return 0


def outcome(status: TrainingStatus) -> str:
    """How a run stands, in a line."""
    reward = "" if status.reward is None else f", reward {status.reward:.3f}"
    error = f", {status.error}" if status.error else ""
    return f"{status.state}: step {status.step} of {status.steps}{reward}{error}"
