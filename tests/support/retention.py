"""Batches whose runs have files, as gc and forget find them."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from ledger.batch.settlement import settle_once
from ledger.batch.upkeep.retention import GcOptions, gc_once
from ledger.cli import app
from ledger.store.queries import batches
from tests.support.ledgers import deliver, pipeline, rows, whole_batch

DAY = 86400.0


OTHER = '{"n": 12, "email": "c@d.org"}'


def kept(**options):
    """The chain, of which files are kept for a day."""
    return pipeline(keep="1d", **options)


@pytest.fixture
def storage(database, tmp_path):
    """Has every run write a file where it notes it, as drivers do."""
    folder = tmp_path / "storage"

    def write(database_):
        for run in rows(database_, "SELECT * FROM step_run WHERE folder IS NULL"):
            place = folder / run.step / f"batch={run.batch_id}" / f"run={run.step_run_id}"
            place.mkdir(parents=True)
            (place / "part.parquet").write_text("0123456789")
            with database.writer.begin() as connection:
                connection.execute(
                    text("UPDATE step_run SET folder = :f WHERE step_run_id = :r"),
                    {"f": str(place), "r": run.step_run_id},
                )
                connection.execute(
                    text("INSERT INTO step_run_file VALUES (:r, 0, :f || '/part.parquet', 10, 1)"),
                    {"f": str(place), "r": run.step_run_id},
                )

    write.folder = folder
    write.there = lambda: {
        int(path.name.removeprefix("run=")) for path in folder.glob("*/batch=*/run=*")
    }
    return write


def settled(database, made, write, publish=True, **options):
    """A batch that is settled, published and whose content is kept."""
    batch, roots = whole_batch(database, made, **options)
    settle_once(database, batch.batch_id)
    write(database)
    if publish:
        published(database)
    return batch, roots


def published(database):
    """Every sink publishes, and the content of failed records is kept."""
    deliver(database)
    with database.plain.begin() as connection:
        connection.execute(
            text("""
            INSERT INTO failed_payload (message_id, batch_id, root_id, key, content, parsed)
            SELECT message_id, original_batch_id, message_id, '{"n": 4711}',
                   '{"n": 4711, "email": "a@b.org"}', true
            FROM failed_message ON CONFLICT DO NOTHING
            """)
        )


def later(database, days=3.0):
    return database.transact(batches.database_now) + timedelta(days=days)


def collect(database, days=3.0, **options):
    return gc_once(database, GcOptions(**options), now=later(database, days))


def need(database):
    """What keeps the files of the only old family."""
    (found,) = collect(database).needed
    return found.need


def recorded(database, step_run_id, contents):
    """As if a source's run had read these records, of number and address."""
    table = pa.table({"n": [n for n, _ in contents], "email": [email for _, email in contents]})
    with database.plain.begin() as connection:
        keys = {"r": step_run_id}
        find = text("SELECT path FROM step_run_file WHERE step_run_id = :r")
        path = connection.execute(find, keys).scalar_one()
        pq.write_table(table, path)
        connection.execute(
            text("UPDATE step_run_file SET bytes = :b, rows = :n WHERE step_run_id = :r"),
            {**keys, "b": Path(path).stat().st_size, "n": len(contents)},
        )


def changed(database, statement, **values):
    """Change a row as nobody but the owner may."""
    with database.plain.begin() as connection:
        assert connection.execute(text(statement), values).rowcount == 1


@pytest.fixture
def forgettable(database, storage):
    """A batch with a quarantined record whose content and reason name an address."""
    batch, roots = settled(database, kept(max_replays=0), storage, lose_sink=[0, 1])
    recorded(database, 1, [(4711, "a@b.org"), (12, "c@d.org"), *((n, "e@f.org") for n in range(8))])
    changed(
        database,
        "UPDATE failed_root SET reason = 'no such customer: a@b.org', detail = '4711,a@b.org'"
        " WHERE root_id = :r",
        r=roots[0],
    )
    changed(
        database,
        "UPDATE failed_payload SET content = :c, key = NULL WHERE message_id = :r",
        r=roots[1],
        c=OTHER,
    )
    return batch, roots


def everything(database):
    """Every row of every table as text."""
    tables = rows(
        database,
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'pipeline'",
    )
    with database.plain.connect() as connection:
        found = [
            connection.execute(text(f"SELECT coalesce(string_agg(t::text, ' '), '') FROM {name} t"))
            for (name,) in tables
        ]
        return " ".join(one.scalar() for one in found)


def command(*arguments):
    return CliRunner().invoke(app, list(arguments))
