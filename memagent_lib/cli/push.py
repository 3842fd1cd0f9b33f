"""``memagent push``: a policy and its model card, to the Hugging Face hub or to a folder."""

from __future__ import annotations

import argparse
import shlex

from memagent_lib.cli.arguments import Verbs, add_verb, look_next, option, switch

EXAMPLES = """\
examples:
  memagent card runs/seven                        the card comes first
  memagent push runs/seven ME/NAME --dry-run      what would be uploaded: files, sizes, and what stays behind
  memagent push runs/seven ME/NAME --private
  memagent push runs/seven ./published/seven      the same files as a copy; a folder begins with /, ./ or ~

The hub's own settings apply: a token from `hf auth login` or HF_TOKEN, another address by HF_ENDPOINT.
"""


def add_parser(verbs: Verbs) -> None:
    summary = "publish a policy with its model card, on the Hugging Face hub or in a folder"
    verb = add_verb(verbs, "push", run, summary, EXAMPLES, how_to_continue=lambda a: "the same command continues")
    verb.add_argument("policy", metavar="RUN", help="the folder of `memagent train`, or a model folder")
    verb.add_argument("target", metavar="TARGET", help="a repository of the hub, OWNER/NAME, or a folder")
    switch(verb, "--private", "create the repository as a private one")
    switch(verb, "--overwrite", "replace files that the target already has")
    include = "take these files too, by a pattern such as '*.py'; may be repeated"
    option(verb, "--include", "PATTERN", include, action="append", default=[])
    switch(verb, "--dry-run", "print the files and their sizes after all checks on this machine; send nothing")


def run(a: argparse.Namespace) -> int:
    from memagent_lib.publishing import Policy, Upload, copy_to_folder, is_folder, push_to_hub

    local = is_folder(a.target)
    if local and a.private:
        raise ValueError(f"--private is for a repository of the hub, and {a.target} is a folder; leave it out")
    upload = Upload.of(Policy.of(a.policy), a.include)
    print("\n".join(upload.lines()), flush=True)
    if a.dry_run:
        print(f"nothing was sent to {a.target}")
    elif local:
        folder = copy_to_folder(upload, a.target, a.overwrite)
        print(folder)
        question = f'memagent read FILE --question "..." --model {shlex.quote(str(folder))}'
        look_next(command=question)
    else:
        print(push_to_hub(upload, a.target, private=a.private, overwrite=a.overwrite))
    return 0
