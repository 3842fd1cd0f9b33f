"""Publish a trained policy: its model card, and its files on the Hugging Face hub or in a folder.

Everything in a card is a record of a run, an evaluation or a file. This package does not depend on engines, notebooks
or charts.
"""

from memagent_lib.publishing.model_card import Card, model_card
from memagent_lib.publishing.policy import CARD, Policy, PublishingError
from memagent_lib.publishing.upload import Upload, copy_to_folder, is_folder, push_to_hub

__all__ = [
    "CARD",
    "Card",
    "Policy",
    "PublishingError",
    "Upload",
    "copy_to_folder",
    "is_folder",
    "model_card",
    "push_to_hub",
]
