"""Redacted columns: their values are nowhere but in the files that the steps read and write."""

import json
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from ledger import (
    DeltaSink,
    FailedRecord,
    FileSource,
    ParquetSink,
    Pipeline,
    PostgresSink,
    dropped,
    failed,
)
from ledger.batch.pages import batches
from ledger.batch.records.explain import explained
from ledger.batch.records.trace import trace
from ledger.cli.base import app
from ledger.errors import DeclarationError, InputError, LedgerError
from ledger.settings import Settings
from ledger.store.connection import PAYLOAD_READER, Database
from tests.support.everything import holding

MARK = "zq7marker"
ODD = f'{MARK} Zoë "\\'  # what JSON, CSV and regular expressions have to escape
SCHEMA = "id STRING, name STRING, email STRING, age INT"
HEADER = "id,name,email,age\n"
# What is to become of each record stands in its id.
IDS = ("good", "quoted", "raised", "part", "misfit", "flagged", "sunk", "lost", "renamed")
MALFORMED = (
    f"shifted,{MARK} A,x,{MARK}@shifted",  # a value stands in another's column
    f"short,{MARK}",
    f"{MARK}@first,x,y",  # without its id: the address stands in another column of the key
    f'open,"{MARK},x,1',
)


def line(name):
    odd = ODD.replace('"', '""')
    return f'{name},"{odd} {name}",{MARK}.{name}@example.org,7'


def people(warehouse_url, **options):
    """People of whom each fails in another way, in words that quote their name and address."""
    pipeline = Pipeline("people", redact=["name", "email"], **{"max_replays": 5, **options})
    pipeline.source("people", FileSource("people/*.csv", schema=SCHEMA), key=["email", "id"])
    pipeline.reference("members", FileSource("members.csv", schema="id STRING"))

    class UnknownCustomer(FailedRecord):
        pass

    @pipeline.record_stage(reads="people", schema=f"{SCHEMA}, size INT")
    def checked(person):
        if person["id"] == "quoted":
            raise UnknownCustomer(f"no customer {person['name'].upper()} with <{person['email']}>")
        if person["id"] == "raised":
            raise ValueError(f"cannot send to {person['email']}")
        if person["id"] == "part":
            int(person["name"].split()[0])
        if person["id"] == "dropped":
            yield dropped(f"dropped {person['name']}")
            return
        yield {**person, "size": person["name"] if person["id"] == "misfit" else 1}

    @pipeline.stage(reads="checked")
    def flagged(people):
        from pyspark.sql import functions as F

        why = F.concat(F.lit("bad: "), "name", F.lit(" / "), "email")
        reason = F.when(F.col("id") == "flagged", why)
        return people.withColumn("_failed", reason).withColumn("also", F.col("name"))

    @pipeline.stage(reads="flagged")
    def matched(people, *, members):
        return people.join(members, "id", "inner"), failed(
            people.where("id = 'renamed'"), f"{MARK} is no longer there"
        )

    pipeline.sink("table", PostgresSink(warehouse_url, "people"), reads="matched")
    pipeline.sink("folder", ParquetSink("out"), reads="matched")
    pipeline.sink("lake", DeltaSink("lake"), reads="matched")
    return pipeline


REFUSING = (
    "CREATE FUNCTION sendable(id text, email text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
    "IF id = 'sunk' THEN RAISE EXCEPTION 'cannot send to %%', email USING ERRCODE = '22000';"
    " END IF; RETURN true; END $$",
    "CREATE TABLE people (id text, name text, email text, age int, size int, also text,"
    " ackledger_batch bigint, CHECK (sendable(id, email)))",
)


def write(tmp_path, lines):
    (tmp_path / "people").mkdir(exist_ok=True)
    (tmp_path / "people" / "a.csv").write_text(HEADER + "\n".join(lines) + "\n")
    names = [name for name in (*IDS, "dropped") if name not in ("lost", "renamed")]
    (tmp_path / "members.csv").write_text("\n".join(["id", *names]) + "\n")


