"""What stands for redacted values, and where a redacted column may be named."""

import re

import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.core.conditions import parse, with_pseudonyms
from ledger.core.redaction import NOTHING, Redaction, as_text, found_pattern, texts, without
from ledger.errors import (
    DeclarationError,
    Failures,
    InputError,
    LedgerError,
    StageError,
    UnavailableError,
    redacted,
)

REDACT = Redaction.of(["Email", "name"], b"secret")


@pytest.mark.parametrize(
    ("text", "values", "shown"),
    [
        ("bad Ann Lee <ann@x.org>", ["Ann Lee", "ann@x.org"], "bad *** <***>"),
        ("ANN LEE is unknown", [" ann lee "], "*** is unknown"),
        ("banana of Ann", ["Ann"], "banana of ***"),
        ("email ann@x.org of ann", ["ann", "ann@x.org"], "email *** of ***"),
        ("+1 is no number", ["+1"], "*** is no number"),
        ("a.c and abc", ["a.c"], "*** and abc"),
        ("\\E and (x", ["\\E", "(x"], "*** and ***"),
        ("nothing", ["", "  "], "nothing"),
    ],
)
def test_values_are_masked_in_a_text(text, values, shown):
    """The longest first, in any case, literally, and short ones as whole words alone."""
    assert without(text, values) == shown


def test_texts_of_a_value_with_parts():
    """Each part of a list or a map counts by itself, and null has none."""
    assert list(texts([{"a": "x", "b": [1, None]}, "y", None])) == ["x", "1", "y"]


def test_a_key_gets_pseudonyms():
    """Equal values of one column have equal ones, those of another column or another ledger not;
    null stays null, and other columns stay as they are."""
    key = REDACT.key('{"Email": "ann@x.org", "NAME": null, "n": 7, "name2": "x"}')
    assert key == (
        f'{{"Email": "{REDACT.pseudonym("email", "ann@x.org")}", "NAME": null, "n": 7,'
        ' "name2": "x"}'
    )
    assert re.fullmatch(r"\*\*\*[0-9a-f]{16}", REDACT.pseudonym("email", "ann@x.org"))
    same = REDACT.pseudonym("EMAIL", "ann@x.org")
    assert same == REDACT.pseudonym("email", "ann@x.org")
    assert same != REDACT.pseudonym("name", "ann@x.org")
    assert same != Redaction.of(["email"], b"other").pseudonym("email", "ann@x.org")
    assert NOTHING.key('{"a":  1}') == '{"a":  1}'
    assert [as_text(one) for one in ("7", 7, 1.5, True)] == ["7", "7", "1.5", "true"]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("malformed csv: age: expected int, found ann, found x", "found ***"),
        ("malformed row: a.b(c): expected decimal(10,2), found\n ann", None),
        ("age: expected struct<a:int,b:string>, found ann\nlee", "found ***"),
        ("yielded age: expected int NOT NULL, found ann", "found ***"),
        ("malformed csv: expected 3 fields, found 5", "found 5"),
        ("expected one object with id, age, found something else", "found something else"),
    ],
)
def test_what_was_found_is_masked(reason, shown):
    """In a reason of a column's value, and not where no value is quoted."""
    made = re.sub(found_pattern(["age", "id"]), r"\1***", reason)
    assert made.endswith(shown or reason)
    assert "ann" not in made or shown is None


def test_conditions_find_pseudonyms():
    """= and <> look for the pseudonym as well; a condition that asks more is refused."""
    first, second, third = with_pseudonyms(
        parse("email = 'ann@x.org' AND n > 5 AND name IS NULL"), REDACT
    )
    assert first.pseudonym == REDACT.pseudonym("email", "ann@x.org")
    assert (second.pseudonym, third.pseudonym) == (None, None)
    with pytest.raises(InputError, match="'email', which is redacted: expected = or <>"):
        with_pseudonyms(parse("email LIKE 'a%'"), REDACT)


def people(redact, schema="id INT, name STRING COMMENT 'a, b', `E Mail` STRING"):
    made = Pipeline("people", redact=redact)
    made.source("people", FileSource("people.csv", schema=schema))
    made.sink("out", ParquetSink("out"), reads="people")
    return made


def test_columns_are_checked_with_the_pipeline():
    """One name or several, in any case, of any source's schema; one that none has is refused with
    what may be meant, and so is what is no name."""
    assert people("NAME").steps()
    assert people(["name", "E Mail"]).steps()
    with pytest.raises(DeclarationError, match=r"'nme', a column of none .* did you mean 'name'\?"):
        people(["nme"]).steps()
    for wrong in ([""], [7], ["name", "Name"]):
        with pytest.raises(DeclarationError, match="redact"):
            people(wrong)
    as_json = '{"type": "struct", "fields": []}'
    assert people("nme", as_json).steps(), "only Spark can read it: its source looks"


def test_an_error_without_what_it_quotes():
    """The words that an error names as somebody else's are masked; what is not the ledger's own
    keeps its class; kind and notes stay."""
    exc = StageError("a row was refused: bad ann. Fix it", quotes=["bad ann"])
    exc.add_note("To go on: x")
    made = redacted(exc)
    assert (type(made), str(made)) == (StageError, "a row was refused: ***. Fix it")
    assert made.__notes__ == ["To go on: x"]
    other = redacted(ValueError("bad ann"), UnavailableError)
    assert type(other) is UnavailableError
    assert str(other).startswith("ValueError. Its words may hold what the pipeline redacts")


def test_failures_are_hidden_before_they_are_told(caplog):
    """What is kept of a failure, and logged of it, is what it was made into."""
    failures = Failures(str, redacted)
    with failures.kept("note"):
        raise StageError("bad ann", quotes=["ann"])
    with pytest.raises(LedgerError, match=r"^bad \*\*\*") as caught:
        failures.raise_first()
    assert caught.value.__notes__ == ["note"]
    assert "ann" not in caplog.text
