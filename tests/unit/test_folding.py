"""Texts are found whatever their case and Unicode form."""

from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.batch.records.held_values import _pattern, fold

CASES = (str.upper, str.lower, str.title, str.casefold, str.swapcase, str.capitalize)
FORMS = ("NFC", "NFD")
VALUES = st.text(
    st.one_of(
        st.sampled_from("aIiıİßẞſσςΣﬁﬀŉǰΐᾳÅé\u0301\u0307\u0345"),
        st.characters(exclude_categories=["Cs"]),
    ),
    min_size=1,
)


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
    assert bool(_pattern(value).search(fold(text))) == is_there


@given(VALUES, st.data())
def test_every_case_of_a_value_is_found(value, data):
    """Whatever the case and the form in which a text has a value."""
    variant = data.draw(st.sampled_from(sorted(set(variants(value)))))
    assert fold(variant) == fold(value)
    assert _pattern(value).search(fold(f"## {variant} ##"))
