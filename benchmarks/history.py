"""Write years of history into a ledger: ``python -m benchmarks.history``.

By default 10,000 settled batches of 100 pipelines with 1,000,000 failed records, into the ledger of
the settings (``ACKLEDGER_HOME`` or ``ACKLEDGER_DATABASE_URL``), in about a minute. ``--batches``,
``--failed``, ``--pipelines``, ``--seed`` and ``--until`` (the day after the last interval) make it
another one; the same arguments make the same history. It takes its numbers after those that the
ledger has; a ledger takes one history.

``benchmarks/history.sql`` says what becomes of the records. Files of the steps are named and do not
exist: views, commands and pages work, and what reads rows does not.
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from psycopg2.extras import execute_values
from sqlalchemy import Connection

from benchmarks.history_pipelines import SHAPES, pipeline
from ledger.databases.driver_errors import raw_cursor
from ledger.errors import InputError
from ledger.settings import Settings
from ledger.store.connection import Database
from ledger.store.upgrade import connect

UNTIL = datetime(2026, 1, 1, tzinfo=UTC)
_SQL = Path(__file__).with_suffix(".sql")
_TEXT = """
CREATE TEMP TABLE given ON COMMIT DROP AS
SELECT %s::bigint AS batches, %s::bigint AS failed, %s::bigint AS pipelines,
       %s::timestamptz AS until, (SELECT coalesce(max(batch_id), 0) FROM batch) AS last_batch,
       (SELECT coalesce(max(step_run_id), 0) FROM step_run) AS last_run,
       (SELECT next_root FROM root_counter) AS first_root;
SELECT set_config('history.seed', %s::text, true);
CREATE TEMP TABLE declared (number bigint, name text, shape bigint, auto_replay boolean)
  ON COMMIT DROP;
CREATE TEMP TABLE shape_step (shape bigint, number bigint, declaration jsonb) ON COMMIT DROP;
"""


def write_history(
    database: Database,
    *,
    batches: int = 10_000,
    failed: int = 1_000_000,
    pipelines: int = 100,
    seed: int = 1,
    until: datetime = UNTIL,
) -> None:
    """Write so many settled batches, in which so many records failed. Raises InputError for numbers
    that make no history, or if the ledger has one.
    """
    if pipelines < 1 or batches < pipelines or failed < batches:
        raise InputError(
            f"batches={batches}, failed={failed}, pipelines={pipelines}: expected at least one"
            " pipeline, a batch for each, and as many failed records as batches"
        )
    with database.owner.begin() as connection:
        _write(connection, (batches, failed, pipelines, until, seed))
    with database.autocommit.connect() as alone:
        alone.exec_driver_sql("VACUUM ANALYZE")


def _write(connection: Connection, arguments: tuple[object, ...]) -> None:
    number = arguments[2]
    assert isinstance(number, int)
    pipelines = [pipeline(n) for n in range(1, number + 1)]
    declared = [
        (n, pipeline.name, n % SHAPES, pipeline.auto_replay)
        for n, pipeline in enumerate(pipelines, 1)
    ]
    steps = [
        (n % SHAPES, place, json.dumps(step.as_json()))
        for n, pipeline in enumerate(pipelines[:SHAPES], 1)
        for place, step in enumerate(pipeline.topology(), 1)
    ]
    # The driver's own cursor: the file's text is many statements, and has % as an operator.
    with raw_cursor(connection) as cursor:
        cursor.execute("SELECT name FROM pipeline WHERE name = %s", (pipelines[0].name,))
        if cursor.fetchone() is not None:
            raise InputError(
                f"the ledger has a history already, with pipeline {pipelines[0].name!r}"
            )
        cursor.execute(_TEXT, arguments)
        execute_values(cursor, "INSERT INTO declared VALUES %s", declared)
        execute_values(cursor, "INSERT INTO shape_step VALUES %s", steps)
        cursor.execute(_SQL.read_text())


def main() -> int:
    """Write a history into the ledger of the settings, or of ``--url``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="the ledger's database; default: that of the settings")
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--failed", type=int, default=1_000_000, help="records that fail")
    parser.add_argument("--pipelines", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--until",
        type=lambda day: datetime.fromisoformat(day).replace(tzinfo=UTC),
        default=UNTIL,
        help="the day after the last interval, as YYYY-MM-DD",
    )
    arguments = vars(parser.parse_args())
    url = arguments.pop("url")
    database = connect(Settings() if url is None else Settings(database_url=url))
    write_history(database, **arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
