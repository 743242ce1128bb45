"""An exception of any kind, raised at any place with a redacted value in it, shows the value to
nobody: it is not in the ledger, in the log, in what a face prints, or on a page.
"""

import json
from dataclasses import asdict, dataclass
from functools import partial

import pytest
import sqlalchemy.exc

from ledger import FailedRecord, FileSource, ParquetSink, Pipeline, StatefulStage
from ledger.batch.pages import batches
from ledger.batch.records.explain import explained
from ledger.batch.records.trace import trace
from ledger.errors import InputError, LedgerError, StageError, UnavailableError
from ledger.execution import advance_states, settle_and_follow
from ledger.settings import Settings
from ledger.spark.failures import error_text
from ledger.store.connection import PAYLOAD_READER, Database
from tests.support.everything import holding
from tests.support.feeds import Feed, fed

MARK = "zq7marker"


class UnshowableError(Exception):
    """Its text cannot be had."""

    def __str__(self):
        raise RuntimeError(f"no words for {MARK}")


class OwnError(StageError):
    """Of an author, made of other arguments than ours."""

    def __init__(self, row, why):
        super().__init__(f"{why}: {row}")


class UnknownCustomer(FailedRecord):
    """Of an author, for one record."""


def chained():
    error = RuntimeError(f"not sent to {MARK}")
    error.__cause__ = KeyError(MARK)
    return error


def noted():
    error = ValueError("row")
    error.add_note(f"row {MARK}")
    return error


KINDS = {
    "plain": lambda: ValueError(f"cannot send to {MARK}\nnot even {MARK}"),
    "key": lambda: KeyError(MARK),
    "chained": chained,
    "noted": noted,
    "unshowable": UnshowableError,
    "system": lambda: OSError(28, "No space left on device", f"/tmp/{MARK}"),
    "connection": lambda: ConnectionError(f"{MARK} hung up"),
    "unicode": lambda: UnicodeDecodeError("utf-8", MARK.encode(), 0, 1, f"bad {MARK}"),
    "syntax": lambda: SyntaxError(f"bad {MARK}", ("greet.py", 1, 1, MARK)),
    "group": lambda: ExceptionGroup(f"several of {MARK}", [ValueError(MARK)]),
    "driver": lambda: sqlalchemy.exc.DataError(
        f"INSERT {MARK}", {"v": MARK}, ValueError(f"bad {MARK}")
    ),
    "ours": lambda: StageError(f"unknown customer {MARK}"),
    "ours, away": lambda: UnavailableError(f"{MARK} is away"),
    "an author's": lambda: OwnError({"email": MARK}, "bad"),
    "of a record": lambda: UnknownCustomer(f"no customer {MARK}"),
}


def raising(kind):
    """Raise an exception of this kind from code that is not the library's."""
    raise KINDS[kind]()


def on_pages(number):
    """What the pages of a batch and of its failed records get, as JSON."""
    database = Database.from_settings(Settings(), role=PAYLOAD_READER)
    failures = batches.failed(database, number, {})
    pages = [batches.batch(database, number), failures]
    for row in failures.records:
        pages += [explained(database, row.message_id), trace(database, row.message_id)]
    database.dispose()
    return json.dumps([asdict(page) for page in pages], default=str)


@pytest.fixture
def shows_nothing(database, environment, caplog, capfd):
    """Assert that no value is in an error, in what a face makes of it, in the ledger, on the pages
    of a batch, in the log or in the output.
    """

    def check(*errors, batch=None):
        for error in errors:
            assert isinstance(error, LedgerError)
            notes = getattr(error, "__notes__", [])
            shown = [str(error), repr(error), error_text(error), *notes]
            assert MARK not in "\n".join(shown)
            assert error.__cause__ is None
            assert error.__suppress_context__ or error.__context__ is None
        assert holding(database, MARK) == {}
        if batch is not None:
            assert MARK not in on_pages(batch.batch_id).lower()
        assert MARK not in caplog.text
        assert MARK not in "".join(capfd.readouterr())

    return check