def commanded(*arguments):
    """A command in this process; what it printed."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture
def settled(runner, warehouse, warehouse_url, tmp_path, environment):
    """A batch of which each record but one has failed in its own way; and its runner."""
    warehouse.do(*REFUSING)
    write(tmp_path, [*map(line, IDS), line("dropped"), *MALFORMED])
    run = runner(people(warehouse_url))
    batch = run.open()
    run.settled(batch)
    return run, batch


def on_pages(number):
    """What the pages of a batch and of its failed records get, as JSON."""
    database = Database.from_settings(Settings(), role=PAYLOAD_READER)
    failures = batches.failed(database, number, {})
    shown = [batches.batch(database, number), failures]
    for row in failures.records:
        shown.append(explained(database, row.message_id))
        shown.append(trace(database, row.message_id))
    database.dispose()
    return [json.dumps(asdict(page), default=str, ensure_ascii=False) for page in shown]


def ids(ledger):
    """The reason of each failed record, by the id in its key."""
    query = (
        "SELECT f.key ->> 'id' AS id, r.reason, f.content FROM failed_payload f"
        " JOIN failed_message m USING (message_id) JOIN failed_root r ON r.root_id = m.root_id"
    )
    return {row.id: row for row in ledger.rows(query)}


def everything_printed(ledger, batch, export):
    """What every command and page shows of a batch and its failed records, as text and as JSON."""
    commanded("failed", "--output", export)
    printed = [export.read_text(), commanded("failed"), commanded("failed", "--json")]
    for arguments in (["failed", "--records"], ["status", "--batch", batch.batch_id]):
        printed += [commanded(*arguments), commanded(*arguments, "--json")]
    for row in ledger.rows("SELECT message_id FROM failed_message"):
        for command in ("explain", "trace"):
            printed.append(commanded(command, row.message_id))
            printed.append(commanded(command, row.message_id, "--json"))
    return [*printed, *on_pages(batch.batch_id)]


def test_no_value_of_a_redacted_column_is_shown(
    settled, runner, ledger, warehouse_url, caplog, capfd, tmp_path
):
    """Of records that did not parse, were failed in words that quote them, raised, did not fit,
    were lost or refused by a table, no redacted value is in any table or view, in what the commands
    print or export, on the pages, or in the log; nor is it once they have been replayed, and been
    quarantined or accepted by a person."""
    _, batch = settled
    assert ledger.row("SELECT count(*) FROM failed_message")[0] == len(IDS) - 1 + len(MALFORMED)
    assert holding(ledger.database, MARK) == {}
    failures = ids(ledger)
    assert failures["quoted"].reason == "UnknownCustomer: ***"
    assert failures["raised"].reason == "ValueError: ***"
    assert failures["part"].reason == "ValueError: ***"
    assert failures["misfit"].reason == "yielded size: expected int, found ***"
    assert failures["flagged"].reason == failures["renamed"].reason == "***"
    assert failures["sunk"].reason == "DataException [22000]"
    assert json.loads(failures["lost"].content) == {
        "id": "lost", "name": "***", "email": "***", "age": 7
    }  # fmt: skip
    assert ledger.rows("SELECT reason FROM step_drops") == [("***",)]
    shifted = ledger.row("SELECT * FROM failed_root WHERE reason LIKE '%age%'")
    assert shifted.reason == "malformed csv: age: expected int, found ***"
    assert shifted.detail is None
    contents = ledger.rows("SELECT content FROM failed_payload WHERE NOT parsed")
    assert contents == [("***",)] * len(MALFORMED)
    printed = everything_printed(ledger, batch, tmp_path / "before.csv")

    number = ledger.row("SELECT min(message_id) FROM failed_message").min
    printed.append(commanded("quarantine", number, "--reason", "known"))
    last = runner(people(warehouse_url, max_replays=1))
    last.settled(last.open_replay(batch.batch_id))
    printed.append(commanded("accept", batch.batch_id, "--reason", "known"))
    assert holding(ledger.database, MARK) == {}
    printed += everything_printed(ledger, batch, tmp_path / "after.csv")
    printed += [caplog.text, *capfd.readouterr()]
    assert [text for text in printed if MARK in text.lower()] == []


def test_what_is_asked_of_redacted_records(settled, ledger):
    """What a command prints with ``***`` in it names the columns that its pipeline redacts.

    Of rows of stages those columns are shown that the record had when it was read, and that are
    not redacted: any other may be a redacted one under another name.

    Of a redacted key the ledger has a pseudonym, by which commands find the record; a condition
    that asks more of it is refused, and the reader has not the secret.
    """
    check_legend(ledger)
    check_trace(ledger)
    check_key()


def check_legend(ledger):
    number = ledger.row(
        "SELECT message_id FROM failed_payload WHERE key ->> 'id' = 'quoted'"
    ).message_id
    legend = "*** stands for masked values: pipeline 'people' redacts email, name"
    for shown in (
        ["failed"],
        ["failed", "--records"],
        ["explain", number],
    ):
        assert commanded(*shown).count(legend) == 1
    assert "***" not in commanded("failed", "--reason", "lost")


def check_trace(ledger):
    number = ledger.row(
        "SELECT message_id FROM failed_payload WHERE key ->> 'id' = 'lost'"
    ).message_id
    (row,) = trace(ledger.database, number).tree.branches[0].branches
    assert json.loads(row.content) == {
        "id": "lost", "name": "***", "email": "***", "age": 7, "size": "***", "also": "***"
    }  # fmt: skip


def check_key():
    condition = f"email = '{MARK}.lost@example.org'"
    (record,) = json.loads(commanded("explain", condition, "--json"))
    assert record["key"]["id"] == "lost"
    assert record["key"]["email"].startswith("***")
    assert len(record["key"]["email"]) == 19

    def listed(where):
        data = json.loads(commanded("failed", "--records", "--json", "--where", where))
        return [row["record"] for row in data["records"]]

    assert listed(f"{condition} AND age = 7") == [record["record"]]
    assert len(listed(f"id = '{MARK}@first'")) == 1
    others = listed(condition.replace("=", "<>"))
    assert others
    assert record["record"] not in others
    for wrong in ("email LIKE 'zq%'", "name > 'a'"):
        done = CliRunner().invoke(app, ["failed", "--where", wrong])
        assert isinstance(done.exception, InputError)
        assert "which is redacted: expected = or <>" in str(done.exception)


def test_redacted_records_are_replayed(settled, database, warehouse, tmp_path, sink_rows):
    """Replays read the records as they were, and those from the source find them by their
    redacted key: what is published has its values."""
    run, batch = settled
    write(tmp_path, [*map(line, IDS), *MALFORMED])
    with (tmp_path / "members.csv").open("a") as stream:
        stream.write("lost\n")
    replay = run.open_replay(batch.batch_id, step="matched")
    run.settled(replay)
    published = {row[0]: row for row in sink_rows("out", "id", "name", "email")}
    assert published["lost"] == ("lost", f"{ODD} lost", f"{MARK}.lost@example.org")

    fixed = f"shifted,{MARK} A,x,9"
    write(tmp_path, [*map(line, IDS), fixed, *MALFORMED[1:]])
    with (tmp_path / "members.csv").open("a") as stream:
        stream.write("shifted\n")
    again = run.open_replay(batch.batch_id, "again", step="people", from_source=True)
    run.settled(again)
    published = {row[0]: row for row in sink_rows("out", "id", "name", "email")}
    assert published["shifted"] == ("shifted", f"{MARK} A", "x")
    assert holding(database, MARK) == {}


def test_a_column_that_a_schema_lacks_is_masked(runner, ledger, tmp_path, caplog):
    """A file that is read by name, or of JSON, has a redacted column beside those of its schema: of
    what does not parse neither text nor what was found is kept or shown."""
    (tmp_path / "a.csv").write_text(f"id,email,n\n1,{MARK}@x.org,{MARK}\n2,{MARK}@y.org,2,3\n")
    (tmp_path / "b.json").write_text(json.dumps({"id": "3", "email": MARK, "n": MARK}) + "\n")
    (tmp_path / "c.csv").write_text("id,email\n4,\n")
    pipeline = Pipeline("people", redact=["email"], max_replays=5)
    part = "id STRING, n INT"
    for name, source in {
        "named": FileSource("a.csv", schema=part, header="by_name"),
        "json": FileSource("b.json", schema=part, format="json"),
        "whole": FileSource("c.csv", schema="id STRING, email STRING"),
    }.items():
        pipeline.source(name, source, key="id")
        pipeline.sink(f"{name}_out", ParquetSink(name), reads=name)
    run = runner(pipeline)
    batch = run.open()
    run.settled(batch)
    failed_rows = ledger.rows("SELECT message_id, reason FROM failed_root ORDER BY reason")
    assert [row.reason for row in failed_rows] == [
        "malformed csv: expected 3 fields, found 4",
        "malformed csv: n: expected int, found ***",
        "malformed json: n: expected int, found ***",
    ]
    assert holding(ledger.database, MARK) == {}
    for row in failed_rows:
        tree = trace(ledger.database, row.message_id).tree
        assert (tree.content, MARK in tree.reason) == ("***", False)
    replay = run.open_replay(batch.batch_id)  # it parses them again, and fails them again
    run.settled(replay)
    assert holding(ledger.database, MARK) == {}
    assert MARK not in caplog.text


def test_a_source_without_redacted_columns_keeps_its_text(runner, ledger, tmp_path):
    """What did not parse is kept as it stands of a source that has no redacted column, in a
    pipeline of which another source has one."""
    write(tmp_path, [MALFORMED[0]])
    (tmp_path / "items.csv").write_text("item,price\nchair,cheap\n")
    pipeline = Pipeline("shop", redact=["name", "email"])
    pipeline.source("people", FileSource("people/*.csv", schema=SCHEMA))
    pipeline.source("items", FileSource("items.csv", schema="item STRING, price INT"))
    pipeline.sink("persons", ParquetSink("persons"), reads="people")
    pipeline.sink("prices", ParquetSink("prices"), reads="items")
    run = runner(pipeline)
    run.settled(run.open())
    failures = ledger.rows("SELECT step, reason, detail FROM failed_root ORDER BY step")
    assert failures == [
        ("items", "malformed csv: price: expected int, found cheap", "chair,cheap"),
        ("people", "malformed csv: age: expected int, found ***", None),
    ]


CONTACTS = (
    "CREATE FUNCTION contactable(id text, contact text) RETURNS boolean LANGUAGE plpgsql AS $$"
    " BEGIN IF id LIKE 'raised%%' THEN RAISE EXCEPTION 'no mail to %%', contact USING ERRCODE ="
    " '22000', COLUMN = contact, CONSTRAINT = contact, DETAIL = contact, HINT = contact; END IF;"
    " RETURN true; END $$",
    "CREATE TABLE people (id text, contact text UNIQUE, code varchar(9), need text NOT NULL,"
    " day text CONSTRAINT days CHECK (day <> 'never'), ackledger_batch bigint,"
    " CHECK (contactable(id, contact)))",
)
# Of each record what its table says of it where the pipeline redacts; its address quotes it, and
# the code of some looks like the place where COPY names a column.
REFUSALS = {
    "raised": "DataException [22000]",
    "long": "StringDataRightTruncation [22001]: column code",
    "null": "NotNullViolation [23502]: column need",
    "checked": "CheckViolation [23514]: constraint days",
    "twice": 'duplicate key value violates unique constraint "people_contact_key"',
}


def test_a_refusal_quotes_no_value(runner, ledger, warehouse, warehouse_url, tmp_path):
    """Of what a table says only the class is kept, with the constraint and the column, where these
    have such a name: also where a stage has renamed the redacted column."""
    warehouse.do(*CONTACTS)
    record = {"email": f"{MARK}\nCOPY x, column {MARK}: ", "need": "x", "day": "now", "code": "c"}
    changes = {
        "raised": {},
        "long": {"code": f"long {MARK}"},
        "null": {"need": None},
        "checked": {"day": "never"},
        "good": {"email": f"{MARK} 2"},
        "twice": {"email": f"{MARK} 2"},
    }
    lines = [json.dumps({"id": name} | record | new) for name, new in changes.items()]
    (tmp_path / "mails.json").write_text("\n".join(lines) + "\n")
    pipeline = Pipeline("people", redact=["email", "code"], max_replays=5)
    schema = "id STRING, email STRING, code STRING, need STRING, day STRING"
    pipeline.source("mails", FileSource("mails.json", schema=schema, format="json"), key="id")

    @pipeline.stage(reads="mails")
    def renamed(mails):
        return mails.withColumnRenamed("email", "contact").coalesce(1)

    pipeline.sink("table", PostgresSink(warehouse_url, "people"), reads="renamed")
    run = runner(pipeline)
    run.settled(run.open())
    assert {name: row.reason for name, row in ids(ledger).items()} == REFUSALS
    assert holding(ledger.database, MARK) == {}


def test_an_error_of_a_step_quotes_no_redacted_value(runner, database, tmp_path, caplog, capfd):
    """A stage that fails as a whole, in Python or in Spark, is reported without its words: in the
    run's record, in what is raised, and in the log; with its class and place."""
    write(tmp_path, [line("good")])

    def broken(how):
        pipeline = Pipeline("people", redact="email")
        pipeline.source("people", FileSource("people/*.csv", schema=SCHEMA))

        @pipeline.stage(reads="people")
        def stage(people):
            return how(people)

        pipeline.sink("out", ParquetSink("out"), reads="stage")
        return pipeline

    def by_python(people):
        raise ValueError(f"cannot send to {people.first()['email']}")

    def by_worker(people):
        from pyspark.sql import functions as F

        @F.udf("string")
        def send(email):
            raise ValueError(f"cannot send to {email}")

        return people.withColumn("sent", send("email"))

    def by_cast(people):
        return people.withColumn("number", people.email.cast("int"))

    batch = runner(broken(by_python)).open()
    runner(broken(by_python)).step(batch, "people")
    for how in (by_python, by_worker, by_cast):
        with pytest.raises(LedgerError) as caught:
            runner(broken(how)).step(batch, "stage")
        assert MARK not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
        assert "Its words may hold what the pipeline redacts" in str(caught.value)
        assert any("To go on:" in note for note in caught.value.__notes__)
    assert "[CAST_INVALID_INPUT]" in str(caught.value)
    assert holding(database, MARK) == {}
    assert MARK not in caplog.text


