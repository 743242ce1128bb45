"""The publisher of a declared sink."""

import os

from ledger.errors import ConfigurationError
from ledger.settings import Settings
from ledger.sinks.base import Publisher
from ledger.sinks.delta.sink import DeltaSink
from ledger.sinks.parquet.sink import ParquetSink
from ledger.sinks.postgres.sink import PostgresSink

Sink = ParquetSink | DeltaSink | PostgresSink

_FROM_ENVIRONMENT = "env:"


def publisher_of(settings: Settings, pipeline: str, name: str, sink: Sink) -> Publisher:
    """How the sink ``name`` of ``pipeline`` is written to; connects to nothing."""
    if isinstance(sink, ParquetSink):
        from ledger.sinks.parquet.publisher import ParquetPublisher

        return ParquetPublisher(settings.output_path(sink.path))
    if isinstance(sink, DeltaSink):
        from ledger.sinks.delta.publisher import DeltaPublisher

        return DeltaPublisher(settings.output_path(sink.path), sink.partition_by)
    from ledger.sinks.postgres.publisher import PostgresPublisher

    return PostgresPublisher(
        _address(sink.url, name),
        sink.table,
        key=sink.key,
        mode=sink.mode,
        staging_root=f"{settings.storage_root()}/{pipeline}/{name}",
    )


def database_of(url: str) -> object:
    """What is equal for the URLs of one database, whoever logs in there and however they are given."""
    from ledger.sinks.postgres.connection import parsed

    given = os.environ.get(url.removeprefix(_FROM_ENVIRONMENT), url)
    try:
        known = parsed(given if url.startswith(_FROM_ENVIRONMENT) else url)
    except ConfigurationError:  # whoever uses it is told
        return url
    return known.host, known.port or 5432, known.database, dict(known.query)


def _address(url: str, sink: str) -> str:
    """The URL, or the one that an environment variable holds."""
    if not url.startswith(_FROM_ENVIRONMENT):
        return url
    name = url.removeprefix(_FROM_ENVIRONMENT)
    if name not in os.environ:
        raise ConfigurationError(
            f"sink {sink!r} takes its URL from the environment variable {name}, which is not set: set it to "
            "postgresql+psycopg2://user@host/database where the sink's tasks run"
        )
    return os.environ[name]
