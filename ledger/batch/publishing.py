"""Publish the decided rows of a batch in its sinks, each sink at one instant, once.

There are two phases. Sinks stage their rows. Then one transaction decides that they publish them:
the settlement or, with the guarantee at least once, the commit of the sink's run. After that there
is no way back. If a driver dies in between, the next one finds the decision and asks the sink's own
record whether it was carried out.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from ledger.batch.advice import batches as advice
from ledger.batch.advice.actions import sentences
from ledger.batch.context import Context
from ledger.core.commands import CLEAR_SETTLE
from ledger.core.probes import reached
from ledger.errors import FencedError, LostFileError, NotReadyError, marked_text, redacted
from ledger.pipeline.load import known_target
from ledger.pipeline.pipeline import Pipeline
from ledger.sinks.base import Delivery, Publisher
from ledger.storage.manifest import DataFile
from ledger.store.connection import Database
from ledger.store.queries import batches, checkpoints, publications, runs
from ledger.store.queries.batches import Batch
from ledger.store.queries.publications import PendingPublication

_log = logging.getLogger(__name__)

_DONE = ("published", "replaced", "superseded")


@dataclass(frozen=True)
class Published:
    """Rows of a batch that a sink has just published."""

    batch_id: int
    sink: str
    rows: int


def needs_withholding(database: Database, batch_id: int) -> bool:
    """Return whether rows of failed records still have to be left out of the rows to publish, which
    takes a Spark job: see ``ledger.spark.steps.withhold``.
    """
    decided = database.transact(lambda c: publications.pending(c, batch_id))
    return any(not row.ready for row in decided)


@contextmanager
def publication_errors(at: Context, row: PendingPublication) -> Iterator[None]:
    """Add to an error of this block which publication failed, and how to go on once its cause is
    fixed.
    """
    try:
        yield
    except Exception as exc:
        failure = _lost_file(at, row, exc) if isinstance(exc, LostFileError) else exc
        if at.pipeline.redact:
            failure = redacted(failure)
        if not isinstance(exc, LostFileError):  # which has its advice
            actions = sentences(advice.publish(known_target(at.pipeline), row.batch_id))
            failure.add_note(f"Sink {row.sink!r} has not published batch {row.batch_id}. {actions}")
        if failure is exc:
            raise
        raise failure from None


def _lost_file(at: Context, row: PendingPublication, exc: LostFileError) -> Exception:
    """Return the error for a lost file, with what to do. A settled batch runs no step again, so
    only a run of its interval can restore the rows of the file.
    """
    text = marked_text(exc)
    what, _, _ = text.rpartition(". ")  # without its own advice
    again = sentences(advice.publish(known_target(at.pipeline), row.batch_id))
    other = at.database.transact(lambda c: _instead_of_the_file(c, at.pipeline, row.original_id))
    return LostFileError(
        f"sink {row.sink!r} cannot publish batch {row.batch_id}: {what or text}."
        f" Put the file back, then publish again. {again}. {other}"
    )


def _instead_of_the_file(connection: Connection, pipeline: Pipeline, original_id: int) -> str:
    if any(step.incremental for step in pipeline.sources()):
        return "Nothing else helps: an incremental source has no interval to reprocess"
    states = [step.name for step in pipeline.states()]
    for state in checkpoints.committed_of(connection, original_id, states):
        return f"Its interval cannot be reprocessed: the state {state!r} includes the batch"
    batch = batches.get_batch(connection, original_id)
    return sentences(advice.instead_of_a_lost_file(batch, known_target(pipeline)))


def publish(at: Context, batch_id: int, sinks: Collection[str] | None = None) -> list[Published]:
    """Publish the decided rows of a batch's family that are not published yet: batch by batch, and
    within a batch in the order in which the sinks are declared. Return what was published, in
    order.

    ``sinks``: only these; None: the sinks of records, which wait for no follow-up of the
    settlement.

    An error of one sink does not keep the others from publishing; it is raised at the end. Safe to
    repeat. Raises NotReadyError while rows have yet to be withheld, or while another process
    publishes the same rows.
    """
    decided = at.database.transact(lambda c: publications.pending(c, batch_id))
    followers = {step.name for step in at.pipeline.followers()}
    places = {step.name: place for place, step in enumerate(at.pipeline.sinks())}
    done: list[Published] = []
    failed: dict[str, Exception] = {}
    # A sink that is no longer declared comes last.
    for row in sorted(decided, key=lambda row: (row.batch_id, places.get(row.sink, len(places)))):
        if row.sink in followers if sinks is None else row.sink not in sinks:
            continue
        if row.sink in failed:
            continue  # a sink publishes the batches of a family in order
        try:
            with publication_errors(at, row):
                published = at.database.transact(partial(publish_one, at=at, row=row))
        except Exception as exc:  # of one sink: the others do not wait for it
            failed[row.sink] = exc
            continue
        if published is not None:
            done.append(published)
            _log.info(
                "sink %r: batch %s is published, %s rows",
                published.sink,
                published.batch_id,
                f"{published.rows:,}",
            )
    for failure in failed.values():
        raise failure
    reached("batch published")
    return done


def publish_one(connection: Connection, at: Context, row: PendingPublication) -> Published | None:
    """Publish one delivery, under the lock of its publication; None if that was done already, or is
    no longer to be done.
    """
    locked = publications.lock_pending(connection, row.step_run_id)
    if locked is None:
        if publications.states(connection, row.batch_id)[row.step_run_id] in _DONE:
            return None
        raise NotReadyError(
            f"sink {row.sink!r} of batch {row.batch_id} is being published by another process: wait"
            " for it"
        )
    if not locked.ready:
        asked = (known_target(at.pipeline), row.batch_id, "To withhold them")
        actions = advice.publish(*asked, CLEAR_SETTLE)
        raise NotReadyError(
            f"sink {row.sink!r} of batch {row.batch_id}: rows of failed records are yet to be"
            f" withheld. {sentences(actions)}"
        )
    sink = at.pipeline.sink_named(row.sink).sink
    publisher = sink.publisher(at.settings, at.pipeline.name, row.sink)
    batch = batches.get_batch(connection, locked.batch_id)
    files = runs.files(connection, locked.step_run_id)
    if locked.files is not None:  # without the rows that are withheld
        files = tuple(DataFile(**file) for file in locked.files)
    run = (locked.sink, locked.step_run_id)
    delivery = delivery_of(connection, publisher, batch, *run, files, folder=locked.folder)
    reached("publishing", locked.sink)
    try:
        publisher.publish(delivery)
    except FencedError as exc:  # by the sink's own record something newer replaced it permanently
        _log.warning("%s", exc)
        publications.set_replaced(connection, [locked.batch_id], locked.sink)
        return None
    reached("published", locked.sink)
    publications.set_published(connection, locked.step_run_id)
    reached("recording publication", locked.sink)
    publications.set_replaced(connection, delivery.replaces, locked.sink)
    reached("recording replacement", locked.sink)
    return Published(locked.batch_id, locked.sink, delivery.rows)


def delivery_of(
    connection: Connection,
    publisher: Publisher,
    batch: Batch,
    sink: str,
    run_id: int,
    files: tuple[DataFile, ...],
    replaces: Collection[int] = (),
    folder: str | None = None,
) -> Delivery:
    """Return the staged output of a sink's run as it would be published now.

    ``replaces``: batches to replace beside those that the ledger has noted.
    ``folder``: the folder of the files; None: the folder where the run staged them.
    """
    noted = publications.replaced_batches(connection, batch.batch_id, run_id)
    return Delivery(
        sink=f"{batch.pipeline}.{sink}",
        batch_id=batch.batch_id,
        version=run_id,
        interval_start=batch.interval_start,
        original_id=batch.original_id,
        folder=folder or publisher.staging(batch.batch_id, run_id),
        files=files,
        replaces=tuple(sorted({*noted, *replaces})),
        interval_end=batch.interval_end,
        is_first=not publications.has_earlier(connection, batch.batch_id, sink, run_id),
        pipeline_since=batch.pipeline_since,
    )
