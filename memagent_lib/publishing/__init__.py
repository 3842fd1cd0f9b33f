"""Publish a trained policy: its model card, and its files on the Hugging Face hub.

Everything in a card is a record of a run, an evaluation or a file. This package does not depend on engines, notebooks
or charts.
"""

from memagent_lib.publishing.card import CARD, Policy, PublishingError, model_card
from memagent_lib.publishing.upload import files_of, push_to_hub

__all__ = ["CARD", "Policy", "PublishingError", "files_of", "model_card", "push_to_hub"]
