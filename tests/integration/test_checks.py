"""What is looked at before a batch is opened."""

import errno
import json
from types import SimpleNamespace

import pyarrow as pa
import pytest
from airflow.sdk import BaseOperator
from deltalake import write_deltalake
from sqlalchemy import create_engine, text
from typer.testing import CliRunner

from ledger import (
    DeltaSink,
    FailedRecord,
    FileSource,
    ParquetSink,
    Pipeline,
    PostgresSink,
    SqlSource,
    Upsert,
)
from ledger.airflow import pipeline_dag
from ledger.airflow.pipelines import open_for_run
from ledger.airflow.tasks import PermanentFailure
from ledger.batch.opening import open_batch, open_replay
from ledger.batch.upkeep import checks
from ledger.batch.upkeep.checks import before_replay, before_run, examine, require
from ledger.cli import runs
from ledger.cli.base import app
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.core.states import BatchStatus
from ledger.errors import (
    ConfigurationError,
    DeclarationError,
    InputError,
    StageError,
    UnavailableError,
)
from ledger.pipeline import load as loading
from ledger.sources import listing
from ledger.sources.parsing.typed import struct
from ledger.storage import folders as storage
from ledger.store import embedded
from ledger.types.ddl import check_types
from tests.support.ledgers import pipeline
from tests.support.runner import END, START

INTERVAL = Interval(START, END)


@pytest.fixture
def target(server_home):
    """The URL of another database, empty, for sources and sinks."""
    url = embedded.ensure_database(embedded.start(server_home), "checked")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    yield engine
    engine.dispose()


def url_of(engine):
    """The engine's URL in libpq's words."""
    return engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


def shop(url):
    """A pipeline with every kind of thing that can be missing; what it writes is declared."""
    flow = Pipeline("shop")
    flow.source(
        "orders", FileSource("in/{{ interval_start | ds }}/{{ params.shop }}.csv", schema="id INT")
    )
    flow.source(
        "sold", SqlSource("env:SHOP_URL", "sold", cursor="n", schema="n BIGINT, who STRING")
    )
    flow.reference("shops", FileSource("shops.csv", schema="shop STRING"))

    @flow.record_stage(reads="sold", schema="n BIGINT, price DECIMAL(10,2)")
    def priced(record):
        if record["who"] is None:
            raise FailedRecord("no customer")
        yield {"n": record["n"], "price": None}

    @flow.stage(reads="orders")
    def listed(orders, *, shops):
        return orders.join(shops, "shop", "inner")

    flow.sink("prices", PostgresSink("env:SHOP_URL", "prices"), reads="priced")
    flow.sink("orders_out", ParquetSink("out/orders"), reads="listed")
    return flow


def wrong(findings):
    """What is wrong, by subject."""
    return {finding.subject: finding.message for finding in findings if not finding.ok}


def test_each_thing_that_is_missing_is_named(settings, migrated, monkeypatch, tmp_path):
    """Variables, files, parameters and closed folders are each one finding that says what to do."""
    monkeypatch.delenv("SHOP_URL", raising=False)
    (tmp_path / "out").write_text("")
    findings = examine(settings, shop("env:SHOP_URL"), INTERVAL)
    errors = wrong(findings)
    assert set(errors) == {
        "source orders",
        "source sold",
        "reference shops",
        "sink prices",
        "sink orders_out",
    }
    assert "has no attribute 'shop'" in errors["source orders"]
    assert "environment variable SHOP_URL is not set" in errors["source sold"]
    assert f"no file matches {tmp_path}/shops.csv" in errors["reference shops"]
    assert "environment variable SHOP_URL is not set" in errors["sink prices"]
    assert f"{tmp_path}/out is no folder" in errors["sink orders_out"]
    assert {finding.subject for finding in findings if finding.ok} == {
        "database",
        "java",
        "storage",
    }
    with pytest.raises(ConfigurationError) as raised:
        require([finding for finding in findings if finding.subject.startswith("source")][::-1])
    sold, orders = (errors[f"source {name}"].rstrip(".") for name in ("sold", "orders"))
    assert str(raised.value) == f"2 things are wrong: (1) {sold}; (2) {orders}"


