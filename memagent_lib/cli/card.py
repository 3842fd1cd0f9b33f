"""``memagent card``: a model card for a trained policy."""

from __future__ import annotations

import argparse
import shlex

from memagent_lib.cli.arguments import Verbs, add_verb, look_next, option, switch, warn

EXAMPLES = """\
examples:
  memagent card runs/seven                          writes runs/seven/model/README.md, with all evaluations in the store
  memagent card runs/seven --evaluation runs/hqa    only with those that `memagent evaluate --out runs/hqa` wrote
  memagent card policy --base Qwen/Qwen2.5-7B-Instruct --license apache-2.0      a model folder without its run
"""


def add_parser(verbs: Verbs) -> None:
    summary = "write a model card: base, licence, data, recipe, curve, scores with intervals"
    verb = add_verb(verbs, "card", run, summary, EXAMPLES)
    verb.add_argument("policy", metavar="RUN", help="the folder of `memagent train`, or a model folder")
    option(verb, "--out", "FILE", "the file to write (default: README.md in the model folder)", default="")
    switch(verb, "--overwrite", "replace the file if it exists")
    option(verb, "--name", "NAME", "the policy's name (default: the folder's)", default="")
    base = "the base model: a folder or a hub name (default: the one that the run was started with)"
    option(verb, "--base", "MODEL", base, default="")
    licence = "a licence by the hub's identifier, such as apache-2.0, or unknown (default: the base model's)"
    option(verb, "--license", "ID", licence, default="")
    dataset = "a data set on the hub that training used; may be repeated"
    option(verb, "--dataset", "OWNER/NAME", dataset, action="append", default=[])
    evaluation = "the --out of `memagent evaluate`; may be repeated (default: all evaluations in the store)"
    option(verb, "--evaluation", "FOLDER", evaluation, action="append", default=[])
    store = "the MLflow store, if the run's recipe names none: a folder or a server's address"
    option(verb, "--tracking", "STORE", store, default="runs")


def run(a: argparse.Namespace) -> int:
    from memagent_lib.paths import absolute, display, require_replaceable, write_atomically
    from memagent_lib.publishing import CARD, Policy, model_card

    policy = Policy.of(a.policy)
    out = absolute(a.out) if a.out else policy.folder / CARD
    require_replaceable(out)
    if out.exists() and not a.overwrite:
        raise ValueError(f"{display(out)} exists; replace it with --overwrite, or name another file with --out")
    card = model_card(
        policy,
        a.tracking,
        name=a.name,
        base=a.base,
        licence=a.license,
        datasets=a.dataset,
        evaluations=a.evaluation,
    )
    write_atomically(out, card.text)
    warn(*card.warnings)
    print(out)
    if not a.out:
        look_next(command=f"memagent push {shlex.quote(a.policy)} OWNER/NAME")
    return 0
