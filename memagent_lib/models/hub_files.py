"""Files of a model on a hub, by the cache that transformers and vLLM use too."""

from __future__ import annotations

import re
from pathlib import Path

from memagent_lib.errors import one_line

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_REQUEST_S = 10


def hub_file(model: str, name: str) -> Path | None:
    """Return the file ``name`` of the hub model ``OWNER/NAME``, or ``None`` if the model or the file does not exist.

    It is downloaded unless the cache has this version. If the hub cannot be reached, the cached version is returned;
    raises :class:`OSError` with the reason if there is none.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HTTPError, RepositoryNotFoundError

    api = HfApi()
    try:
        # Without a network, a download is tried again for 25 seconds; this request fails at once.
        files = api.repo_info(model, timeout=_REQUEST_S).siblings or []
        if name not in {file.rfilename for file in files}:
            return None
        return Path(api.hf_hub_download(model, name))
    except RepositoryNotFoundError:
        return None
    except (HTTPError, OSError) as failure:
        cached = try_to_load_from_cache(model, name)
        if cached is None:
            raise OSError(str(failure).strip().partition("\n")[0]) from failure
        # The cache also records that a model has no such file.
        return Path(cached) if isinstance(cached, str) else None


def why_unreachable(failure: BaseException) -> str:
    """Return why the hub could not be asked and what helps, from an error or its causes, or "" if it was asked."""
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    error: BaseException | None = failure
    while error is not None and not isinstance(error, LocalEntryNotFoundError):
        error = error.__cause__
    if error is None:
        return ""
    why = error.__cause__
    if isinstance(why, OfflineModeIsEnabled):
        return "the hub was not asked, because HF_HUB_OFFLINE is set; unset it, or give a model folder"
    reason = one_line(why) or type(why).__name__
    fix = "give a model folder, or set HF_ENDPOINT to the address of a mirror"
    return f"the hub {constants.ENDPOINT} cannot be reached ({reason}); {fix}"


def cached_folder(model: str) -> Path | None:
    """Return the folder of the hub model ``OWNER/NAME`` in the cache, or ``None``. Nothing is downloaded."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (OSError, ValueError):  # it is not there, or its name is no hub's
        return None


def cached_name(folder: Path) -> str:
    """Return the hub name of a model whose :func:`cached_folder` is ``folder``, or "" for any other folder."""
    if folder.parent.name != "snapshots":
        return ""
    return folder.parents[1].name.removeprefix("models--").replace("--", "/")