def test_sinks_are_looked_at_in_the_output_folder(settings, migrated, tmp_path):
    """With an output folder that is closed the data folder does not matter to a sink."""
    (tmp_path / "made").write_text("")
    flow = Pipeline("letters")
    flow.source("letters", FileSource("in.csv", schema="letter STRING"))
    flow.sink("shelf", ParquetSink("out"), reads="letters")
    elsewhere = settings.model_copy(update={"output": str(tmp_path / "made")})
    error = wrong(examine(elsewhere, flow, None))["sink shelf"]
    assert f"{tmp_path}/made/out cannot be written to" in error
    assert "ACKLEDGER_OUTPUT" in error


def test_tables_are_looked_at(settings, migrated, monkeypatch, target, tmp_path):
    """A source table lacks a column, a sink's table has one of another type: known before the
    run.
    """
    monkeypatch.setenv("SHOP_URL", url_of(target))
    (tmp_path / "shops.csv").write_text("shop\nS1\n")
    (tmp_path / "in" / "2013-01-01").mkdir(parents=True)
    (tmp_path / "in" / "2013-01-01" / "a.csv").write_text("id\n1\n")
    interval = Interval(START, END, {"shop": "a"})
    errors = wrong(examine(settings, shop(""), interval))
    assert set(errors) == {"source sold"}
    assert "there is no table 'sold'" in errors["source sold"]
    with target.begin() as connection:
        connection.execute(text("CREATE TABLE sold (n bigint)"))
        connection.execute(text("CREATE TABLE prices (n bigint, price text, _batch bigint)"))
    errors = wrong(examine(settings, shop(""), interval))
    assert "table 'sold' has no column 'who'" in errors["source sold"]
    assert "column 'price': expected numeric(10, 2), found text" in errors["sink prices"]
    with target.begin() as connection:
        connection.execute(text("ALTER TABLE sold ADD COLUMN who text"))
        connection.execute(text("DROP TABLE prices"))
    assert wrong(examine(settings, shop(""), interval)) == {}
    assert not (tmp_path / "out").exists()


def test_a_table_that_no_rows_fit(settings, migrated, target, monkeypatch, tmp_path):
    """Where the rows are not declared, what the sink itself needs of its table is still looked
    at.
    """
    monkeypatch.setenv("SHOP_URL", url_of(target))
    flow = Pipeline("upserts")
    flow.source("lines", FileSource("lines.csv", schema="id INT"))

    @flow.stage(reads="lines")
    def same(lines):
        return lines

    flow.sink("kept", PostgresSink("env:SHOP_URL", "kept", mode=Upsert("id")), reads="same")
    (tmp_path / "lines.csv").write_text("id\n1\n")
    with target.begin() as connection:
        connection.execute(text("CREATE TABLE kept (id int)"))
    finding = next(it for it in examine(settings, flow, None) if it.subject == "sink kept")
    assert isinstance(finding.error, StageError)
    assert "CREATE UNIQUE INDEX ON" in finding.message


def test_a_delta_table_that_the_rows_do_not_fit(settings, migrated, tmp_path):
    """A table with a column of another type is named with both types before the run, and nothing
    is put into its folder.
    """
    place = tmp_path / "table"
    write_deltalake(place, pa.table({"id": ["a"], "who": ["b"]}))
    before = sorted(place.rglob("*"))
    flow = Pipeline("numbers")
    flow.source("lines", FileSource("lines.csv", schema="id INT, who STRING"))
    flow.sink("kept", DeltaSink("table"), reads="lines")
    (tmp_path / "lines.csv").write_text("id,who\n1,b\n")
    (finding,) = [finding for finding in examine(settings, flow, None) if not finding.ok]
    assert finding.subject == "sink kept"
    assert isinstance(finding.error, StageError)
    assert (
        "path 'table' does not take the rows: column 'id': expected string, found integer: "
        in finding.message
    )
    assert sorted(place.rglob("*")) == before
    assert not (place / "_ackledger").exists()


