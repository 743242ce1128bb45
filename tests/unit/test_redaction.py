"""What stands for redacted values, and where a redacted column may be named."""

import json
import re
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
import sqlalchemy as sa

from ledger import FileSource, ParquetSink, Pipeline, SqlSource
from ledger.batch.claims import Prospect, _latest
from ledger.batch.records.held_values import texts
from ledger.batch.records.record_rows import _described
from ledger.core.conditions import parse, with_pseudonyms
from ledger.core.redaction import NOTHING, Redaction, as_text
from ledger.core.run_request import Interval
from ledger.databases.driver_errors import translated
from ledger.errors import (
    DeclarationError,
    InputError,
    LedgerError,
    StageError,
    UnavailableError,
    quote,
    redacted,
    shown,
)
from ledger.sources.base import Scope
from ledger.sources.sql.queries import _as_stored, _checked
from ledger.spark.failures import Failures, explained
from ledger.store.connection import Database
from ledger.store.queries.claims import NextRange

REDACT = Redaction.of(["Email", "name"], b"secret")


def test_texts_of_a_value_with_parts():
    """Each part of a list or a map counts by itself, and null has none; bytes are shown by Python,
    or as the text that they are."""
    assert list(texts(b"ann")) == ["b'ann'", "ann"]
    assert list(texts([{"a": "x", "b": [1, None]}, "y", None])) == ["x", "1", "y"]


def test_what_a_trace_shows_is_masked_by_column():
    """The values of a column that is not to be shown are masked, at any depth; null stays null."""
    table = pa.table({"email": ["ann@x.org", None], "also": [["ann"], None], "n": [1, 2]})
    (_, _, first), (_, _, second) = _described(table, lambda name: name == "n")
    assert json.loads(first) == {"email": "***", "also": "***", "n": 1}
    assert json.loads(second) == {"email": None, "also": None, "n": 2}


@pytest.mark.parametrize(
    ("redact", "layout", "hidden"),
    [
        (NOTHING, {}, False),
        (REDACT, {"closed": True}, False),
        (REDACT, {"format": "json"}, True),
        (Redaction.of(["N"]), {"closed": True}, True),
    ],
)
def test_text_that_may_have_a_redacted_column(redact, layout, hidden):
    """The text of a record is hidden as a whole if its source has a redacted column, or may have
    others than its schema."""
    assert redact.hides_text(["id", "n"], layout) == hidden


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
    assert [as_text(value) for value in ("7", 7, 1.5, True)] == ["7", "7", "1.5", "true"]


def test_conditions_find_pseudonyms():
    """= and <> look for the pseudonym as well, in any column, for a record that did not parse has
    pseudonyms in its whole key; a condition that asks more is refused, but not where another
    pipeline shows that column."""
    first, second, third, other = with_pseudonyms(
        parse("email = 'ann@x.org' AND n > 5 AND name IS NULL AND id = 'x'"), [NOTHING, REDACT]
    )
    assert first.pseudonym == REDACT.pseudonym("email", "ann@x.org")
    assert (second.pseudonym, third.pseudonym) == (None, None)
    assert other.pseudonym == REDACT.pseudonym("id", "x")
    like = parse("email LIKE 'a%'")
    with pytest.raises(InputError, match="'email', which is redacted: expected = or <>"):
        with_pseudonyms(like, [REDACT, REDACT])
    assert with_pseudonyms(like, [REDACT, NOTHING]) == like
    assert with_pseudonyms(like, [NOTHING]) == like


def people(redact, schema="id INT, name STRING COMMENT 'a, b', `E Mail` STRING"):
    pipeline = Pipeline("people", redact=redact)
    pipeline.source("people", FileSource("people.csv", schema=schema))
    pipeline.sink("out", ParquetSink("out"), reads="people")
    return pipeline


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
    exc = StageError(f"a row was refused: {quote('bad ann')}. Fix it")
    exc.add_note("To go on: x")
    masked = redacted(exc)
    assert (type(masked), str(masked)) == (StageError, "a row was refused: ***. Fix it")
    assert masked.__notes__ == ["To go on: x"]
    error = ValueError("bad ann")
    error.add_note("row ann")
    other = redacted(error, UnavailableError)
    assert not hasattr(other, "__notes__")
    whole = redacted(StageError(quote("bad ann")))
    assert str(whole).startswith("StageError. Its words may hold")
    assert type(other) is UnavailableError
    assert str(other).startswith("ValueError. Its words may hold what the pipeline redacts")


def test_a_text_with_quotes():
    """Quotes are shown as they are, or what stands for them; of a text that was cut the rest is
    one. Words that have marks, as those of an error that quotes, are one quote.
    """
    text = f"row {quote('ann')}: {quote('bad ann', 'DataError [22000]')}"
    assert shown(text) == str(StageError(text)) == "row ann: bad ann"
    assert shown(text, masks=True) == "row ***: DataError [22000]"
    cut = text[: text.index("bad") + 5]
    assert (shown(cut), shown(cut, masks=True)) == ("row ann: bad a", "row ***: ***")
    assert shown(quote(text), masks=True) == "***"
    assert shown(quote(text)) == "row ann: bad ann"
    assert shown(quote("a\x03b\x04c\x02d"), masks=True) == "***"
    assert shown(quote("")) == ""
    assert shown("\x02ann cut. \x02x\x03", masks=True) == "******"
    assert shown(quote("ann", "class " + quote("bob")), masks=True) == "class ***"