def people(tmp_path, **options) -> Pipeline:
    """One record of each kind, whose address is redacted."""
    rows = "".join(f"{number},{MARK}@example.org\n" for number in range(len(KINDS)))
    (tmp_path / "people.csv").write_text(f"id,email\n{rows}")
    pipeline = Pipeline("people", redact=["email"], **options)
    pipeline.source("people", FileSource("people.csv", schema="id INT, email STRING"), key="id")
    return pipeline


def test_what_fails_a_record(runner, tmp_path, shows_nothing):
    """Each kind of exception fails its record of a record stage, with the class of it."""
    pipeline = people(tmp_path)
    kinds = [*KINDS]

    @pipeline.record_stage(reads="people", schema="id INT, email STRING")
    def greeted(person):
        yield raising(kinds[person["id"]])

    pipeline.sink("out", ParquetSink("out"), reads="greeted")
    run = runner(pipeline)
    batch = run.open()
    assert run.settled(batch).failed == len(kinds)
    reasons = {row.reason for row in run.ledger.rows("SELECT reason FROM failed_root")}
    names = {type(make()).__name__ for make in KINDS.values()}
    assert reasons == {f"{name}: ***" for name in names}
    shows_nothing(batch=batch)


def test_what_ends_a_stage(runner, tmp_path, shows_nothing):
    """Each kind of exception of a stage's function ends its run: in the driver, and in a worker."""
    from pyspark.sql import functions as F

    broken = []

    def stage(people):
        place, kind = broken[-1]
        if place == "driver":
            raising(kind)
        send = F.udf(lambda email: raising(kind), "string")
        return people.withColumn("sent", send("email"))

    pipeline = people(tmp_path)
    pipeline.stage(reads="people")(stage)
    pipeline.sink("out", ParquetSink("out"), reads="stage")
    run = runner(pipeline)
    batch = run.open()
    run.step(batch, "people")
    places = [("driver", kind) for kind in KINDS] + [("worker", "plain"), ("worker", "ours")]
    for place in places:
        broken.append(place)
        with pytest.raises(LedgerError) as caught:
            run.step(batch, "stage")
        shows_nothing(caught.value)
    failures = run.ledger.rows("SELECT failure FROM step_run WHERE failure IS NOT NULL")
    assert len(failures) == len(places)
    shows_nothing(batch=batch)


@dataclass(frozen=True)
class Confiding(ParquetSink):
    """A folder whose publisher raises, in its method of a name."""

    broken: str = ""
    kinds: tuple[str, ...] = ()

    def publisher(self, settings, pipeline, name):
        inner, broken, kinds = super().publisher(settings, pipeline, name), self.broken, self.kinds

        class Confided:
            keeps_tracking = inner.keeps_tracking
            staging = inner.staging

            def plan(self, schema, delivery):
                if broken == "plan" or (broken == "tried" and delivery is not None):
                    raising(kinds[0])
                return inner.plan(schema, delivery)

            def publish(self, delivery):
                if broken == "publish":
                    raising(kinds[0])
                return inner.publish(delivery)

        return Confided()


def test_what_stops_a_sink(runner, tmp_path, shows_nothing):
    """Each kind of exception of a sink ends its run, or its publication, which stays pending."""
    for day, broken in enumerate(("plan", "tried", "publish")):
        pipeline = people(tmp_path)
        pipeline.sink("out", ParquetSink("out"), reads="people")
        run = runner(pipeline)
        batch = run.open_day(day)
        run.step(batch, "people")
        for kind in KINDS:
            confiding = people(tmp_path)
            sink = Confiding("out", broken=broken, kinds=(kind,))
            confiding.sink("out", sink, reads="people")
            work = runner(confiding)
            if broken == "publish":
                stop = partial(settle_and_follow, work.job, batch.batch_id)
                if kind == "plain":
                    work.step(batch, "out")
            else:
                stop = partial(work.step, batch, "out")
            with pytest.raises(LedgerError) as caught:
                stop()
            shows_nothing(caught.value)
        shows_nothing(batch=batch)


