"""Choose the origin that the records of a run come from."""

from sqlalchemy import Connection

from ledger.batch.claims import claim_of, reread_claim
from ledger.batch.step_runs import OpenedRun
from ledger.core.states import BatchKind
from ledger.pipeline.steps import SourceStep
from ledger.sources.base import SourceReader
from ledger.spark.job import Job
from ledger.spark.origins.base import Origin
from ledger.spark.origins.claim import FromClaim
from ledger.spark.origins.replay import FromBatch, FromRecords
from ledger.spark.origins.reread import FromSource
from ledger.store.queries import batches, payloads


def origin_of(job: Job, run: OpenedRun, step: SourceStep, reader: SourceReader) -> Origin:
    """Return the origin of the records in a run of a source. ``reader``: reads that source."""
    if run.batch.kind is BatchKind.REPLAY:
        if run.batch.is_whole:
            return FromBatch(job, run, step, reader)
        return job.database.transact(lambda c: _replay(c, job, run, step, reader))
    claim = job.database.transact(lambda c: claim_of(c, run.batch.batch_id, step.name))
    return FromClaim(job, run, step, reader, claim)


def _replay(
    connection: Connection, job: Job, run: OpenedRun, step: SourceStep, reader: SourceReader
) -> Origin:
    batch = run.batch
    emits = payloads.claimed(connection, batch.batch_id, batch.original_id, step.name)
    if not emits or not (batch.selection or {}).get("from_source"):
        return FromRecords(job, run, step, reader, emits)
    original = batches.get_batch(connection, batch.original_id)
    claim = reread_claim(connection, batch, step.name)
    expired = original.files_expired_at is not None
    return FromSource(job, run, step, reader, emits, claim, expired)
