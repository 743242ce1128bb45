"""ackledger: every record of a batch pipeline tracked from source to sink, in PostgreSQL."""

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
