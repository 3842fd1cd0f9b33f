"""Tables become dataclasses; what is wrong is refused with what would be right."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from memagent_lib.settings import SettingsError, flatten, parse, to_toml, toml_value


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    size: float
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True, kw_only=True)
class Cart:
    name: str
    wheels: tuple[Wheel, ...] = ()
    load: int | None = None
    tags: tuple[str, ...] = ("old",)
    spare: Wheel = field(default_factory=lambda: Wheel(size=1.0))
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.load is not None and self.load < 0:
            raise ValueError(f"load must be at least 0, got {self.load}")


def test_a_table_becomes_nested_dataclasses_with_defaults():
    table = {
        "name": "a",
        "wheels": [{"size": 1}, {"size": 2.5, "colour": "blue"}],
        "tags": ["x", "y"],
        "more": {"k": [1]},
    }
    cart = parse(Cart, table, "cart.toml")
    assert cart == Cart(
        name="a", wheels=(Wheel(size=1.0), Wheel(size=2.5, colour=Colour.BLUE)), tags=("x", "y"), more={"k": [1]}
    )
    assert isinstance(cart.wheels[0].size, float)
    assert parse(Cart, {"name": "a"}, "x") == Cart(name="a")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "a", "wheel": []}, "cart.toml has no key wheel; it has load, more, name, spare, tags, wheels"),
        ({"name": "a", "spare": {"size": 1, "color": "red"}}, "cart.toml: spare has no key color; it has colour, size"),
        ({"name": "a", "spare": {}}, "cart.toml: spare needs size"),
        ({"name": "a", "load": "3"}, "cart.toml: load must be a valid integer, got '3'"),
        ({"name": "a", "spare": {"size": 1, "colour": "green"}}, "spare.colour must be 'red' or 'blue', got 'green'"),
        ({"name": "a", "load": -1}, "cart.toml: load must be at least 0, got -1"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(table, message):
    with pytest.raises(SettingsError) as refused:
        parse(Cart, table, "cart.toml")
    assert message in str(refused.value)


def test_tables_come_back_from_their_toml():
    value = {
        "name": 'é "q" \\ \n \x7f',
        "rate": 1e-06,
        "on": True,
        "sizes": [1, 2.5],
        "by": {"a b": {"c": 1}},
        "no": {},
    }
    assert tomllib.loads(f"v = {toml_value(value)}")["v"] == value
    tables = {"data": {"n": 1, "none": None, "stages": [{"files": ["a"]}, {"files": ["b"], "steps": 2}]}, "more": {}}
    expected = {"data": {"n": 1, "stages": tables["data"]["stages"]}, "more": {}}
    assert tomllib.loads(to_toml(tables)) == expected
    assert tomllib.loads(f"v = {toml_value([math.inf, -math.inf])}")["v"] == [math.inf, -math.inf]


def test_a_dotted_key_of_a_recipe_stays_a_path():
    assert to_toml({"verl": {"trainer.steps": 3, "+model.size": 1}}) == '[verl]\ntrainer.steps = 3\n"+model.size" = 1'


def test_nested_and_dotted_names_mean_the_same():
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e.f": 3, "g": {}}) == {"a.b": 1, "a.c.d": 2, "e.f": 3, "g": {}}
