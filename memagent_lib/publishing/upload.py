"""Publish a policy's files in a repository of the Hugging Face hub, or as a copy in a folder.

Only files that belong to a model are taken: no examples, checkpoints, traces or logs. In ``memagent.json``, the path of
a plug-in reader loses the folders of this machine. All checks come before the first file is sent.
"""

from __future__ import annotations

import filecmp
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.agent import SETTINGS_FILE, AgentSettings
from memagent_lib.models import HUB_NAME, WEIGHT_FILES, weight_files
from memagent_lib.paths import absolute, display, replacing
from memagent_lib.plugins import is_plugin
from memagent_lib.publishing.policy import CARD, INDEX, Policy, PublishingError, card_data
from memagent_lib.publishing.training_record import public_path

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MODEL_FILES = (
    *(CARD, "LICENSE*", "NOTICE*", "config.json", "generation_config.json", SETTINGS_FILE, INDEX),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "chat_template.jinja"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
)
"""Names of files, besides the weights, that a repository of a model has."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The files of a policy that are published, and the names of what stays behind.

    ``rewritten`` has the content that is published in place of a file's own, by the file's name.
    """

    policy: Policy
    files: Sequence[Path]
    left_out: Sequence[str]
    rewritten: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, policy: Policy, include: Sequence[str] = ()) -> Upload:
        """Choose the files, and check that a card describes these weights. ``include`` has patterns of further files.

        Raises :class:`PublishingError` if there is no card, if the card is about other weights, or if a pattern matches
        no file.
        """
        files = list(weight_files(policy.folder))
        left_out = []
        matched = set()
        for path in sorted(policy.folder.iterdir()):
            named = {pattern for pattern in include if fnmatch(path.name, pattern)}
            matched |= named
            if path in files:
                continue
            if path.is_file() and (named or any(fnmatch(path.name, pattern) for pattern in MODEL_FILES)):
                files.append(path)
            else:
                left_out.append(path.name + "/" * path.is_dir())
        unknown = [pattern for pattern in include if pattern not in matched]
        if unknown:
            raise PublishingError(f"no file of {display(policy.folder)} matches {', '.join(unknown)}")
        _require_card(policy)
        return cls(policy, sorted(files), left_out, _without_private_reader(policy.folder))

    @property
    def size(self) -> int:
        return sum(map(self._size_of, self.files))

    def _size_of(self, file: Path) -> int:
        rewritten = self.rewritten.get(file.name)
        return file.stat().st_size if rewritten is None else len(rewritten.encode())

    @contextmanager
    def as_published(self) -> Iterator[Path]:
        """Yield a temporary folder with the files as they are published: links, and those that are rewritten."""
        with tempfile.TemporaryDirectory(prefix="memagent-push-") as home:
            for file in self.files:
                published = Path(home) / file.name
                if file.name in self.rewritten:
                    published.write_text(self.rewritten[file.name], encoding="utf-8")
                else:
                    published.symlink_to(file.resolve())
            yield Path(home)

    def lines(self) -> list[str]:
        """Return what is published, a line per file with its size, and what is not."""
        width = max(len(file.name) for file in self.files)
        lines = [f"{file.name:<{width}}  {size_in_words(self._size_of(file)):>12}" for file in self.files]
        lines += [f"{name} is published without this machine's folders" for name in self.rewritten]
        lines.append(f"{len(self.files)} files, {size_in_words(self.size)}")
        if self.left_out:
            lines.append(f"not published: {', '.join(self.left_out)}")
        return lines


