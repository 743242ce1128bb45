"""Checks of an installation: whether ackledger can run on this machine, whatever the pipeline."""

import platform
import shutil
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import metadata

from sqlalchemy import Connection

from ledger.batch.recovery import needs_refinement
from ledger.batch.upkeep.checks import Finding, at_revision, finding, spark
from ledger.core.commands import ackledger
from ledger.core.requirements import spark_program
from ledger.core.text import quantity
from ledger.errors import ConfigurationError
from ledger.settings import Settings
from ledger.storage.folders import require_storage
from ledger.store.connection import OWNER, PAYLOAD_READER, READER, WRITER, Database
from ledger.store.queries import batches, upkeep
from ledger.store.upgrade import connect

MOST_SKEW = timedelta(seconds=30)
SWEPT_EVERY = timedelta(hours=1)  # at least, where a batch is open
MOST_OPEN = 100  # batches, the oldest, that are looked at
_DISTRIBUTIONS = ("pyspark", "pyspark-client", "apache-airflow")


def examine_installation(settings: Settings, remote: str | None = None) -> list[Finding]:
    """Check everything that does not depend on a pipeline.

    ``remote``: a Spark Connect server, instead of the Java and the spark-submit of this machine.
    """
    by_airflow = remote is None and _installed("apache-airflow") is not None
    # Before the storage, which may be in the home of the embedded server: that has to let it in.
    database = finding("database", partial(at_revision, settings))
    return [
        finding("versions", _versions),
        *spark(remote),
        *([finding("spark-submit", _spark_submit)] if by_airflow else []),
        database,
        finding("storage", partial(require_storage, settings)),
        *(_in_ledger(settings) if database.ok else []),
    ]


def _in_ledger(settings: Settings) -> list[Finding]:
    """Check the roles, the clock, the sweeper and the batches in the database."""
    database = connect(settings)
    try:
        return [
            finding("roles", lambda: _roles(database)),
            finding("clock", lambda: _clock(database)),
            finding("sweeper", lambda: _sweeper(database)),
            finding("batches", lambda: _batches(database)),
        ]
    finally:
        database.dispose()


def _versions() -> str:
    """Return the installed versions. Raises ConfigurationError without PySpark, or if two
    distributions share files.
    """
    versions = {name: _installed(name) for name in _DISTRIBUTIONS}
    spark_, client = versions["pyspark"], versions["pyspark-client"]
    if spark_ is None:
        raise ConfigurationError("PySpark is not installed: pip install ackledger")
    if client is not None and client != spark_:
        raise ConfigurationError(
            f"pyspark {spark_} and pyspark-client {client} are installed, and write the same files:"
            f" pip install --force-reinstall pyspark-client=={spark_} pyspark=={spark_}"
        )
    airflow = versions["apache-airflow"]
    return ", ".join(
        [
            f"ackledger {metadata.version('ackledger')}",
            f"Python {platform.python_version()}",
            f"PySpark {spark_}",
            "no Airflow" if airflow is None else f"Airflow {airflow}",
        ]
    )


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _spark_submit() -> str:
    path = shutil.which(spark_program())
    if path is None:
        raise ConfigurationError(
            "there is no spark-submit beside this Python or on PATH, by which Airflow's tasks start"
            " Spark: add the bin folder of the environment that has PySpark"
        )
    return path


def _roles(database: Database) -> str:
    """Return the roles that the ledger's user has, and those that it lacks. Raises
    ConfigurationError if it lacks one that a run needs.
    """
    held = database.transact(lambda c: upkeep.roles_held(c, list(_ROLES)), engine=database.plain)
    missing = [role for role in (WRITER, READER) if role not in held]
    if missing:
        raise ConfigurationError(
            f"the user of {database.shown} lacks {' and '.join(missing)}: GRANT"
            f" {', '.join(missing)} TO that user, as an administrator of the server"
        )
    without = [f"without {role} ({_ROLES[role]})" for role in _ROLES if role not in held]
    return ", ".join([*held, *without])


# And what cannot be done without it.
_ROLES = {
    WRITER: "run, replay, publish, explain, trace",
    READER: "status, failed",
    PAYLOAD_READER: "content of failed records",
    OWNER: "db upgrade, sweep",
}


def _clock(database: Database) -> str:
    """Return how far this machine's clock is from the database's, in words. Raises
    ConfigurationError if they differ by more than ``MOST_SKEW``, since leases go by the database's
    clock.
    """
    before = datetime.now(UTC)
    theirs = database.transact(upkeep.last_sweep, engine=database.reader).now
    after = datetime.now(UTC)
    skew = max(before - theirs, theirs - after, timedelta(0))
    text = f"within {max(1, round(skew.total_seconds()))} s of the database's"
    if skew > MOST_SKEW:
        raise ConfigurationError(
            f"this machine's clock and the database's differ by {skew.total_seconds():.0f} s:"
            " leases go by the database's, file times and Airflow's by this one. Let both follow"
            " one time server"
        )
    return text


def _sweeper(database: Database) -> str:
    """Return when the sweeper last ran. Raises ConfigurationError if a batch has been waiting for
    it.
    """
    row = database.transact(upkeep.last_sweep, engine=database.reader)
    ago = "it never ran" if row.swept_at is None else f"it ran {_ago(row.now - row.swept_at)}"
    waited = row.opened_at is not None and row.now - row.opened_at > SWEPT_EVERY
    if waited and (row.swept_at is None or row.now - row.swept_at > SWEPT_EVERY):
        raise ConfigurationError(
            f"{ago}, and batch {row.open_batch_id} has been open since"
            f" {row.opened_at:%Y-%m-%d %H:%M}: unpause the DAG ledger_sweeper, or let cron run"
            " 'ackledger sweep'. Without it a batch whose run died is never decided"
        )
    return ago


def _batches(database: Database) -> str:
    """Return that no batch waits for a machine that can read its storage. Raises ConfigurationError
    for batches that have waited for an hour.
    """

    def waiting(connection: Connection) -> list[int]:
        numbers = upkeep.open_for(connection, SWEPT_EVERY, MOST_OPEN)
        opened = [batches.get_batch(connection, number) for number in numbers]
        return [batch.batch_id for batch in opened if needs_refinement(connection, batch)]

    unsettled = database.transact(waiting, engine=database.reader)
    if unsettled:
        raise ConfigurationError(
            f"{quantity(len(unsettled), 'batch', 'batches')} can be settled only where the storage"
            f" is seen: run {ackledger('settle', unsettled[0])} there, and let the sweeper run"
            " where it sees the storage"
        )
    return "none waits for a machine with its storage"


def _ago(passed: timedelta) -> str:
    seconds = round(passed.total_seconds())
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        count = seconds // size
        if count:
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"
