"""Notify sources of the messages that were acked or failed, once their batch is settled
permanently.
"""

from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.batch.state_runs import call_in_order
from ledger.core.column_names import MESSAGE, RAW, ROOT, is_own
from ledger.core.probes import reached
from ledger.errors import NotReadyError
from ledger.pipeline.steps import SourceStep
from ledger.spark.frames.inputs import as_copied
from ledger.spark.frames.stored import positioned
from ledger.spark.job import Job
from ledger.store.queries import batches, claims, publications, runs
from ledger.store.queries.runs import Emit
from ledger.types.spark import local_rows


def notify(job: Job, batch_id: int) -> list[str]:
    """Call ``on_ack`` and ``on_fail`` of the batch's sources that have not been notified yet, and
    return their names. Call ``commit`` for every range that is committed as a whole.

    A source counts as notified after its calls have returned, so each call is made at least once.
    Raises NotReadyError unless the batch is settled or superseded, and any error of a call.
    """
    batch = job.database.transact(lambda c: batches.get_batch(c, batch_id))
    if not batch.status.decided:
        raise NotReadyError(
            f"batch {batch_id} is {batch.status.words}: sources are notified once it is settled"
        )
    names = []
    for emit in job.database.transact(lambda c: runs.emits(c, batch_id)):
        step = job.pipeline.source_named(emit.source)
        if step.source.commits:
            _commit_ranges(job, step)
        if emit.notified_at is None and step.wants_notice:
            if step.has_callbacks:
                _notify(job, step, emit)
            reached("source notified", step.name)
            job.database.transact(
                partial(batches.set_notified, batch_id=batch_id, source=step.name)
            )
            reached("notice recorded", step.name)
            names.append(step.name)
    return names


def _commit_ranges(job: Job, step: SourceStep) -> None:
    """Notify a source of each range that is committed as a whole, in order. It never fails."""
    ends = job.database.transact(lambda c: claims.uncommitted(c, job.pipeline.name, step.name))
    call_in_order(
        job.database,
        job.pipeline,
        step.name,
        list(ends),
        lambda batch_id: step.source.commit(batch_id, ends[batch_id]),
        partial(claims.set_committed, source=step.name),
    )


def _notify(job: Job, step: SourceStep, emit: Emit) -> None:
    """Call ``on_ack`` with the acked messages of an emit, and ``on_fail`` with the failed messages,
    with step and reason.
    """
    messages = _messages(job, emit)
    rows = job.database.transact(lambda c: publications.failed_roots(c, emit.batch_id))
    columns = {
        ROOT: pa.array([row.root_id for row in rows], pa.int64()),
        "step": pa.array([row.step for row in rows], pa.string()),
        "reason": pa.array([row.reason for row in rows], pa.string()),
    }
    failed = local_rows(job.spark, columns)
    if step.on_ack is not None:
        step.on_ack(emit.batch_id, messages.join(failed, ROOT, "left_anti").drop(ROOT, "raw"))
    reached("acks notified", step.name)
    if step.on_fail is not None:
        step.on_fail(emit.batch_id, messages.join(failed, ROOT, "inner").drop(ROOT))


def _messages(job: Job, emit: Emit) -> DataFrame:
    """Return every message of an emit: ``message_id``; ``record``, a struct, because the source's
    columns may have any name; ``raw``; and the root.
    """
    manifest = job.manifest(emit.emit_run_id)
    stored = as_copied(positioned(job.spark, manifest, ROOT, emit.first_root))
    if emit.roots < manifest.rows:  # the others are untracked
        stored = stored.where(F.col(ROOT) < emit.numbers.stop)
    message = F.col(MESSAGE if MESSAGE in stored.columns else ROOT)
    record = F.struct(*(f"`{name}`" for name in stored.columns if not is_own(name)))
    raw = F.col(RAW).cast("string").alias("raw")
    return stored.select(message.alias("message_id"), record.alias("record"), raw, ROOT)