def size_in_words(size: int) -> str:
    """Return a size as ``538.1 MB`` or, below a tenth of a megabyte, as ``5.1 kB``."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


def _without_private_reader(folder: Path) -> dict[str, str]:
    """Return ``memagent.json`` as it is published, by its name, if it names a reader by a path of this machine."""
    if not AgentSettings.are_saved(folder):
        return {}
    file = folder / SETTINGS_FILE
    reader = AgentSettings.load(folder).reader
    public = public_path(reader)
    if not is_plugin(reader) or public == reader:
        return {}
    table = json.loads(file.read_text(encoding="utf-8")) | {"reader": public}
    return {file.name: json.dumps(table, indent=2) + "\n"}


def _require_card(policy: Policy) -> None:
    file = policy.folder / CARD
    command = f"memagent card {shlex.quote(display(policy.folder))}"
    if not file.is_file():
        raise PublishingError(f"{display(policy.folder)} has no model card ({CARD}); write it with: {command}")
    try:
        described = card_data(file).get("memagent")
    except ValueError as damaged:
        raise PublishingError(
            f"the model card {display(file)} cannot be read ({damaged}); write it again with: {command} --overwrite"
        ) from damaged
    weights = described.get("weights") if isinstance(described, dict) else None
    if weights and weights != policy.weights:
        raise PublishingError(
            f"the model card {display(file)} describes the weights {weights}, and the folder has {policy.weights}; "
            f"write it again with: {command} --overwrite"
        )


def is_folder(target: str) -> bool:
    """Return whether a target is a folder on this machine. All other targets are repositories of the hub.

    Raises :class:`PublishingError` for a name that is neither, or that could be both.
    """
    if target.startswith(("/", "./", "../", "~")) or target in (".", ".."):
        return True
    if not HUB_NAME.fullmatch(target):
        raise PublishingError(
            f"{target!r} is no target: a repository of the hub is OWNER/NAME, and a folder begins with /, ./ or ~"
        )
    if absolute(target).parent.is_dir():
        raise PublishingError(
            f"{target} could be a repository of the hub or a folder in {target.partition('/')[0]}; write ./{target} "
            "for the folder, or push from elsewhere"
        )
    return False


def copy_to_folder(upload: Upload, target: str | Path, overwrite: bool = False) -> Path:
    """Copy the files to a folder, with their times; return the folder. A new folder appears complete or not at all.

    Files that are equal stay. Raises :class:`PublishingError` for a file that differs, unless ``overwrite`` is set, and
    for other weights in the folder, which would be loaded together with these.
    """
    folder = absolute(target)
    if folder.exists() and not folder.is_dir():
        raise PublishingError(f"{display(folder)} is a file; name a folder")
    source = upload.policy.folder.resolve()
    if folder.resolve() == source or source in folder.resolve().parents:
        raise PublishingError(f"{display(folder)} is the policy's own folder or in it; name another one")
    if folder.exists():
        _require_no_other_weights([path.name for path in folder.iterdir()], upload, display(folder))
    with upload.as_published() as published:
        files = sorted(published.iterdir())
        if folder.exists():
            _update(files, folder, overwrite)
        else:
            _copy_as_one(files, folder)
    return folder


def _copy_as_one(files: Sequence[Path], folder: Path) -> None:
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    part.mkdir(parents=True)
    try:
        _copy(files, part)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _update(files: Sequence[Path], folder: Path, overwrite: bool) -> None:
    there = [file for file in files if (folder / file.name).exists()]
    differing = [file for file in there if not filecmp.cmp(file, folder / file.name, shallow=False)]
    if differing and not overwrite:
        names = ", ".join(file.name for file in differing)
        raise PublishingError(
            f"{display(folder)} has other versions of {names}; replace them with --overwrite, or name another folder"
        )
    _copy([file for file in files if file in differing or file not in there], folder)


def _copy(files: Sequence[Path], folder: Path) -> None:
    for file in files:
        with replacing(folder / file.name) as unfinished:
            # With its times, because large weights are hashed by them, but readable by whoever reads new files here:
            # safetensors gives its files to their owner alone.
            shutil.copyfile(file, unfinished)
            times = file.stat()
            os.utime(unfinished, ns=(times.st_atime_ns, times.st_mtime_ns))


def _require_no_other_weights(names: Sequence[str], upload: Upload, where: str) -> None:
    mine = {file.name for file in upload.files}
    other = [
        name for name in names if name not in mine and any(fnmatch(name, pattern) for pattern in (*WEIGHT_FILES, INDEX))
    ]
    if other:
        raise PublishingError(
            f"{where} has other weights too ({', '.join(other)}); delete them, or name another target"
        )


def push_to_hub(
    upload: Upload, repository: str, *, private: bool = False, overwrite: bool = False, api: HfApi | None = None
) -> str:
    """Upload the files to ``repository``, created if it does not exist; return the address of the commit.

    ``api`` is the hub's client, by default with the address and token of the environment. Raises
    :class:`PublishingError` without a token, if the repository has a card or weights already (unless ``overwrite`` is
    set), and if the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    api = api or HfApi()
    if not sys.stderr.isatty():
        disable_progress_bars()
    with _refusals(api.endpoint):
        require_token(api)
        # With None, a new repository is as its owner has chosen on the hub. An existing one never changes.
        api.create_repo(repository, private=private or None, exist_ok=True)
        there = api.model_info(repository)
        if private and not there.private:
            raise PublishingError(f"{repository} exists and is public; make it private on the hub, or name another one")
        names = [file.rfilename for file in there.siblings or ()]
        _require_no_other_weights(names, upload, repository)
        mine = {file.name for file in upload.files}
        if mine & set(names) and not overwrite:
            raise PublishingError(f"{repository} has a policy already; replace its files with --overwrite")
        message = f"Upload {upload.policy.name} with memagent push"
        with upload.as_published() as published:
            commit = api.upload_folder(repo_id=repository, folder_path=published, commit_message=message)
    return commit.commit_url


def require_token(api: HfApi) -> None:
    """Raise :class:`PublishingError` if this machine has no token for the hub."""
    from huggingface_hub import get_token

    if not (api.token or get_token()):
        raise PublishingError("the hub needs a token of yours; save one with `hf auth login`, or set HF_TOKEN")


@contextmanager
def _refusals(endpoint: str) -> Iterator[None]:
    """Turn the errors of the hub and of the connection to it into one line."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # the latter is httpx's, for a failed connection

    try:
        yield
    except PublishingError:
        raise
    except HfHubHTTPError as refused:
        raise PublishingError(f"{endpoint} refused: {refused.server_message or _first_line(refused)}") from refused
    except (HTTPError, OSError, ValueError) as failure:
        raise PublishingError(f"pushing to {endpoint} failed: {_first_line(failure)}") from failure


def _first_line(failure: Any) -> str:
    return next((line for line in str(failure).splitlines() if line.strip()), type(failure).__name__)