def test_an_error_that_others_raise_is_a_quote():
    """A stage's function may raise an error of the ledger with any words: they are left out, and
    named again they still are, also where a value in them looks like a mark. What the ledger raises
    when such code calls it is shown."""

    def caught(raising):
        with pytest.raises(LedgerError) as error:
            raising()
        return error.value

    def stage(name="ann@x.org"):
        raise StageError(f"unknown customer {name}")

    own = caught(stage)
    place = re.escape(__file__)
    left_out = rf"StageError \({place}:\d+, in stage\)\. Its words may hold .* are left out"
    assert re.fullmatch(left_out, str(redacted(own)))
    reworded = explained(own, "batch 7 failed", "Run it again")
    assert str(redacted(reworded)) == "batch 7 failed: ***. Run it again"
    for odd in (quote(""), quote("x") + "ann@x.org", "\x02", "\x03", "\x04ann"):
        assert re.fullmatch(left_out, str(redacted(caught(lambda odd=odd: stage(odd)))))
    ours = caught(lambda: Pipeline(""))
    assert str(redacted(ours)) == str(ours)


def test_what_fails_before_a_batch_is_open_quotes_no_value(tmp_path):
    """A look at what is new may meet a record: its error is reported as that of a step, without
    what it quotes, and without its cause."""
    url = f"sqlite:///{tmp_path}/shop.db"
    with sa.create_engine(url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE people (email TEXT NOT NULL)")
        connection.exec_driver_sql("INSERT INTO people VALUES (x'616E6E40782E6F7267')")
    table = SqlSource(url, table="people", cursor="email", schema="email STRING")
    now, interval = datetime(2013, 1, 1, tzinfo=UTC), Interval(datetime.min, datetime.max)
    scope = Scope(None, "people", "people", interval, now, list)

    def looked(redact):
        pipeline = Pipeline("people", redact=redact)
        pipeline.source("people", table)
        pipeline.sink("out", ParquetSink("out"), reads="people")
        with pytest.raises(InputError) as caught:
            _latest(pipeline, *pipeline.sources(), scope, Prospect(NextRange()))
        return caught.value

    assert "cursor 'email' has the value b'ann@x.org'" in str(looked(()))
    assert "cursor 'email' has the value ***" in str(looked("email"))
    assert looked("email").__suppress_context__


def test_what_a_table_s_cursor_holds_is_a_quote():
    """A cursor that is none is shown; SQLite has any value in any column."""
    source = SqlSource("sqlite://", table="people", cursor="email", schema="email STRING")
    people = SimpleNamespace(source=source)
    for wrong in (lambda: _checked(source, b"ann"), lambda: _as_stored(people, b"ann", None)):
        with pytest.raises(InputError, match="b'ann'") as caught:
            wrong()
        assert re.search(r"(found|value) \*\*\*:", str(redacted(caught.value)))


def test_text_that_is_no_utf_8_is_a_quote():
    """It may come from a record."""
    with pytest.raises(InputError, match="ann") as caught, translated(Database("postgresql://")):
        "ann\ud800".encode()
    assert str(redacted(caught.value)) == "expected text that is UTF-8, found ***"


def test_what_a_driver_says_is_a_quote():
    """A sink of one's own may raise a driver's error within a transaction of the ledger."""
    error = sa.exc.DataError("INSERT ann", {"email": "ann"}, ValueError("bad ann"))
    with (
        pytest.raises(LedgerError, match="bad ann") as caught,
        translated(Database("postgresql://")),
    ):
        raise error
    assert str(redacted(caught.value)) == "the ledger database refused a statement: ***"


def test_failures_are_hidden_before_they_are_reported(caplog):
    """What is kept of a failure, and logged of it, is masked; a note that others have added is
    left out.
    """
    failures, wrong = Failures(people("name")), StageError(f"bad {quote('ann')}")
    wrong.add_note("note")
    with failures.collect():
        raise wrong
    with pytest.raises(LedgerError, match=r"^StageError .*Its words may hold") as caught:
        failures.raise_first()
    assert not hasattr(caught.value, "__notes__")
    assert "ann" not in caplog.text


class _BadRowError(StageError):
    """An author's own, which is made of other arguments."""

    def __init__(self, row, why):
        super().__init__(f"{why}: {quote(row)}")


def test_an_authors_own_class_of_ours_is_masked_as_ours():
    """The class that it derives from is raised, without its text and without notes that others
    added, whatever its quotes are.
    """
    try:
        error = _BadRowError({"id": 7, "email": "ann@example.org"}, "bad")
        error.add_note("row ann@example.org")
        raise error
    except StageError as exc:
        hidden = redacted(exc)
        again = explained(exc, "batch 7 failed", "Run it again")
    assert type(hidden) is type(again) is StageError
    assert "ann" not in f"{hidden}{getattr(hidden, '__notes__', '')}"
    assert "ann" not in str(redacted(again))
