"""Probes: places by name, at which tests watch a batch or kill its process."""

import ast

import pytest

from ledger.core.probes import PLACES, listening, reached
from tests.support.places import ROOT


def places():
    """What the calls of ``reached`` in the library are given."""
    for path in (ROOT / "ledger").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reached":
                yield ast.literal_eval(node.args[0])


def test_each_place_has_a_name_and_is_reached():
    """No code reaches a place without a sentence, and code reaches each place."""
    assert set(places()) == set(PLACES)


def test_a_misspelt_place_is_an_error():
    """Whether or not anybody listens."""
    with pytest.raises(AssertionError, match="found 'setling'"):
        reached("setling")


def test_listeners_hear_each_place_in_turn():
    """The one that listened first hears of it first; afterwards none does."""
    heard = []
    with listening(lambda place, of: heard.append(("first", place, of))):
        with listening(lambda place, of: heard.append(("second", place, of))):
            reached("publishing", "lake")
        reached("published", "lake")
    reached("settled")
    assert heard == [
        ("first", "publishing", "lake"),
        ("second", "publishing", "lake"),
        ("first", "published", "lake"),
    ]


def test_what_a_listener_raises_is_raised_at_the_place():
    """A crash in process: the code after the place does not run, and no listener remains."""

    def die(place, of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), listening(die):
        reached("settled")
    reached("settled")
