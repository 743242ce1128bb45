"""A small pipeline driven by hand, step by step, against the real ledger."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.opening import open_batch, open_replay
from ledger.batch.settlement import Settlement, settle_once
from ledger.batch.step_runs import Attempt, OpenedRun, commit, open_run
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.settings import Settings
from ledger.store import asking
from ledger.store.connection import Database
from ledger.store.queries import batches, publications
from ledger.store.queries.batches import Batch
from ledger.store.queries.runs import Emitted
from tests.support.posting import Delta, post_bucket, record_of

START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)

TABLES = (
    "hold_sample, hold_failure, accepted_root, acceptance, dedup_filter, failed_payload,"
    " manual_quarantine, failed_root, failed_message, replay_root, root_fail, step_run_bucket,"
    " step_run_file, step_run_input,"
    " step_run_drop, claimed_file, checkpoint, sink_replacement, publication,"
    " last_sweep, batch_source, step_run, batch_step, batch, pipeline"
)


def pipeline(
    name: str = "chain",
    *,
    fan_out: bool = False,
    path: str = "in.csv",
    key: tuple[str, ...] = (),
    **options: Any,
) -> Pipeline:
    """source -> middle -> sink; with ``fan_out`` also a second sink that reads middle."""
    made = Pipeline(name, message_timeout="10s", **options)
    made.source("source", FileSource(path, schema="n INT"), key=key)

    @made.stage(reads="source")
    def middle(rows):  # type: ignore[no-untyped-def]
        return rows

    made.sink("sink", ParquetSink("out"), reads="middle")
    if fan_out:
        made.sink("second", ParquetSink("out2"), reads="middle")
    return made


def keyed(**options: Any) -> Pipeline:
    """The chain, whose source has a key."""
    return pipeline(key=("n",), **options)


def opened(database: Database, made: Pipeline, run_id: str = "run", day: int = 0) -> Batch:
    """An open batch over one day."""
    interval = Interval(START + timedelta(days=day), START + timedelta(days=day + 1))
    return open_batch(database, Settings(data="/data"), made, RunKey("dag", run_id), interval)


def replayed(
    database: Database, made: Pipeline, original: int, run_id: str = "replay", **selection: Any
) -> Batch:
    """An open replay batch of ``original``."""
    key = RunKey("dag", run_id)
    return open_replay(
        database, Settings(data="/data"), made, key, original, Selection(**selection)
    )


def started(database: Database, batch_id: int, step: str) -> OpenedRun:
    """A running run of a step, by a new attempt."""
    run = open_run(database, batch_id, step, Attempt())
    assert run is not None
    return run


def emit(
    database: Database,
    batch: Batch,
    count: int,
    edges: dict[int, int] | None = None,
) -> range:
    """Commit the source with ``count`` roots, each with one edge (default: root + 1000); the
    roots.
    """
    run = started(database, batch.batch_id, "source")
    first = database.transact(lambda c: batches.reserve_roots(c, count))
    roots = range(first, first + count)
    given = edges or {}
    deltas = [Delta(root, emitted=given.get(root, root + 1000), emitted_edges=1) for root in roots]
    post_bucket(database, batch.batch_id, run.run_id, 0, deltas)
    commit(database, run, record_of(deltas), emitted=Emitted(first, count))
    return roots


def finish(database: Database, run: OpenedRun, deltas: Iterable[Delta]) -> None:
    """Post a run's deltas and commit it."""
    rows = list(deltas)
    assert post_bucket(database, run.batch.batch_id, run.run_id, 0, rows)
    commit(database, run, record_of(rows))


def run_middle(
    database: Database,
    batch: Batch,
    roots: Iterable[int],
    lose: Iterable[int] = (),
    fail: dict[int, str] | None = None,
    edges: int = 1,
) -> None:
    """Commit middle: acks root + 1000, emits root + 2000 (and + 3000 to a second consumer)."""
    lost, failed = set(lose), fail or {}
    deltas = []
    for root in roots:
        if root in lost:
            continue
        out = 0 if root in failed else (root + 2000) ^ (root + 3000 if edges == 2 else 0)
        count = 0 if root in failed else edges
        deltas.append(Delta(root, root + 1000, out, 1, count, failed.get(root)))
    finish(database, started(database, batch.batch_id, "middle"), deltas)


def run_sink(
    database: Database,
    batch: Batch,
    roots: Iterable[int],
    lose: Iterable[int] = (),
    name: str = "sink",
    offset: int = 2000,
) -> None:
    """Commit a sink: acks root + offset."""
    lost = set(lose)
    deltas = [Delta(root, acked=root + offset, acked_edges=1) for root in roots if root not in lost]
    finish(database, started(database, batch.batch_id, name), deltas)


def whole_batch(
    database: Database,
    made: Pipeline,
    count: int = 10,
    run_id: str = "run",
    day: int = 0,
    **lose: Any,
) -> tuple[Batch, range]:
    """Run every step of a batch; ``lose_middle``, ``lose_sink``: roots lost there."""
    batch = opened(database, made, run_id, day)
    roots = emit(database, batch, count)
    base = roots.start
    lost = [base + n for n in lose.get("lose_middle", ())]
    run_middle(database, batch, roots, lost)
    run_sink(
        database,
        batch,
        [r for r in roots if r not in lost],
        [base + n for n in lose.get("lose_sink", ())],
    )
    return batch, roots


