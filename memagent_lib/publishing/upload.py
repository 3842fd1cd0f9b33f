"""Publish a policy's files and card in a repository of the Hugging Face hub: no examples, checkpoints or logs."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from memagent_lib.agent import SETTINGS_FILE, AgentSettings
from memagent_lib.models import WEIGHT_FILES
from memagent_lib.publishing.card import CARD, Policy, PublishingError, public

MODEL_FILES = (
    *WEIGHT_FILES,
    *(CARD, "LICENSE*", "NOTICE*", "config.json", "generation_config.json", SETTINGS_FILE, "*.safetensors.index.json"),
    *("tokenizer*", "chat_template*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
)
"""Patterns of the files that a repository of a model has."""


def files_of(policy: Policy) -> list[Path]:
    """Return the files to publish. Raises :class:`PublishingError` unless the policy's card describes its weights."""
    from huggingface_hub import ModelCard

    card = policy.folder / CARD
    described = ModelCard.load(card).data.get("memagent") if card.is_file() else None
    if described != {"weights": policy.weights}:
        raise PublishingError(f"{card} does not describe these weights; write it with: memagent card --overwrite")
    if AgentSettings.are_saved(policy.folder):
        reader = AgentSettings.load(policy.folder).reader
        if public(reader) != reader:
            raise PublishingError(f"{SETTINGS_FILE} names the reader {reader} by a path of this machine; shorten it")
    files = sorted(path for path in policy.folder.iterdir() if path.is_file())
    return [file for file in files if any(fnmatch(file.name, pattern) for pattern in MODEL_FILES)]


def push_to_hub(policy: Policy, repository: str, private: bool = False) -> str:
    """Upload the files of :func:`files_of`, and return the address of the commit.

    The repository is created if it does not exist. Weights that it had before are deleted in the same commit, so that
    two policies are never mixed.
    """
    from huggingface_hub import HfApi

    files = files_of(policy)
    api = HfApi()
    api.create_repo(repository, private=private or None, exist_ok=True)
    if private and not api.model_info(repository).private:
        raise PublishingError(f"{repository} exists and is public; make it private on the hub, or name another one")
    return api.upload_folder(
        repo_id=repository,
        folder_path=policy.folder,
        allow_patterns=[file.name for file in files],
        delete_patterns=list(WEIGHT_FILES),
        commit_message=f"Upload {policy.name} with memagent push",
    ).commit_url
