"""ackledger: every record of a batch pipeline tracked from source to sink, in PostgreSQL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.auditing.functions import audit
    from ledger.core.outcomes import FailedRecord, acked, dropped, failed
    from ledger.core.stateful import StatefulStage
    from ledger.errors import LedgerError
    from ledger.pipeline.anchors import collect_anchors, merge_anchors
    from ledger.pipeline.pipeline import Pipeline
    from ledger.sinks.delta.sink import DeltaSink
    from ledger.sinks.options import Bloom, Upsert
    from ledger.sinks.parquet.sink import ParquetSink
    from ledger.sinks.postgres.sink import PostgresSink
    from ledger.sources.delta.source import DeltaSource
    from ledger.sources.files.source import FileSource
    from ledger.sources.offsets import OffsetSource
    from ledger.sources.sql.source import SqlSource

__all__ = [
    "Bloom", "DeltaSink", "DeltaSource", "FailedRecord", "FileSource", "LedgerError",
    "OffsetSource", "ParquetSink", "Pipeline", "PostgresSink", "SqlSource", "StatefulStage",
    "Upsert", "acked", "audit", "collect_anchors", "dropped", "failed", "merge_anchors",
]  # fmt: skip
_MODULES = {
    "auditing.functions": ("audit",),
    "core.outcomes": ("FailedRecord", "acked", "dropped", "failed"),
    "core.stateful": ("StatefulStage",),
    "errors": ("LedgerError",),
    "pipeline.anchors": ("collect_anchors", "merge_anchors"),
    "pipeline.pipeline": ("Pipeline",),
    "sinks.delta.sink": ("DeltaSink",),
    "sinks.options": ("Bloom", "Upsert"),
    "sinks.parquet.sink": ("ParquetSink",),
    "sinks.postgres.sink": ("PostgresSink",),
    "sources.delta.source": ("DeltaSource",),
    "sources.files.source": ("FileSource",),
    "sources.offsets": ("OffsetSource",),
    "sources.sql.source": ("SqlSource",),
}


def __getattr__(name: str) -> Any:
    """Import a public name on first access, because few processes of Airflow need one. Raises
    AttributeError for any other name.
    """
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"ledger.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