def emit_replay(database: Database, batch: Batch, companions: Iterable[int] = ()) -> range:
    """Commit a replay's source: one root per claimed message, and one for each of its unit that
    comes along.
    """
    from ledger.store.queries import replays

    messages = database.transact(lambda c: replays.claimed_messages(c, batch.batch_id, "source"))
    messages += companions
    run = started(database, batch.batch_id, "source")
    first = database.transact(lambda c: batches.reserve_roots(c, len(messages)))
    roots = range(first, first + len(messages))
    deltas = [Delta(root, emitted=root + 1000, emitted_edges=1) for root in roots]
    with database.writer.begin() as connection:
        for root, message in zip(roots, messages, strict=True):
            connection.execute(
                text("INSERT INTO replay_root VALUES (:b, :r, :root, :m)"),
                {"b": batch.batch_id, "r": run.run_id, "root": root, "m": message},
            )
    post_bucket(database, batch.batch_id, run.run_id, 0, deltas)
    commit(database, run, record_of(deltas), emitted=Emitted(first, len(messages)))
    return roots


def one(database: Database, query: str, **values: Any) -> Any:
    """The only row of a query, as the reader of all, raw text of records included."""
    with database.payload_reader.connect() as connection:
        return connection.execute(text(query), values).one()


def rows(database: Database, query: str, **values: Any) -> list[Any]:
    """All rows of a query, as the reader of all, raw text of records included."""
    with database.payload_reader.connect() as connection:
        return list(connection.execute(text(query), values).all())


def answered(database: Database, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query as a user asks it."""
    return [tuple(row.values()) for row in asking.answer(database, query)]


def age(database: Database, batch_id: int, seconds: float) -> None:
    """Make every run of a batch ``seconds`` older: leases lapse and failures lie back."""
    with database.plain.begin() as connection:
        connection.execute(
            text(
                "UPDATE step_run SET lease_until = lease_until - make_interval(secs => :s),"
                " closed_at = closed_at - make_interval(secs => :s) WHERE batch_id = :b"
            ),
            {"s": seconds, "b": batch_id},
        )


# The times of a batch, by table; those of the sweeper are of no batch.
TIMES = {
    "batch": ("opened_at", "settled_at"),
    "step_run": ("opened_at", "closed_at", "lease_until"),
    "publication": ("decided_at", "published_at", "replaced_at"),
    "acceptance": ("accepted_at",),
}


def age_ledger(database: Database, seconds: float, batch_id: int | None = None) -> None:
    """Make everything that the ledger has of a batch, or of all and of the last sweep, ``seconds``
    older.
    """
    tables = TIMES if batch_id is not None else {**TIMES, "last_sweep": ("swept_at",)}
    with database.plain.begin() as connection:
        for table, names in tables.items():
            earlier = ", ".join(f"{name} = {name} - make_interval(secs => :s)" for name in names)
            where = "" if batch_id is None else " WHERE batch_id = :b"
            connection.execute(
                text(f"UPDATE {table} SET {earlier}{where}"), {"s": seconds, "b": batch_id}
            )


def deliver(database: Database, batch_id: int | None = None) -> None:
    """Every sink publishes what is decided, of a batch or of all, as the library notes it: the
    rows here are in no file.
    """
    query = "SELECT DISTINCT batch_id FROM pending_publication ORDER BY 1"
    batch_ids = [row.batch_id for row in rows(database, query)]
    for pending in batch_ids if batch_id is None else [batch_id]:
        database.transact(lambda connection, pending=pending: _deliver(connection, pending))


def _deliver(connection: Connection, batch_id: int) -> None:
    for row in publications.pending(connection, batch_id):
        run_id = row.step_run_id
        if not row.ready:
            publications.set_ready(connection, run_id, "", [])
        replaced = publications.replaced_batches(connection, row.batch_id, run_id)
        publications.set_published(connection, run_id)
        publications.set_replaced(connection, replaced, row.sink)


def reprocessed(database: Database, made: Pipeline, run_id: str = "again") -> Batch:
    """An open batch that runs the first day again."""
    key, interval = RunKey("dag", run_id), Interval(START, START + timedelta(days=1))
    return open_batch(database, Settings(data="/data"), made, key, interval, reprocess=True)


def run_all(database: Database, batch: Batch, count: int = 5) -> Settlement | None:
    """Run the chain for so many records, lose none, and settle."""
    roots = emit(database, batch, count)
    run_middle(database, batch, roots)
    run_sink(database, batch, roots)
    return settle_once(database, batch.batch_id)


def empty(database: Database) -> None:
    """Remove every row and every partition."""
    with database.plain.begin() as connection:
        names = connection.exec_driver_sql(
            "SELECT relname FROM pg_class WHERE relname LIKE 'ledger\\_delta\\__%%' AND relkind"
            " = 'r'"
        )
        for (name,) in names.all():
            connection.exec_driver_sql(f"DROP TABLE {name}")
        connection.exec_driver_sql(f"TRUNCATE {TABLES} RESTART IDENTITY")
        connection.exec_driver_sql("UPDATE root_counter SET next_root = 1")
