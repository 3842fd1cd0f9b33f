"""The licence identifiers of the Hugging Face hub, which refuses a card with any other."""

from __future__ import annotations

from memagent_lib.errors import nearest

# As the hub's error for another identifier listed them in May 2026. No package carries the list.
_LISTED = """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
    afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
    cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
    lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
    openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
    fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown
    other
"""
HUB_LICENCES = frozenset(_LISTED.split())


def licence_notes(id: str) -> list[str]:
    """Return a warning for an identifier that is none of :data:`HUB_LICENCES`, else nothing.

    A warning and no error, because the hub adds identifiers.
    """
    if id in HUB_LICENCES:
        return []
    near = nearest(id, sorted(HUB_LICENCES)) or "; `other` is for a licence that the hub does not list"
    return [f"the hub is not known to have a licence {id!r}, and refuses a card with one that it does not have{near}"]