def test_a_target_that_is_away(settings, migrated, tmp_path):
    """A PostgreSQL sink whose server does not answer is said before the run, as what may pass."""
    flow = Pipeline("numbers")
    flow.source("lines", FileSource("lines.csv", schema="id INT"))
    flow.sink("kept", PostgresSink("postgresql://me@127.0.0.1:9/x", "kept"), reads="lines")
    (tmp_path / "lines.csv").write_text("id\n1\n")
    (finding,) = [finding for finding in examine(settings, flow, None) if not finding.ok]
    assert finding.subject == "sink kept"
    assert type(finding.error) is UnavailableError
    assert "me@127.0.0.1:9/x did not answer" in finding.message


def test_an_open_batch_is_not_looked_at_again(settings, ledger, tmp_path):
    """A run whose batch has claimed its interval goes on without its files; an abandoned one
    claims it again.
    """
    flow = Pipeline("letters")
    flow.source("letters", FileSource("{{ interval_start | ds }}.csv", schema="letter STRING"))
    flow.sink("shelf", ParquetSink("out"), reads="letters")
    key = RunKey("", "first")
    with pytest.raises(InputError, match="no file matches"):
        before_run(ledger.database, settings, flow, key, INTERVAL)
    batch = open_batch(ledger.database, settings, flow, key, INTERVAL)
    before_run(ledger.database, settings, flow, key, INTERVAL)
    assert ledger.abandon(batch.batch_id, "its run failed")
    assert not ledger.abandon(batch.batch_id, "again")
    with pytest.raises(InputError, match="no file matches"):
        before_run(ledger.database, settings, flow, key, INTERVAL)
    other = open_batch(ledger.database, settings, flow, RunKey("", "second"), INTERVAL)
    assert (other.batch_id, other.status) == (batch.batch_id + 1, BatchStatus.OPEN)


def test_an_abandoned_replacement_reads_all_sources_again(settings, ledger, tmp_path):
    """A run that was to replace a batch, found again by its run id alone, looks for the files
    that it reads.
    """
    flow = pipeline("letters")
    first, _ = ledger.whole_batch(flow)
    ledger.settle(first.batch_id)
    key, day = RunKey("", "reprocess"), Interval(first.interval_start, first.interval_end)
    second = open_batch(ledger.database, settings, flow, key, day, reprocess=True)
    assert ledger.abandon(second.batch_id, "its run failed")
    with pytest.raises(InputError, match="no file matches"):
        before_run(ledger.database, settings, flow, key, day)


def lossy_letters(ledger):
    """A pipeline with a reference that is not there, and a settled batch of it with a failed
    record.
    """
    flow = pipeline("letters")
    flow.reference("planes", FileSource("planes.csv", schema="n INT"))

    @flow.stage(reads="source")
    def joined(rows, *, planes):
        return rows

    flow.sink("planed", ParquetSink("planed"), reads="joined")
    first, _ = ledger.whole_batch(pipeline("letters"), lose_sink=[0])
    ledger.settle(first.batch_id)
    return flow, first


def test_a_replay_that_is_open_is_not_looked_at_again(settings, ledger):
    """A replay looks at what it needs before it claims; one that is open, or settled, goes on
    without.
    """
    flow, first = lossy_letters(ledger)
    key = RunKey("dag", "again")
    with pytest.raises(InputError, match=r"no file matches .*planes\.csv"):
        before_replay(ledger.database, settings, flow, [key])
    replay = ledger.replay(pipeline("letters"), first.batch_id, key.run_id)
    before_replay(ledger.database, settings, flow, [key])
    with pytest.raises(InputError, match="no file matches"):
        before_replay(ledger.database, settings, flow, [key, RunKey("dag", "another")])
    assert ledger.abandon(replay.batch_id, "its run failed")
    with pytest.raises(InputError, match="no file matches"):
        before_replay(ledger.database, settings, flow, [key])


