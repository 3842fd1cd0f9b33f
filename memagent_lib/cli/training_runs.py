"""``memagent follow`` and ``memagent stop``: a training run, from its folder, in any terminal."""

from __future__ import annotations

import argparse

from memagent_lib.cli.arguments import Verbs, add_verb


def add_parser(verbs: Verbs) -> None:
    for name, run, summary in (
        ("follow", follow, "show the progress of a training run until it ends"),
        ("stop", stop, "stop a training run after a checkpoint"),
    ):
        verb = add_verb(verbs, name, run, summary)
        verb.add_argument("folder", metavar="FOLDER", help="the run's folder, as `memagent train` printed it")


def follow(a: argparse.Namespace) -> int:
    from memagent_lib.rl import attach
    from memagent_lib.workbench import panel

    print(panel.outcome(panel.watch(attach(a.folder))))
    return 0


def stop(a: argparse.Namespace) -> int:
    from memagent_lib.rl import attach
    from memagent_lib.workbench import panel

    print(panel.outcome(attach(a.folder).stop()))
    return 0
