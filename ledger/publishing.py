"""Publish: show in its sinks what was decided of a settled batch, each sink in one moment, once.

Two phases. Sinks stage, and the settlement decides, in one transaction, that they are to show it; from
there everything goes forward only. Whoever dies in between, the next one finds the decision and asks the
sink's own record whether it was carried out.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row

from ledger.database.connection import Database
from ledger.delivery import Delivery
from ledger.errors import FencedError, NotReadyError
from ledger.manifest import DataFile
from ledger.pipeline import Pipeline
from ledger.publishers.making import publisher_of
from ledger.queries import batches, publications, runs
from ledger.settings import Settings
from ledger.steps import SinkStep

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """What a sink shows now of a batch."""

    batch_id: int
    sink: str
    rows: int


def needs_withholding(database: Database, batch_id: int) -> bool:
    """Whether rows of failed records are yet to be left out of what is to be shown, or units to be asked for
    again: by a Spark job, see ``ledger.spark.withhold``."""
    found = database.transact(lambda c: publications.pending(c, batch_id))
    asleep = database.transact(lambda c: publications.asleep(c, batch_id))
    return bool(asleep) or any(not row.ready for row in found)


def publish(
    database: Database,
    settings: Settings,
    pipeline: Pipeline,
    batch_id: int,
    sinks: Collection[str] | None = None,
) -> list[Published]:
    """Show what is decided of a batch's family and not shown yet; what was shown, in order.

    ``sinks``: in these; None: in those of records, which wait for nothing that follows the settlement. What is wrong with one sink keeps no other waiting; it is raised at the end. Repeating
    it is harmless. Raises NotReadyError while rows are yet to be withheld, or somebody else is
    publishing the same.
    """
    found = database.transact(lambda c: publications.pending(c, batch_id))
    followers = {step.name for step in pipeline.followers()}
    done: list[Published] = []
    failed: dict[str, Exception] = {}
    for row in found:
        chosen = row.sink not in followers if sinks is None else row.sink in sinks
        if row.sink in failed or not chosen:
            continue  # a sink shows the batches of a family in order
        work = partial(_publish, settings=settings, pipeline=pipeline, row=row)
        try:
            shown = database.transact(work)
        except Exception as exc:  # of one sink: the others do not wait for it
            failed[row.sink] = exc
            continue
        if shown is not None:
            done.append(shown)
    for failure in failed.values():
        raise failure
    return done


def _publish(
    connection: Connection, settings: Settings, pipeline: Pipeline, row: Row[Any]
) -> Published | None:
    """Show one delivery, under the lock of its record; None if that was done, or is not to be any more."""
    locked = publications.lock_pending(connection, row.batch_id, row.sink)
    if locked is None:
        if publications.state(connection, row.batch_id, row.sink) in ("published", "replaced"):
            return None
        raise NotReadyError(
            f"sink {row.sink!r} of batch {row.batch_id} is being published by another process: wait for it"
        )
    if not locked.ready:
        raise NotReadyError(
            f"sink {row.sink!r} of batch {row.batch_id}: rows of failed records are yet to be withheld; in Airflow the "
            "task withhold does it, else: ackledger publish MODULE:PIPELINE"
        )
    holder = batches.holder(connection, locked.original_id)
    if publications.unpublished_of(connection, holder, locked.batch_id, row.sink):
        raise NotReadyError(
            f"sink {row.sink!r} of batch {row.batch_id}, a part of the interval of batch {holder}, waits until that one is "
            "shown: publish it first, or replay what of it is failed"
        )
    step = pipeline.step(row.sink)
    assert isinstance(step, SinkStep)
    replaces = publications.replaced_batches(connection, row.batch_id, row.stage_run_id)
    publisher = publisher_of(settings, pipeline.name, step)
    files = _files(connection, locked)
    delivery = Delivery(
        sink=f"{locked.pipeline}.{locked.sink}",
        batch_id=locked.batch_id,
        version=locked.stage_run_id,
        interval_start=locked.interval_start,
        original_id=holder,  # parts of one interval are one family to a sink: they complete each other
        folder=locked.folder or publisher.staging(locked.batch_id, locked.stage_run_id),
        files=files,
        replaces=tuple(replaces),
        interval_end=locked.interval_end,
    )
    try:
        publisher.publish(delivery)
    except FencedError as exc:  # by the sink's own record something newer took its place, for good
        _log.warning("%s", exc)
        publications.set_replaced(connection, [locked.batch_id], locked.sink)
        return None
    publications.set_published(connection, locked.batch_id, locked.sink)
    publications.set_replaced(connection, replaces, locked.sink)
    return Published(locked.batch_id, locked.sink, sum(file.rows for file in files))


def _files(connection: Connection, row: Row[Any]) -> tuple[DataFile, ...]:
    """The files that hold just what is to be shown."""
    if row.files is not None:
        return tuple(DataFile(**file) for file in row.files)
    staged = runs.files(connection, row.stage_run_id)
    return tuple(DataFile(one.path, one.bytes, one.rows, one.first_position) for one in staged)