def test_the_commands_that_replay_look_before_they_claim(
    settings, ledger, environment, monkeypatch
):
    """``replay`` and a DAG's ``open`` of a replay open no batch, and start no Spark, where a
    reference is missing; a cleared run whose replay is settled finds it again.
    """
    flow, first = lossy_letters(ledger)
    monkeypatch.setattr(runs, "load", lambda target: flow)
    monkeypatch.setattr(runs, "spark_session", lambda *_: pytest.fail("Spark was started"))
    done = CliRunner().invoke(app, ["replay", "letters:pipeline"])
    assert isinstance(done.exception, InputError), done.output
    assert "planes.csv" in str(done.exception)
    run = SimpleNamespace(conf={"replay_of": first.batch_id})
    key = RunKey("letters", "again")
    with pytest.raises(InputError, match="no file matches"):
        open_for_run(flow, key, run, None)
    assert ledger.row("SELECT count(*) FROM batch")[0] == 1
    replay = open_replay(
        ledger.database, settings, pipeline("letters"), key, first.batch_id, Selection()
    )
    ledger.run_replay(replay)
    ledger.settle(replay.batch_id)
    assert open_for_run(flow, key, run, None).batch_id == replay.batch_id


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (OSError(errno.ESTALE, "Stale file handle"), UnavailableError),
        (OSError(errno.EIO, "Input/output error"), UnavailableError),
        (TimeoutError("timed out"), UnavailableError),
        (RuntimeError("try again"), UnavailableError),
        (PermissionError(errno.EACCES, "Permission denied"), ConfigurationError),
        (FileNotFoundError(errno.ENOENT, "No such file"), ConfigurationError),
    ],
)
def test_what_may_pass_is_tried_again(raised, kind, settings, migrated, monkeypatch, tmp_path):
    """A brief failure of a file system is not permanent, as a source or as the storage."""
    flow = Pipeline("letters")
    flow.source("letters", FileSource("letters.csv", schema="letter STRING"))
    flow.sink("shelf", ParquetSink("out"), reads="letters")

    def broken(*_, **__):
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(listing, "find_files", broken)
        errors = {finding.subject: finding.error for finding in examine(settings, flow, None)}
    assert type(errors["source letters"]) is kind
    assert str(raised) in str(errors["source letters"])
    if isinstance(raised, OSError):
        monkeypatch.setattr(storage, "make_private", broken)
        with pytest.raises(kind, match="ACKLEDGER_STORAGE"):
            storage.require_storage(settings)


def test_the_dag_looks_before_it_opens(environment, database, tmp_path):
    """The task ``open`` of a DAG opens no batch where something is missing."""
    flow = Pipeline("letters")
    flow.source("letters", FileSource("{{ interval_start | ds }}.csv", schema="letter STRING"))
    flow.sink("shelf", ParquetSink("out"), reads="letters")
    run = SimpleNamespace(conf={"interval_start": "2013-01-01", "interval_end": "2013-01-02"})
    with pytest.raises(InputError, match="no file matches"):
        open_for_run(flow, RunKey("letters", "manual"), run, None)
    with database.plain.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM batch")).scalar_one() == 0
    (tmp_path / "2013-01-01.csv").write_text("letter\na\n")
    assert open_for_run(flow, RunKey("letters", "manual"), run, None).batch_id == 1


class Elsewhere(BaseOperator):
    """Runs a driver where this machine's Java does not matter."""

    def __init__(self, *, name, application, application_args, **options):
        super().__init__(**options)


