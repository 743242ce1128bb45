"""A test's ledger, and a small pipeline in it that is driven by hand, step by step."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Connection, text

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch import manual_actions, step_runs
from ledger.batch.manual_actions import Acceptance, Quarantined, accept, quarantine
from ledger.batch.opening import open_batch, open_replay
from ledger.batch.outcome.summary import Summary, summarize
from ledger.batch.records.explain import Explanation, explain
from ledger.batch.records.payloads import keep_payloads
from ledger.batch.settlement import Settlement, settle_once
from ledger.batch.step_runs import Attempt, OpenedRun, Record
from ledger.batch.upkeep.sweeper import Swept, sweep_once
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.core.states import BatchStatus
from ledger.deltas.spans import RootRange, Spans
from ledger.settings import Settings
from ledger.storage.manifest import DataFile
from ledger.store import asking
from ledger.store.connection import Database
from ledger.store.queries import batches, payloads, publications, runs
from ledger.store.queries.batches import Batch
from tests.support.posting import Delta, post_deltas, record_of
from tests.support.spanning import RootFolder, by_span, deltas_of

START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)

TABLES = (
    "hold_sample, hold_failure, accepted_root, acceptance, dedup_filter, failed_payload,"
    " manual_quarantine, failed_root, message_claim, failed_message, replay_root, root_fail,"
    " lost_root, ledger_delta, step_run_input, step_run_drop, step_run_loss, claimed_file,"
    " checkpoint, sink_replacement, publication, last_sweep, batch_source, step_run,"
    " one_plan, batch, declared_step, pipeline"
)

# How few rows go at once: a TRUNCATE recreates each table and index, 10 times as slowly.
_DELETED = (
    "SET LOCAL session_replication_role = replica",  # no triggers, and so no foreign keys
    *(f"DELETE FROM {name.strip()}" for name in TABLES.split(",")),
)
_TRUNCATED = (f"TRUNCATE {TABLES}",)
_FEW_BYTES = 256 << 10  # of the largest table
_FROM_ONE = (
    "ALTER SEQUENCE batch_batch_id_seq START WITH 1",
    "ALTER SEQUENCE step_run_step_run_id_seq START WITH 1",
    "SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence",
    "UPDATE root_counter SET next_root = 1",
)

# The times of a batch, by table; those of the sweeper are of no batch.
TIMES = {
    "batch": ("opened_at", "settled_at"),
    "step_run": ("opened_at", "closed_at", "lease_until"),
    "publication": ("decided_at", "published_at", "replaced_at"),
    "acceptance": ("accepted_at",),
}


def pipeline(
    name: str = "chain",
    *,
    fan_out: bool = False,
    path: str = "in.csv",
    key: tuple[str, ...] = (),
    whole: bool = False,
    **options: Any,
) -> Pipeline:
    """source -> middle -> sink; with ``fan_out`` also a second sink that reads middle. ``whole``:
    whether middle is.
    """
    chain = Pipeline(name, message_timeout="10s", **options)
    chain.source("source", FileSource(path, schema="n INT"), key=key)

    @chain.stage(reads="source", anchors="merged_by_hand" if whole else "carried")
    def middle(rows):  # type: ignore[no-untyped-def]
        return rows

    chain.sink("sink", ParquetSink("out"), reads="middle")
    if fan_out:
        chain.sink("second", ParquetSink("out2"), reads="middle")
    return chain


def keyed(**options: Any) -> Pipeline:
    """The chain, whose source has a key."""
    return pipeline(key=("n",), **options)


@dataclass(frozen=True)
class Ledger:
    """What a test does to the ledger in ``database``, as drivers, services and users do it.
    ``storage``: where runs write their root files, if a source has spans.
    """

    database: Database
    storage: Path = field(default=Path("/nowhere"), kw_only=True)
    folders: dict[int, RootFolder] = field(default_factory=dict, kw_only=True)

    # Batches

    def open(
        self, pipeline: Pipeline, run_id: str = "run", day: int = 0, *, dag: str = "dag"
    ) -> Batch:
        """An open batch over one day."""
        return self._open(pipeline, RunKey(dag, run_id), day)

    def reprocess(self, pipeline: Pipeline, run_id: str = "again") -> Batch:
        """An open batch that runs the first day again."""
        return self._open(pipeline, RunKey("dag", run_id), 0, reprocess=True)

    def replay(
        self,
        pipeline: Pipeline,
        original: int,
        run_id: str = "replay",
        *,
        dag: str = "dag",
        **selection: Any,
    ) -> Batch:
        """An open replay batch of ``original``."""
        key, settings = RunKey(dag, run_id), Settings(data="/data")
        return open_replay(self.database, settings, pipeline, key, original, Selection(**selection))

    def whole_batch(
        self,
        pipeline: Pipeline,
        count: int = 10,
        run_id: str = "run",
        day: int = 0,
        *,
        lose_middle: Iterable[int] = (),
        lose_sink: Iterable[int] = (),
        span: int = 1,
        dag: str = "dag",
    ) -> tuple[Batch, range]:
        """Run every step of a batch; ``lose_middle``, ``lose_sink``: roots lost there, from 0."""
        batch = self.open(pipeline, run_id, day, dag=dag)
        roots = self.emit(batch, count, span=span)
        lost = [roots.start + number for number in lose_middle]
        self.run_middle(batch, roots, lost)
        rest = [root for root in roots if root not in lost]
        self.run_sink(batch, rest, [roots.start + number for number in lose_sink])
        return batch, roots

    def run_all(self, batch: Batch, count: int = 5) -> Settlement | None:
        """Run the chain for so many records, lose none, and settle."""
        roots = self.emit(batch, count)
        self.run_middle(batch, roots)
        self.run_sink(batch, roots)
        return self.settle(batch.batch_id)

    def _open(self, pipeline: Pipeline, key: RunKey, day: int, *, reprocess: bool = False) -> Batch:
        interval = Interval(START + timedelta(days=day), START + timedelta(days=day + 1))
        settings = Settings(data="/data")
        return open_batch(self.database, settings, pipeline, key, interval, reprocess=reprocess)

    # Runs of steps

    def emit(
        self,
        batch: Batch,
        count: int,
        edges: Mapping[int, int] | None = None,
        *,
        span: int = 1,
        source: str = "source",
    ) -> range:
        """Commit the source with ``count`` roots, each with one edge (default: root + 1000); the
        roots. ``span``: how many of them share a row.
        """
        return self._emit(batch, count, edges or {}, span=span, source=source)

    def emit_replay(self, batch: Batch, along: Iterable[int] = (), *, span: int = 1) -> range:
        """Commit a replay's source: one root per claimed message, and one for each other record of
        a whole batch that comes along.
        """
        messages = [*self.claimed_messages(batch.batch_id), *along]
        return self._emit(batch, len(messages), {}, messages, span=span)

    def run_replay(self, batch: Batch) -> range:
        """Run the chain for what a replay has claimed, and lose none; its roots."""
        roots = self.emit_replay(batch)
        self.run_middle(batch, roots)
        self.run_sink(batch, roots)
        return roots

    def run_middle(
        self,
        batch: Batch,
        roots: Iterable[int],
        lose: Iterable[int] = (),
        fail: Mapping[int, str] | None = None,
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
        self.finish(self.start(batch.batch_id, "middle"), deltas)

    def run_sink(
        self,
        batch: Batch,
        roots: Iterable[int],
        lose: Iterable[int] = (),
        name: str = "sink",
        offset: int = 2000,
    ) -> None:
        """Commit a sink: acks root + offset."""
        rest = [root for root in roots if root not in set(lose)]
        deltas = [Delta(root, acked=root + offset, acked_edges=1) for root in rest]
        self.finish(self.start(batch.batch_id, name), deltas)

    def start(self, batch_id: int, step: str) -> OpenedRun:
        """A running run of a step, by a new attempt."""
        run = self.open_run(batch_id, step, Attempt())
        assert run is not None
        return run

    def finish(self, run: OpenedRun, deltas: Iterable[Delta]) -> None:
        """Post a run's deltas and commit it."""
        rows = list(deltas)
        self.post(run, rows)
        self.commit(run, rows)

    def begin(self) -> Attempt:
        """See ``step_runs.begin``."""
        return step_runs.begin(self.database)

    def open_run(self, batch_id: int, step: str, attempt: Attempt) -> OpenedRun | None:
        """See ``step_runs.open_run``."""
        return step_runs.open_run(self.database, batch_id, step, attempt)

    def post(
        self, run: OpenedRun, deltas: Iterable[Delta], *, emitted: RootRange | None = None
    ) -> None:
        """See ``post_deltas``. Where roots share rows, what each adds goes to a root file."""
        rows, ranges = list(deltas), self._ranges(run, emitted)
        if Spans(ranges).by_root:
            post_deltas(self.database, run, rows)
            return
        folder = self.folder_of(run)
        fails = [row for row in rows if row.reason is not None]
        post_deltas(self.database, run, by_span(ranges, rows), fails)
        folder.add(deltas_of(rows))

    def commit(
        self,
        run: OpenedRun,
        deltas: Iterable[Delta] | Record = (),
        *,
        emitted: RootRange | None = None,
        before_commit: Callable[[Connection], None] = lambda connection: None,
        **output: Any,
    ) -> None:
        """Commit a run that posted ``deltas``, or with another record of what it did. ``output``:
        what else it made.
        """
        if isinstance(deltas, Record):
            record = deltas
        else:
            ranges = self._ranges(run, emitted)
            rows = list(deltas)
            record = record_of(rows if Spans(ranges).by_root else by_span(ranges, rows))
        if run.run_id in self.folders:
            self.folders[run.run_id].end()
        step_output = step_runs.StepOutput(record, emitted=emitted, **output)
        step_runs.commit(self.database, run, step_output, before_commit)

    def _ranges(self, run: OpenedRun, emitted: RootRange | None = None) -> list[RootRange]:
        """The roots of a run's batch, with those that the run itself has ``emitted``."""
        return [emitted] if emitted else self.transact(runs.emits, run.batch.batch_id)

    def folder_of(self, run: OpenedRun) -> RootFolder:
        """Where a run writes its root files, noted before it does."""
        if run.run_id not in self.folders:
            place = f"{run.batch.pipeline}/_roots/batch={run.batch.batch_id}/run={run.run_id}"
            self.folders[run.run_id] = RootFolder(str(self.storage / place))
            self.change(
                "UPDATE step_run SET root_files = :path WHERE step_run_id = :run",
                path=self.folders[run.run_id].path,
                run=run.run_id,
            )
        return self.folders[run.run_id]

    def fail(self, run: OpenedRun, failure: str) -> None:
        """See ``step_runs.fail``."""
        step_runs.fail(self.database, run, failure)

    def _emit(
        self,
        batch: Batch,
        count: int,
        edges: Mapping[int, int],
        messages: Iterable[int] = (),
        *,
        span: int = 1,
        source: str = "source",
    ) -> range:
        run = self.start(batch.batch_id, source)
        first = self.transact(batches.reserve_roots, count, span)
        roots = range(first, first + count)
        deltas = [
            Delta(root, emitted=edges.get(root, root + 1000), emitted_edges=1) for root in roots
        ]
        with self.database.writer.begin() as connection:
            for root, message in zip(roots, messages, strict=False):
                connection.execute(
                    text("INSERT INTO replay_root VALUES (:b, :r, :root, :m)"),
                    {"b": batch.batch_id, "r": run.run_id, "root": root, "m": message},
                )
        emitted = RootRange(first, count, span)
        self.post(run, deltas, emitted=emitted)
        self.commit(run, deltas, emitted=emitted)
        return roots

    # What services and people do

    def settle(self, batch_id: int, **options: Any) -> Settlement | None:
        """See ``settle_once``."""
        return settle_once(self.database, batch_id, **options)

    def abandon_dead(self, batch: Batch, step: str = "source", seconds: float = 120.0) -> None:
        """A driver dies at a step, and the settlement abandons the batch once the run's lease and
        the pipeline's ``message_timeout`` are over."""
        self.start(batch.batch_id, step)
        self.age(batch.batch_id, seconds)
        settlement = self.settle(batch.batch_id)
        assert settlement is not None
        assert settlement.status is BatchStatus.ABANDONED

    def sweep(self, **options: Any) -> Swept:
        """See ``sweep_once``."""
        return sweep_once(self.database, **options)

    def deliver(self, batch_id: int | None = None) -> None:
        """Every sink publishes what is decided, of a batch or of all, as the library notes it: the
        rows here are in no file.
        """
        query = "SELECT DISTINCT batch_id FROM pending_publication ORDER BY 1"
        batch_ids = [row.batch_id for row in self.rows(query)]
        for pending in batch_ids if batch_id is None else [batch_id]:
            self.transact(_deliver, pending)

    def accept(
        self, batch_id: int, *, by: str = "a person", reason: str = "it may stay out"
    ) -> Acceptance:
        """See ``accept``."""
        return accept(self.database, batch_id, by=by, reason=reason)

    def abandon(self, batch_id: int, reason: str = "a test") -> bool:
        """See ``manual_actions.abandon``."""
        return manual_actions.abandon(self.database, batch_id, reason)

    def release(self, batch_id: int) -> Settlement:
        """See ``manual_actions.release``."""
        return manual_actions.release(self.database, batch_id)

    def quarantine(
        self, reason: str = "a test", by: str = "somebody", **selection: Any
    ) -> Quarantined:
        """See ``quarantine``."""
        return quarantine(self.database, reason, by, **selection)

    def keep_payloads(self, batch_id: int) -> int:
        """See ``keep_payloads``."""
        return keep_payloads(self.database, batch_id)

    # What is there

    def summary(self, batch_id: int) -> Summary:
        """See ``summarize``."""
        return summarize(self.database, batch_id)

    def explain(self, number: int) -> Explanation:
        """See ``explain``."""
        return explain(self.database, number)

    def claimed_messages(self, batch_id: int) -> list[int]:
        """The records that a replay has claimed of its source."""
        original_id = self.transact(batches.get_batch, batch_id).original_id
        emits = self.transact(payloads.claimed, batch_id, original_id, "source")
        return sorted(message for emit in emits for message in emit.messages)

    def row(self, query: str, **values: Any) -> Any:
        """The only row of a query, as the reader of all, raw text of records included."""
        with self.database.payload_reader.connect() as connection:
            return connection.execute(text(query), values).one()

    def rows(self, query: str, **values: Any) -> list[Any]:
        """All rows of a query, as the reader of all, raw text of records included."""
        with self.database.payload_reader.connect() as connection:
            return list(connection.execute(text(query), values).all())

    def answer(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query as a user asks it."""
        return [tuple(row.values()) for row in asking.answer(self.database, query)]

    def now(self) -> datetime:
        """The time by the database's clock."""
        return self.transact(batches.database_now)

    def transact(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of a connection and ``arguments`` returns, in a transaction."""
        return self.database.transact(lambda connection: work(connection, *arguments))

    # What only the owner can do

    def change(self, statement: str, **values: Any) -> None:
        """Change rows as only the owner may; at least one."""
        assert self._execute(statement, values), statement

    def age(self, batch_id: int, seconds: float) -> None:
        """Make every run of a batch ``seconds`` older: leases lapse and failures lie back."""
        self.change(
            "UPDATE step_run SET lease_until = lease_until - make_interval(secs => :s),"
            " closed_at = closed_at - make_interval(secs => :s) WHERE batch_id = :b",
            s=seconds,
            b=batch_id,
        )

    def age_all(self, seconds: float, batch_id: int | None = None) -> None:
        """Make everything that the ledger has of a batch, or of all and of the last sweep,
        ``seconds`` older.
        """
        tables = TIMES if batch_id is not None else {**TIMES, "last_sweep": ("swept_at",)}
        for table, names in tables.items():
            earlier = ", ".join(f"{name} = {name} - make_interval(secs => :s)" for name in names)
            where = "" if batch_id is None else " WHERE batch_id = :b"
            self._execute(f"UPDATE {table} SET {earlier}{where}", {"s": seconds, "b": batch_id})

    def note_files(self, run_id: int, files: Iterable[DataFile]) -> None:
        """Have the manifest of a run list these files, wherever they lie."""
        listed = [{"path": file.path, "bytes": file.bytes, "rows": file.rows} for file in files]
        self.change(
            "UPDATE step_run SET files = cast(:files AS jsonb) WHERE step_run_id = :r",
            files=json.dumps(listed),
            r=run_id,
        )

    def declare(self, batch_id: int, step: str, **options: Any) -> None:
        """Change options in the declaration of a batch's step."""
        batch = self.transact(batches.get_batch, batch_id)
        steps = [replace(each, **options) if each.name == step else each for each in batch.topology]
        version = self.transact(batches.declare_steps, batch.pipeline_id, steps)
        self.change(
            "UPDATE batch SET steps_version = :v WHERE batch_id = :b", v=version, b=batch_id
        )

    def write_snapshot(
        self,
        batch: Batch,
        folder: Path,
        rows: list[dict[str, Any]],
        files: int = 2,
        group_rows: int = 2,
    ) -> list[Path]:
        """Write the rows of a batch's source, in order, to files of row groups that are small by
        default, and list them in the ledger.
        """
        schema = pa.Table.from_pylist(rows).schema
        share, listed = -(-len(rows) // files), []
        for number in range(files):
            first = number * share
            part = rows[first : first + share]
            path = folder / f"part-{number}.parquet"
            pq.write_table(pa.Table.from_pylist(part, schema), path, row_group_size=group_rows)
            listed.append(DataFile(str(path), path.stat().st_size, len(part), first))
        query = "SELECT emit_run_id FROM batch_source WHERE batch_id = :b"
        self.note_files(self.row(query, b=batch.batch_id).emit_run_id, listed)
        return [Path(file.path) for file in listed]

    def _execute(self, statement: str, values: Mapping[str, Any]) -> int:
        with self.database.plain.begin() as connection:
            return connection.execute(text(statement), values).rowcount

    def empty(self) -> None:
        """Remove every row."""
        self.folders.clear()
        with self.database.plain.begin() as connection:
            tables = connection.exec_driver_sql(
                "SELECT relname, pg_relation_size(oid) AS bytes FROM pg_class"
                " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
            ).all()
            is_large = any(bytes_ > _FEW_BYTES for _, bytes_ in tables)
            connection.exec_driver_sql(
                ";".join([*(_TRUNCATED if is_large else _DELETED), *_FROM_ONE])
            )


def _deliver(connection: Connection, batch_id: int) -> None:
    for row in publications.pending(connection, batch_id):
        run_id = row.step_run_id
        if not row.ready:
            publications.set_ready(connection, run_id, "", [])
        replaced = publications.replaced_batches(connection, row.batch_id, run_id)
        publications.set_published(connection, run_id)
        publications.set_replaced(connection, replaced, row.sink)