def test_an_error_of_a_source_or_a_reference_quotes_no_value(runner, database, tmp_path, caplog):
    """A file that begins with a record instead of a header, and a side input that does not parse,
    fail their steps without what was found there."""
    write(tmp_path, [line("good")])
    (tmp_path / "members.csv").write_text(f"n\n{MARK}\n")
    pipeline = Pipeline("people", redact="email")
    pipeline.source("people", FileSource("people/*.csv", schema=SCHEMA))
    pipeline.reference("members", FileSource("members.csv", schema="n INT"))

    @pipeline.stage(reads="people")
    def stage(people, *, members):
        return people.join(members, people.age == members.n, "left_semi")

    pipeline.sink("out", ParquetSink("out"), reads="stage")
    run = runner(pipeline)
    batch = run.open()
    run.step(batch, "people")
    with pytest.raises(LedgerError) as of_reference:
        run.step(batch, "stage")
    (tmp_path / "people" / "a.csv").write_text(line("good") + "\n")
    with pytest.raises(InputError) as of_source:
        run.step(run.open(), "people")
    assert "Its words may hold what the pipeline redacts" in str(of_reference.value)
    assert "age; ***. Fix the file" in str(of_source.value)
    assert not any(MARK in str(caught.value) for caught in (of_reference, of_source))
    assert holding(database, MARK) == {}
    assert MARK not in caplog.text


def test_an_unknown_column_is_refused(runner, tmp_path):
    """A column of no source is refused when the pipeline is checked, with what may be meant; where
    only Spark can read a schema, when its first source runs."""
    pipeline = Pipeline("people", redact=["mail"])
    pipeline.source("people", FileSource("people/*.csv", schema=SCHEMA))
    pipeline.sink("out", ParquetSink("out"), reads="people")
    with pytest.raises(DeclarationError, match=r"'mail', a column of none .* did you mean 'email'"):
        pipeline.steps()