def test_the_dag_looks_for_what_its_drivers_need(environment, ledger, monkeypatch, tmp_path):
    """Without Java ``open`` fails permanently where tasks run spark-submit, and opens its batch,
    original or replay, where an operator runs the drivers.
    """
    flow, first = lossy_letters(ledger)
    for name in ("in.csv", "planes.csv"):
        (tmp_path / name).write_text("n\n1\n")

    def missing():
        raise ConfigurationError("Spark needs Java")

    monkeypatch.setattr(checks, "require_java", missing)
    monkeypatch.setattr(loading, "load_pipeline", lambda target: flow)
    options = {"schedule": None, "target": "letters:pipeline"}
    day = {"interval_start": "2014-01-01", "interval_end": "2014-01-02"}

    def opened(run_id, conf, **place):
        task = pipeline_dag(flow, **options, **place).get_task("open")
        return task.python_callable(
            dag_run=SimpleNamespace(dag_id="letters", run_id=run_id, conf=conf)
        )

    for run_id, conf in (("again", {"replay_of": first.batch_id}), ("more", day)):
        with pytest.raises(PermanentFailure, match="Spark needs Java"):
            opened(run_id, conf)
        assert opened(run_id, conf, spark=Elsewhere) > first.batch_id


def test_the_command(settings, database, server_home, monkeypatch, tmp_path):
    """``check`` prints a line for each finding, or JSON, and ends with 1 if one is wrong."""
    (tmp_path / "checked_module.py").write_text(
        "from ledger import FileSource, ParquetSink, Pipeline\npipeline ="
        " Pipeline('letters')\npipeline.source('letters', FileSource('{{ interval_start | ds"
        " }}.csv', schema='letter STRING'))\npipeline.sink('shelf', ParquetSink('out'),"
        " reads='letters')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ACKLEDGER_HOME", str(server_home))
    monkeypatch.setenv("ACKLEDGER_STORAGE", str(tmp_path / "storage"))
    monkeypatch.setenv("ACKLEDGER_DATA", str(tmp_path))
    ask = lambda *more: CliRunner().invoke(app, ["check", "checked_module:pipeline", *more])  # noqa: E731
    day = ("--from", "2013-01-01", "--to", "2013-01-02")
    missing = ask(*day)
    assert missing.exit_code == 1
    assert [line.split()[0] for line in missing.output.splitlines() if line[:1].strip()] == [
        "ok", "ok", "ok", "wrong", "ok"
    ]  # fmt: skip
    (tmp_path / "2013-01-01.csv").write_text("letter\na\n")
    fine = ask(*day, "--json")
    assert fine.exit_code == 0
    assert {row["check"]: row["ok"] for row in json.loads(fine.stdout)} == dict.fromkeys(
        ("database", "java", "storage", "sink shelf", "source letters"), True
    )
    assert ask().exit_code == 0


