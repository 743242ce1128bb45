"""Texts are found whatever their case and Unicode form."""

import json
import random
import re
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.batch.records.held_values import fold, forms

CASES = (str.upper, str.lower, str.title, str.casefold, str.swapcase, str.capitalize)
FORMS = ("NFC", "NFD")
SIGN = r"[^\w\s]"
VALUES = st.text(
    st.one_of(
        st.sampled_from("aIiıİßẞſσςΣﬁﬀŉǰΐᾳÅé\u0301\u0307\u0345"),
        st.characters(exclude_categories=["Cs"]),
    ),
    min_size=1,
)


def is_in(value, text):
    return any(form.is_in(fold(text)) for form in forms(value))


def by_expression(value, text):
    """Search a form with an expression that takes exponential time on runs of signs."""
    escaped = "|".join(
        re.sub(SIGN, lambda sign: f"{SIGN}?{re.escape(sign[0])}", fold(form))
        for form in (value, json.dumps(value)[1:-1])
    )
    whole = f"(?:{escaped})" if len(value) >= 4 else rf"(?<!\w)(?:{escaped})(?!\w)"
    return re.search(whole, fold(text)) is not None


def variants(value):
    for case in CASES:
        for form in FORMS:
            yield normalize(form, case(value))
            yield case(normalize(form, value))


@pytest.mark.parametrize(
    ("text", "value", "is_there"),
    [
        ("no STRASSE 5", "Straße", True),
        ("at istanbul!", "İSTANBUL", True),
        ("ΟΔΥΣΣΕΥΣ came", "Οδυσσευς", True),
        ("the ﬁnal word", "FINAL", True),
        ("for Jose\u0301 Ruiz", "José Ruiz", True),
        ('{"name": "Zo\\u00eb"}', "Zoë", True),
        ("banana", "Ann", False),
        ("of Ann, here", "ann", True),
        ("glass", "ß", False),
        ('7,"Ann ""Bob"" Lee",x', 'Ann "Bob" Lee', True),
        ('7,"Ann \\"Bob\\" Lee",x', 'ann "bob" lee', True),
        ("7,'Rosa O''Hara'", "Rosa O'Hara", True),
        ('7,"{""name"": ""Ann \\""Bob\\"" Lee""}"', 'Ann "Bob" Lee', True),
        ('7,"""Al"""', '"Al"', True),
        ("7,Ann Bob Lee", 'Ann "Bob" Lee', False),
        ("7,a..b@x.org", "ab@x.org", False),
    ],
)
def test_a_value_is_found_in_a_text(text, value, is_there):
    """In any case, either form of an accent and as JSON or CSV escapes it; a short one as a word
    alone."""
    assert is_in(value, text) == is_there


@given(VALUES, st.data())
def test_every_case_of_a_value_is_found(value, data):
    """Whatever the case and the form in which a text has a value."""
    variant = data.draw(st.sampled_from(sorted(set(variants(value)))))
    assert fold(variant) == fold(value)
    assert is_in(value, f"## {variant} ##")


def test_signs_are_found_escaped_or_not():
    """A search finds exactly what an expression with an optional sign before each sign finds."""
    generator = random.Random(7)
    letters = 'ab-+"\\ é'
    matches = 0
    for _ in range(20_000):
        value = "".join(generator.choices(letters, k=generator.randrange(7)))
        noise = "".join(generator.choices(letters, k=generator.randrange(9)))
        doubled = re.sub(SIGN, generator.choice([r"\g<0>", r"\g<0>\g<0>", r"\\\g<0>"]), value)
        text = generator.choice([noise, noise[:2] + doubled + noise[2:4]])
        assert is_in(value, text) == by_expression(value, text), (value, text)
        matches += is_in(value, text)
    assert 5_000 < matches < 15_000


def test_runs_of_signs_are_searched_in_linear_time():
    """Values and texts of 1,000 signs are compared at once, whether or not they are doubled."""
    for run in ("-" * 1000, "-+" * 500, '"' * 1000):
        doubled = re.sub(SIGN, r"\g<0>\g<0>", run)
        for text in (run, doubled, f"x{doubled}y"):
            assert is_in(run, text)
        assert is_in(f"x{run}y", f"x{doubled}y")
        assert not is_in(f"x{run}y", f"x{doubled}--y x")
        assert not is_in(f"{run}y", f"{run[:-1]} y{run}")
