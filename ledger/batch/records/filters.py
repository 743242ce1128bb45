"""Checks of the names by which a person chooses records or batches: an unknown name raises an error
with a suggestion, instead of an empty answer.
"""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection

from ledger.errors import InputError, suggestion
from ledger.store.queries import batches, failures, pipelines, records
from ledger.store.queries.batches import Batch

_FEW = 5  # reasons that a message names


def require_names(connection: Connection, filters: Mapping[str, Any]) -> None:
    """Raise InputError if the ledger does not know one of these: pipeline, batch_id, step, source,
    reason (a SQL pattern), record. A name that is None or omitted matches any. Other filters are
    not looked at.
    """
    pipeline, batch_id = filters.get("pipeline"), filters.get("batch_id")
    if pipeline is not None:
        require_pipeline(connection, pipeline)
    if batch_id is not None:
        require_batch(connection, batch_id, pipeline)
    scope = {"pipeline": pipeline, "batch_id": batch_id}
    if filters.get("step") is not None:
        _require("step", filters["step"], scope, pipelines.steps(connection, scope))
    if filters.get("source") is not None:
        _require("source", filters["source"], scope, pipelines.steps(connection, scope, "source"))
    if filters.get("reason") is not None:
        _require_reason(connection, scope, filters["reason"])
    if filters.get("record") is not None:
        _require_record(connection, scope, filters["record"])


def require_pipeline(connection: Connection, name: str) -> None:
    """Raise InputError unless a batch of this pipeline was ever opened."""
    names = pipelines.names(connection)
    if name not in names:
        raise InputError(f"the ledger has no batch of a pipeline {name!r}{suggestion(name, names)}")


def require_batch(connection: Connection, batch_id: int, pipeline: str | None = None) -> Batch:
    """Return the batch of this number. Raises InputError if there is none, or if it belongs to
    another pipeline.
    """
    batch = batches.get_batch(connection, batch_id)
    if pipeline is not None and batch.pipeline != pipeline:
        raise InputError(f"batch {batch_id} is of pipeline {batch.pipeline!r}, not {pipeline!r}")
    return batch


def _require(what: str, name: str, scope: Mapping[str, Any], candidates: Collection[str]) -> None:
    if candidates and name not in candidates:
        raise InputError(f"{_where(scope)} has no {what} {name!r}{suggestion(name, candidates)}")


def _require_reason(connection: Connection, scope: Mapping[str, Any], pattern: str) -> None:
    if failures.has_reason(connection, scope, pattern):
        return
    reasons = failures.reasons(connection, scope)
    if reasons:  # else nothing of it has ever failed, and no reason can be misspelt
        meant = suggestion(pattern, reasons)
        if not meant.endswith("?"):
            meant = suggestion(pattern, reasons[:_FEW])
        raise InputError(
            f"no record of {_where(scope)} has failed for a reason like {pattern!r}{meant}"
        )


def _require_record(connection: Connection, scope: Mapping[str, Any], number: int) -> None:
    record = records.failed_record(connection, number) or records.emitted_root(connection, number)
    batch = batches.get_batch(connection, record.batch_id)
    pipeline, asked = scope["pipeline"], scope["batch_id"]
    family = None if asked is None else batches.get_batch(connection, asked).original_id
    if pipeline in (None, batch.pipeline) and family in (None, batch.original_id):
        return
    raise InputError(
        f"record {number} is of batch {batch.batch_id} of pipeline {batch.pipeline!r}, not of"
        f" {_where(scope)}"
    )


def _where(scope: Mapping[str, Any]) -> str:
    if scope["batch_id"] is not None:
        return f"batch {scope['batch_id']}"
    return "the ledger" if scope["pipeline"] is None else f"pipeline {scope['pipeline']!r}"