TYPES = [
    "a BOOLEAN, b TINYINT, c BYTE, d SMALLINT, e SHORT, f INT, g INTEGER, h BIGINT, i LONG",
    "a FLOAT, b REAL, c DOUBLE, d DATE, e TIMESTAMP, f TIMESTAMP_NTZ, g timestamp_ltz, h BINARY",
    "a DECIMAL, b DEC(5), c NUMERIC ( 10 , 2 ), d CHAR(3), e CHARACTER(3), f VARCHAR (3)",
    "a STRING COLLATE UTF8_LCASE, b INTERVAL DAY TO SECOND, c INTERVAL YEAR, d INTERVAL",
    "a VOID, b VARIANT, c TIME, d TIME(0), e GEOMETRY(4326), f GEOGRAPHY(ANY)",
    "a ARRAY<STRUCT<b: INT, c:ARRAY<MAP<STRING,DECIMAL(3,1)>>>> NOT NULL COMMENT 'x, y'",
    "`a b` INT NOT NULL, timestamp TIMESTAMP, struct STRUCT<>, a:INT, b: int",
    "struct<a: int, b: struct<c string not null comment 'c'>>",
    "a INTT", "a INT b INT", "a", "a INT,", "a ARRAY", "a MAP<INT>", "a ARRAY<INT, INT>",
    "a STRUCT<b>", "a INT(3)", "a VARCHAR", "int", "a TEXT", "a INT64", "a STRING(3)",
    "a DECIMAL(50,2)", "a DECIMAL(38,38)", "a DECIMAL(5,7)", "a DECIMAL(0)", "a DECIMAL(3,-1)",
    "a DECIMAL()", "a DECIMAL(3,1,1)", "a ARRAY<DECIMAL(39,0)>", "a NUMERIC(38)", "a DEC(39,1)",
    "a CHAR(0)", "a CHAR(x)", "a VARCHAR()", "a TIME(7)", "a TIME(3) WITHOUT TIME ZONE",
    "a TIMESTAMP WITHOUT TIME ZONE", "a TIMESTAMP WITH TIME ZONE", "a TIMESTAMP(3)", "a GEOMETRY",
    "a INTERVAL FOO", "a INTERVAL YEAR TO DAY", "a INTERVAL HOUR TO DAY", "a INTERVAL DAYS",
]  # fmt: skip
COMMENTED = [
    "a INT, -- the id, of it\n b STRING", "a INT /* c */", "-- first\na INT", "a INT --",
    "/* x, y */ a INT, b STRING", "a/**/INT", "a INT /* /* nested */ */", "a INT /* open",
    "a INT /* a /* b */", "a INT /*+ hint */", "a INT, /* it's */ b STRING", "a INT -- it's",
    "a STRING COMMENT '-- no'", "a STRING COMMENT '/* no'", "`a--b` INT", "`a/*b` INT",
    "a STRUCT<b: INT -- x\n, c: INT>", "a STRUCT<b INT /* , */>", "a ARRAY /* c */ <INT>",
    "a INT NOT /* x */ NULL", "a INT COMMENT 'it\\'s, b'", "a INT COMMENT \"x, y\", b INT",
]  # fmt: skip
NAMED = [
    "`a`INT", "`a`:INT", "`a``b` INT", "`` INT", "`a` `b`", "a `INT`", "a STRUCT<`b`INT>",
    "a ARRAY<STRUCT<`x y`:INT>>", "s STRUCT<`it's`: INT, `x's`: INT>", "a\tINT", "a\nINT",
    "\u00e4 INT", "`\u00e4` INT", "a STRUCT<\u00e4 INT>", "1a INT", "1 INT", "1e5 INT", "1L INT",
    "1_a INT", "12_3 INT", "1.5 INT", "a.b INT", "a-b INT", "a$b INT", "select INT", "'a' INT",
    "a\u00a0INT", "a  ::INT", "time TIME", "interval INTERVAL",
]  # fmt: skip
FOLLOWED = [
    "a INT DEFAULT 5", "a INT COMMENT 'x' NOT NULL", "a INT NOT NULL COMMENT 'x'", "a INT NULL",
    "a INT COMMENT x", "a INT COMMENT", "a INT COMMENT 'x' 'y'", "a INT COMMENT'x'", "a INT NOT",
    "a INT COMMENT r'x'", "a INT NOT NULL NOT NULL", "a STRUCT<b INT COMMENT 'x' NOT NULL>",
    "a STRUCT<b INT DEFAULT 5>", "a STRUCT<b:INT>COMMENT 'x'", "a DECIMAL(3,1)NOT NULL",
    "a ARRAY<INT NOT NULL>", "a INT GENERATED ALWAYS AS (1)", "a INT PRIMARY KEY", "a INT;",
    "a INT NOT\nNULL", "a BIGINT UNSIGNED", "a INT COLLATE UTF8_LCASE", "(a INT)", "a INT) b",
    "struct<a int>, b int", "array<int>", "a STRUCT<b:INT,>", "a ARRAY<>", "a ARRAY(INT)", ",",
]  # fmt: skip


@pytest.mark.parametrize("schema", [*TYPES, *COMMENTED, *NAMED, *FOLLOWED])
def test_types_are_those_that_spark_parses(spark, schema):
    """What is refused where it is declared is what Spark's own parser refuses, and no more."""
    try:
        struct(schema)
        parses = True
    except DeclarationError:
        parses = False
    if parses:
        check_types("source", schema)
    else:
        with pytest.raises(DeclarationError):
            check_types("source", schema)