class Torn(Feed):
    """A feed whose method of a name raises."""

    kind = "plain"

    def _break(self, method):
        if method in self.broken:
            raising(self.kind)


def test_what_stops_a_source(runner, tmp_path, caplog, shows_nothing):
    """Each kind of exception of a source, which counts, reads or is notified, ends the opening or
    the run, or is logged, for the batch is settled."""
    feed = Torn(tmp_path)
    feed.add(1)
    run = runner(fed(feed, redact=["n"]))
    feed.broken = {"latest"}
    for feed.kind in KINDS:
        with pytest.raises(LedgerError) as caught:
            run.open()
        shows_nothing(caught.value)
    feed.broken = {"read"}
    with pytest.raises(LedgerError) as caught:
        run.step(run.open(), "feed")
    shows_nothing(caught.value)
    for feed.kind in KINDS:
        feed.broken = {"read"}
        with pytest.raises(LedgerError) as caught:
            run.step(run.open(), "feed")
        shows_nothing(caught.value)
    feed.broken = {"commit"}
    batch = run.open()
    run.settled(batch)
    for feed.kind in KINDS:
        settle_and_follow(run.job, batch.batch_id)
    assert caplog.text.count("feed is notified of batch 1 again: ") == 1 + len(KINDS)
    shows_nothing(batch=batch)


class Sum(StatefulStage):
    """A count of rows, whose hook of a name raises."""

    def __init__(self):
        self.broken, self.kind = "", "plain"

    def finish_batch(self, batch_id, batch):
        self._break("finish_batch")
        return batch.count()

    def commit(self, batch_id, state):
        self._break("commit")
        return state

    def ack_commit(self, batch_id):
        self._break("ack_commit")

    def _break(self, hook):
        if hook == self.broken:
            raising(self.kind)


def test_what_stops_what_follows(runner, tmp_path, shows_nothing):
    """Each kind of exception of a combine and of a state ends its run."""
    pipeline, hooks, broken = people(tmp_path), Sum(), []
    pipeline.sink("out", ParquetSink("out"), reads="people")

    @pipeline.combine(reads="people")
    def total(people):
        return raising(broken[-1]) if broken else people.groupBy().count()

    pipeline.sink("totals", ParquetSink("totals"), reads="total")
    pipeline.stateful("sum", hooks, reads="people")
    run = runner(pipeline)
    batch = run.open()
    run.steps(batch)
    hooks.broken = "finish_batch"
    for kind in KINDS:
        broken.append(kind)
        hooks.kind = kind
        with pytest.raises(LedgerError) as caught:
            settle_and_follow(run.job, batch.batch_id)
        shows_nothing(caught.value)
    hooks.broken = "commit"
    for hooks.kind in KINDS:
        with pytest.raises(LedgerError) as caught:
            advance_states(run.job)
        shows_nothing(caught.value)
    hooks.broken = "ack_commit"
    for hooks.kind in KINDS:
        advance_states(run.job)
    shows_nothing(batch=batch)


def test_what_a_file_says(runner, tmp_path, shows_nothing):
    """What does not parse, a header that is a record, and text that is no UTF-8."""
    for number, content in enumerate(
        (f"id,email\n{MARK},x\n1,{MARK},3\n", f"{MARK},x\n1,2\n", f"id,email\n1,{MARK}\ud800\n")
    ):
        pipeline = people(tmp_path)
        (tmp_path / "people.csv").write_bytes(content.encode("utf-8", "surrogatepass"))
        pipeline.sink("out", ParquetSink("out"), reads="people")
        run = runner(pipeline)
        batch = run.open_day(number)
        try:
            run.settled(batch)
        except InputError as exc:
            shows_nothing(exc)
        shows_nothing(batch=batch)
