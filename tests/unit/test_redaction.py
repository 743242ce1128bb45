"""What stands for redacted values, and where a redacted column may be named."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql.types import StringType, StructType

from ledger import FileSource, ParquetSink, Pipeline, TableSource
from ledger.batch.claims import Prospect, _latest
from ledger.batch.records.record_rows import Row, _described
from ledger.batch.records.snapshots import MOST_CHARACTERS
from ledger.batch.records.trace import _Tree
from ledger.core.conditions import parse, with_pseudonyms
from ledger.core.redaction import (
    NOTHING,
    Redaction,
    as_text,
    found_pattern,
    json_without,
    texts,
    without,
)
from ledger.core.run_request import Interval
from ledger.databases.driver_errors import translated
from ledger.errors import (
    DeclarationError,
    Failures,
    InputError,
    LedgerError,
    StageError,
    UnavailableError,
    redacted,
)
from ledger.sources.base import Scope
from ledger.sources.table.queries import _as_stored, _checked
from ledger.spark.failures import explained
from ledger.spark.frames import redacted as masking
from ledger.spark.steps.records import _Telling
from ledger.store.connection import Database
from ledger.store.queries.claims import NextRange

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
        ('{"name": "Zo\\u00eb \\"Z\\""}', ['Zoë "Z"'], '{"name": "***"}'),
        ('{"name": "Zoë \\"Z\\"\\n"}', ['Zoë "Z"\n'], '{"name": "***\\n"}'),
        (repr('O\'Brien\t"Z"'), ['O\'Brien\t"Z"'], "'***'"),
        ("bad ann.l... (cut)", ["x", "Ann.Lee@x.org"], "bad ***... (cut)"),
        ("bad ann.l", ["ann.lee@x.org"], "bad ann.l"),
        ("bad x of b... (cut)", ["ann"], "bad x of b... (cut)"),
    ],
)
def test_values_are_masked_in_a_text(text, values, shown):
    """The longest first, in any case, literally, and short ones as whole words alone; at the end of
    a text that was cut also the beginning of one."""
    assert without(text, values) == shown


def test_texts_of_a_value_with_parts():
    """Each part of a list or a map counts by itself, and null has none; bytes are shown by Python,
    or as the text that they are."""
    assert list(texts(b"ann")) == ["b'ann'", "ann"]
    assert list(texts([{"a": "x", "b": [1, None]}, "y", None])) == ["x", "1", "y"]


def test_values_are_masked_within_json():
    """A value with a quote, a backslash, a line's end and letters beyond ASCII is found in content,
    at any depth; numbers are masked as texts, names of columns stay."""
    odd = 'Zoë "Z" \\\n Lee'
    content = json.dumps({"also": odd, "all": [{"in": f"<{odd}>"}], "n": 1234, "zoë": None})
    assert json.loads(json_without(content, [odd, "1234"])) == {
        "also": "***", "all": [{"in": "<***>"}], "n": "***", "zoë": None
    }  # fmt: skip


def test_a_drop_is_cut_after_it_is_masked():
    """A value that the end of a long reason would cut is still whole when it is looked for."""
    words = _Telling(REDACT, StructType()).of({"email": "ann@example.org"})
    assert words.reason("x" * 495 + " ann@example.org") == "x" * 495 + " ***"


def test_a_trace_masks_reasons_of_older_batches():
    """What was written before its pipeline redacted is masked when it is shown: what was found in
    a record that did not parse, and why a row was dropped."""
    tree = _Tree(SimpleNamespace(exactly_once=False), [], None, REDACT)
    told = tree._hidden("malformed csv: age: expected int, found ann", ["age", "email"])
    assert told == "malformed csv: age: expected int, found ***"
    tree._values = frozenset({"ann@x.org"})
    row = Row(0, (), None, "dropped ann@x.org", None, False)
    assert tree._branch(SimpleNamespace(name="checked"), row).reason == "dropped ***"


@pytest.mark.parametrize("before", range(MOST_CHARACTERS - 30, MOST_CHARACTERS + 1, 3))
def test_what_a_trace_shows_is_cut_after_it_is_masked(before):
    """A value at the place where long content is cut is masked while it is whole: in a column of
    that name, and in one that a stage calls otherwise."""
    value = "ann.lee@example.org"
    table = pa.table({"also": ["x" * before + value], "email": [value]})
    ((_, _, content, _),) = _described(table, REDACT, [value])
    masked = json.dumps({"also": "x" * before + "***", "email": "***"})
    assert content == f"{masked[:MOST_CHARACTERS]} (cut: it has {len(masked):,} characters)"


def test_an_exception_is_hidden_whatever_the_columns_are_called():
    """An earlier stage may have renamed a redacted column: of exceptions only the class is kept."""
    error, record = ValueError("cannot send to ann@x.org"), {"contact": "ann@x.org"}
    hidden = _Telling(REDACT, StructType()).of(record)
    assert hidden.error(error) == "ValueError: ***"
    shown = _Telling(NOTHING, StructType()).of(record)
    assert shown.error(error) == "ValueError: cannot send to ann@x.org"


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
    given = ValueError("bad ann")
    given.add_note("row ann")
    other = redacted(given, UnavailableError)
    assert not hasattr(other, "__notes__")
    whole = redacted(StageError("bad ann", quotes=["", "bad ann"]))
    assert str(whole).startswith("StageError. Its words may hold")
    assert type(other) is UnavailableError
    assert str(other).startswith("ValueError. Its words may hold what the pipeline redacts")


def test_an_error_that_lacks_its_quotes_is_hidden():
    """Where the text does not have what it is said to quote, as when it was cut or worded anew, no
    word of it is told."""
    cut = StageError("a row was refused: bad an", quotes=["bad ann@x.org"])
    assert str(redacted(cut)).startswith("StageError. Its words may hold")
    both = StageError("bad ann of ann", quotes=["bad ann", "ann"])
    assert str(redacted(both)) == "*** of ***"


def test_an_error_that_others_raise_is_a_quote():
    """A stage's function may raise an error of the ledger with any words: without quotes they are
    left out, and named anew they still are. What the ledger raises when such code calls it is
    told, and so is what an author says beside the quotes."""

    def caught(raising):
        with pytest.raises(LedgerError) as error:
            raising()
        return error.value

    def stage(**quotes):
        raise StageError("unknown customer ann@x.org", **quotes)

    own = caught(stage)
    assert str(redacted(own)).startswith("StageError. Its words may hold")
    anew = explained(own, "batch 7 failed", "Run it again")
    assert str(redacted(anew)) == "batch 7 failed: ***. Run it again"
    quoting = caught(lambda: stage(quotes=["ann@x.org"]))
    assert str(redacted(quoting)) == "unknown customer ***"
    ours = caught(lambda: Pipeline(""))
    assert str(redacted(ours)) == str(ours)


def test_what_fails_before_a_batch_is_open_quotes_no_value(tmp_path):
    """A look at what is new may meet a record: its error is told as that of a step, without what
    it quotes, and without its cause."""
    url = f"sqlite:///{tmp_path}/shop.db"
    with sa.create_engine(url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE people (email TEXT NOT NULL)")
        connection.exec_driver_sql("INSERT INTO people VALUES (x'616E6E40782E6F7267')")
    table = TableSource(url, table="people", cursor="email", schema="email STRING")
    now, interval = datetime(2013, 1, 1, tzinfo=UTC), Interval(datetime.min, datetime.max)
    scope = Scope(None, "people", "people", interval, now, list)

    def looked(redact):
        made = Pipeline("people", redact=redact)
        made.source("people", table)
        made.sink("out", ParquetSink("out"), reads="people")
        with pytest.raises(InputError) as caught:
            _latest(made, *made.sources(), scope, Prospect(NextRange()))
        return caught.value

    assert "cursor 'email' has the value b'ann@x.org'" in str(looked(()))
    assert "cursor 'email' has the value ***" in str(looked("email"))
    assert looked("email").__suppress_context__


def test_what_a_table_s_cursor_holds_is_a_quote():
    """A cursor that is none is shown; SQLite has any value in any column."""
    source = TableSource("sqlite://", table="people", cursor="email", schema="email STRING")
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


def test_failures_are_hidden_before_they_are_told(caplog):
    """What is kept of a failure, and logged of it, is what it was made into."""
    failures, wrong = Failures(str, redacted), StageError("bad ann", quotes=["ann"])
    wrong.add_note("note")
    with failures.collect():
        raise wrong
    with pytest.raises(LedgerError, match=r"^bad \*\*\*") as caught:
        failures.raise_first()
    assert caught.value.__notes__ == ["note"]
    assert "ann" not in caplog.text


def test_functions_that_mask_make_pyspark_warn_of_nothing(recwarn):
    """PySpark asks the type hints of a function whether it is Arrow's, and warns if they do not
    tell: each run of a pipeline that redacts would print that.
    """
    for function in (masking._without, Redaction.of("email").may_be_in):
        masking._udf(function, StringType())
    assert [str(one.message) for one in recwarn] == []
    source = Path(masking.__file__).read_text()
    assert source.count("F.udf(") == 1  # that of _udf
