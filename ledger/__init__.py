"""ackledger: every record of a batch pipeline tracked from source to sink, in PostgreSQL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.anchors import collect_anchors, merge_anchors
    from ledger.errors import LedgerError
    from ledger.marks import FailedRecord, acked, dropped, failed
    from ledger.pipeline import Pipeline
    from ledger.sinks import Bloom, DeltaSink, ParquetSink, PostgresSink
    from ledger.sources import FileSource, TableSource
    from ledger.stateful import StatefulSource, StatefulStage

__all__ = [
    "Bloom",
    "DeltaSink",
    "FailedRecord",
    "FileSource",
    "LedgerError",
    "ParquetSink",
    "Pipeline",
    "PostgresSink",
    "StatefulSource",
    "StatefulStage",
    "TableSource",
    "acked",
    "collect_anchors",
    "dropped",
    "failed",
    "merge_anchors",
]
_MODULES = {
    "anchors": ("collect_anchors", "merge_anchors"),
    "errors": ("LedgerError",),
    "marks": ("FailedRecord", "acked", "dropped", "failed"),
    "pipeline": ("Pipeline",),
    "sinks": ("Bloom", "DeltaSink", "ParquetSink", "PostgresSink"),
    "sources": ("FileSource", "TableSource"),
    "stateful": ("StatefulSource", "StatefulStage"),
}


def __getattr__(name: str) -> Any:
    """A name of ``__all__``, imported when it is asked for: each process of Airflow loads the plugin, few a pipeline."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"ledger.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
