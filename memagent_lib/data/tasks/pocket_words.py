"""The words of the pocket policy's world: each is one token of its tokenizer, and none means two things."""

from __future__ import annotations

from memagent_lib.data.tasks.needles import ADJECTIVES, FILLER, NOUNS
from memagent_lib.data.tasks.words import terms

NAMES = terms(
    "Ada Adam Alma Amos Anna Asa Axel Basil Bella Ben Bruno Cara Carl Celia Cleo Clive Cora Cyrus Dana Dara Dean "
    "Della Dora Duke Edda Eden Edith Edwin Ella Elmo Elsa Emil Emma Enid Erik Esme Ethan Eva Ezra Fay Felix Fern "
    "Finn Flora Floyd Frank Freya Gail Gina Glen Grace Gus Hal Hanna Hans Hector Helga Henry Hilda Hugo"
)
"""Sixty people."""

CODES = terms(
    "acorn anchor anvil apron arrow atlas axle bamboo banjo barrel basket beacon bell bottle bracket brick bucket "
    "button cabin cable candle canvas carpet castle cedar cello chalk cherry cinder clover cobalt compass cotton "
    "cradle cricket crystal cypress dagger daisy diamond drum ember fabric feather fiddle flint flute forest fossil "
    "fountain garlic ginger glacier glove granite guitar hammer harbor harp helmet hinge honey jasmine jewel kettle "
    "ladder lantern lavender lemon lily linen magnet maple marble meadow melon mirror mosaic needle nutmeg oasis "
    "onion orchid paddle pebble pepper piano pillow pistol plum pumpkin quartz quilt ribbon saddle saffron sapphire "
    "satin scarf shovel"
)
"""A hundred code words, the values that are asked for."""

__all__ = ["ADJECTIVES", "CODES", "FILLER", "NAMES", "NOUNS"]
