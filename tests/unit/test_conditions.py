"""Conditions on records: what people write is read, and nothing of it ever becomes SQL."""

import pytest

from ledger.core import conditions
from ledger.core.conditions import Comparison
from ledger.errors import InputError


@pytest.mark.parametrize(
    ("text", "comparison"),
    [
        ("order_id = 'O7'", [Comparison("order_id", "=", "O7")]),
        ("a='it''s' and b != 'x'", [Comparison("a", "=", "it's"), Comparison("b", "<>", "x")]),
        ("cents >= -1.5", [Comparison("cents", ">=", "-1.5", numeric=True)]),
        ("\"two words\" like 'x%'", [Comparison("two words", "LIKE", "x%")]),
        (
            "a is null AND b IS NOT NULL",
            [Comparison("a", "IS NULL"), Comparison("b", "IS NOT NULL")],
        ),
        ("done = TRUE", [Comparison("done", "=", "true")]),
        ("a = 'x; DROP TABLE batch; --'", [Comparison("a", "=", "x; DROP TABLE batch; --")]),
    ],
    ids=str,
)
def test_what_is_read(text, comparison):
    """A condition is comparisons joined by AND, their values apart from their operators."""
    assert conditions.parse(text) == comparison


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a =",
        "= 'x'",
        "a = b",
        "a = 'x' OR 1 = 1",
        "a = 'x'; DROP TABLE batch",
        "a = 'x",
        "1 = 1",
        "a = (SELECT 1)",
        "a = 'x' --",
        "a ~ 'x'",
        "a = 1e",
        "a = 'x' AND",
        "a IS 5",
        "a() = 1",
        "a = $$x$$",
        "a = 'x' 'y'",
        "a = -- 1",
    ],
    ids=str,
)
def test_what_is_refused(text):
    """Whatever else is refused, with an example of what is read."""
    with pytest.raises(InputError, match="expected comparisons of a field with a text or a number"):
        conditions.parse(text)
