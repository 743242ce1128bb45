"""A ledger whose runs have files, as gc and forget find them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from ledger import Pipeline
from ledger.batch.records import forgetting
from ledger.batch.records.forgetting import Forgotten
from ledger.batch.upkeep.retention import Collected, GcOptions, gc_once
from ledger.cli import app
from ledger.core.paths import is_local
from ledger.core.states import Need
from ledger.storage import stores
from ledger.storage.manifest import DataFile
from ledger.store.connection import Database
from ledger.store.queries.batches import Batch
from tests.support.ledgers import Ledger, pipeline

DAY = 86400.0


OTHER = '{"n": 12, "email": "c@d.org"}'


def expiring(**options: Any) -> Pipeline:
    """The chain, whose files are kept for a day."""
    return pipeline(keep="1d", **options)


@dataclass(frozen=True)
class Archive(Ledger):
    """A ledger with the files of its runs, in ``folder``, which may be a URL."""

    folder: Path | str

    def write_files(self) -> None:
        """Have every run that has none write a file and note it, as drivers do."""
        for run in self.rows("SELECT * FROM step_run WHERE folder IS NULL"):
            folder = f"{self.folder}/{run.step}/batch={run.batch_id}/run={run.step_run_id}"
            if is_local(folder):
                Path(folder).mkdir(parents=True)
            stores.write(f"{folder}/part.parquet", b"0123456789")
            self.change(
                "UPDATE step_run SET folder = :f WHERE step_run_id = :r",
                f=folder,
                r=run.step_run_id,
            )
            self.note_files(run.step_run_id, [DataFile(f"{folder}/part.parquet", 10, 1, 0)])

    def runs(self) -> set[int]:
        """The runs that have a folder."""
        folders = Path(self.folder).glob("*/batch=*/run=*")
        return {int(path.name.removeprefix("run=")) for path in folders}

    def settled(
        self, pipeline: Pipeline, *, publish: bool = True, **options: Any
    ) -> tuple[Batch, range]:
        """A batch that is settled, published and whose content is kept."""
        batch, roots = self.whole_batch(pipeline, **options)
        self.settle(batch.batch_id)
        self.write_files()
        if publish:
            self.publish()
        return batch, roots

    def settle_replay(self, batch: Batch) -> None:
        """A replay is run, loses none, and is settled; its sinks have yet to publish."""
        self.run_replay(batch)
        self.settle(batch.batch_id)
        self.write_files()

    def publish(self) -> None:
        """Every sink publishes, and the content of failed records is kept."""
        self.deliver()
        self._execute(
            """
            INSERT INTO failed_payload (message_id, batch_id, root_id, key, content, parsed)
            SELECT message_id, original_batch_id, message_id, '{"n": 4711}',
                   '{"n": 4711, "email": "a@b.org"}', true
            FROM failed_message ON CONFLICT DO NOTHING
            """,
            {},
        )

    def write_records(self, step_run_id: int, records: list[tuple[int, str]]) -> None:
        """As if a source's run had read these records, of number and address."""
        table = pa.table({"n": [n for n, _ in records], "email": [email for _, email in records]})
        query = "SELECT path FROM step_run_file WHERE step_run_id = :r"
        path = self.row(query, r=step_run_id).path
        pq.write_table(table, path)
        size = Path(path).stat().st_size
        self.note_files(step_run_id, [DataFile(path, size, len(records), 0)])

    def replay_beside_a_forgotten_record(self, pipeline: Pipeline) -> tuple[Batch, int, int, int]:
        """The replay of a whole batch, in which comes along a record that failed, recovered and was
        forgotten: the replay, the forgotten record, and in the replay the roots of the one that
        failed and of the one that comes along.
        """
        batch, (forgotten, *_) = self.settled(pipeline, lose_sink=[0, 1])
        first = self.replay(pipeline, batch.batch_id)
        roots = self.emit_replay(first)
        self.run_middle(first, roots)
        self.run_sink(first, roots, lose=roots[1:])
        self.settle(first.batch_id)
        self.write_files()
        for run in self.rows("SELECT emit_run_id AS id FROM batch_source ORDER BY 1"):
            self.write_records(run.id, [(4711, "a@b.org"), *((n, "e@f.org") for n in range(9))])
        self.publish()
        self.forget(forgotten)
        second = self.replay(pipeline, batch.batch_id, "whole")
        self.declare(3, "middle", merges=True)  # so that it is replayed as a whole
        failed, along = self.emit_replay(second, along=[forgotten])
        return second, forgotten, failed, along

    def later(self, days: float = 3.0) -> datetime:
        """The time so many days from now."""
        return self.now() + timedelta(days=days)

    def collect(self, days: float = 3.0, *, on_progress: Any = None, **options: Any) -> Collected:
        """gc so many days from now."""
        rules, now = GcOptions(**options), self.later(days)
        return gc_once(self.database, rules, now=now, on_progress=on_progress)

    def need(self) -> Need:
        """What keeps the files of the only old family."""
        (needed,) = self.collect().needed
        return needed.need

    def forget(self, number: int, **options: Any) -> Forgotten:
        """Forget a record, which is named by its number."""
        return forgetting.forget(self.database, forgetting.named(self.database, number), **options)

    def text(self) -> str:
        """Every row of every table as text."""
        tables = self.rows(
            "SELECT tablename FROM pg_tables"
            " WHERE schemaname = 'ackledger' AND tablename <> 'pipeline'"
        )
        with self.database.plain.connect() as connection:
            texts = [
                connection.exec_driver_sql(
                    f"SELECT coalesce(string_agg(t::text, ' '), '') FROM {name} t"
                ).scalar_one()
                for (name,) in tables
            ]
        return " ".join(texts)


@pytest.fixture
def archive(database: Database, tmp_path: Path) -> Archive:
    """The empty ledger, with a folder for files."""
    return Archive(database, tmp_path / "storage")


@pytest.fixture
def forgettable(archive: Archive) -> tuple[Batch, range]:
    """A batch with a quarantined record whose content and reason name an address."""
    batch, roots = archive.settled(expiring(max_replays=0), lose_sink=[0, 1])
    rest = ((n, "e@f.org") for n in range(8))
    archive.write_records(1, [(4711, "a@b.org"), (12, "c@d.org"), *rest])
    archive.change(
        "UPDATE failed_root SET cause = 'rejected', reason = 'no such customer: a@b.org',"
        " detail = '4711,a@b.org'"
        " WHERE root_id = :r",
        r=roots[0],
    )
    archive.change(
        "UPDATE failed_payload SET content = :c, key = NULL WHERE message_id = :r",
        r=roots[1],
        c=OTHER,
    )
    return batch, roots


def command(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, list(arguments))
