"""Texts are found whatever their case and Unicode form."""

from unicodedata import combining, normalize

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ledger.core.folding import fold
from ledger.core.redaction import without

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
    ("text", "value", "shown"),
    [
        ("no STRASSE 5", "Straße", "no *** 5"),
        ("no Straße 5", "STRASSE", "no *** 5"),
        ("a ß, a ss, glass", "ß", "a ***, a ***, glass"),
        ("at i\u0307stanbul!", "İstanbul", "at ***!"),
        ("at istanbul!", "İSTANBUL", "at ***!"),
        ("ΟΔΥΣΣΕΥΣ came", "Οδυσσευς", "*** came"),
        ("the ﬁnal word", "FINAL", "the *** word"),
        ("the oﬃce door", "offi", "the ***ce door"),
        ("the oﬃces door", "ices", "the o*** door"),
        ("for Jose\u0301 Ruiz", "José Ruiz", "for ***"),
        ("for JOSÉ, here", "Jose\u0301", "for ***, here"),
        ("Zo\\u00cb", "Zoë", "***"),
        ("ab cd ef", "ab cd", "*** ef"),
        ("at Haupt-Stras... (cut)", "Hauptallee", "at Haupt-Stras... (cut)"),
        ("at HAUPTSTRASS... (cut)", "Hauptstraße", "at ***... (cut)"),
    ],
)
def test_exactly_the_characters_of_a_value_are_masked(text, value, shown):
    """Where folding changes the length the places are those of the text as it stands; of a
    ligature nothing is left, and what is beside the value stays."""
    assert without(text, [value]) == shown


def test_values_that_overlap_leave_nothing():
    """What two values have in common is covered with both."""
    assert without("to ab cd ef now", ["ab cd", "cd ef"]) == "to *** now"


@given(VALUES, st.data())
def test_no_case_of_a_value_survives(value, data):
    """Whatever the case and the form in which a text has a value, it is masked there and nowhere
    else."""
    assume(value.strip() == value)
    variant = data.draw(st.sampled_from(sorted(set(variants(value)))))
    assert fold(variant) == fold(value)
    assume(not set("#*") & set(value))
    # A value that begins with an accent is covered with the character that bears it.
    before = "##" if combining(normalize("NFD", value)[0]) else "## "
    assert without(f"## {variant} ##", [value]) == f"{before}*** ##"
