"""The declaration of a table in PostgreSQL."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.sinks.base import Publisher
from ledger.sinks.postgres.declared import TableSink

if TYPE_CHECKING:
    from ledger.settings import Settings


@dataclass(frozen=True)
class PostgresSink(TableSink):
    """A table in PostgreSQL, on whichever server: ``PostgresSink(url, "reporting.departures")``.

    Each batch is one transaction there, with a record of its own. ``url``: of SQLAlchemy, or the
    name of an environment variable that holds it, as ``env:REPORTING_URL``. ``mode``: ``append``;
    ``upsert`` by ``key``, where an older row never overwrites a newer one; ``replace_interval``:
    what other batches published of the same interval is removed.
    """

    def publisher(self, settings: "Settings", pipeline: str, name: str) -> Publisher:
        """See ``Sink``. Raises ConfigurationError if the variable that holds the URL is not set."""
        from ledger.sinks.postgres.publisher import PostgresPublisher

        return PostgresPublisher(
            self.url,
            self.table,
            key=self.key,
            mode=self.mode,
            staging_root=f"{settings.storage_root()}/{pipeline}/{name}",
        )
