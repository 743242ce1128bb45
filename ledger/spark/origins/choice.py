"""Which origin the records of a run have."""

from sqlalchemy import Connection

from ledger.batch.claims import claim_of, reread_claim
from ledger.batch.source_positions import position_of
from ledger.batch.step_runs import OpenedRun
from ledger.core.probes import reached
from ledger.core.states import BatchKind
from ledger.pipeline.steps import SourceStep
from ledger.sources.base import SourceReader
from ledger.spark.job import Job
from ledger.spark.origins.base import Origin
from ledger.spark.origins.claim import FromClaim
from ledger.spark.origins.position import FromPosition, FromRun
from ledger.spark.origins.replay import FromRecords, FromUnits
from ledger.spark.origins.reread import FromSource
from ledger.store.queries import batches, replays


def origin_of(job: Job, run: OpenedRun, step: SourceStep, reader: SourceReader) -> Origin:
    """Where the records of a run of a source come from. ``reader``: reads that source.

    Waits for the run that reads a source which keeps its own position; raises NotReadyError if
    that takes too long.
    """
    if run.batch.kind is BatchKind.REPLAY:
        if job.pipeline.graph.in_units(step.name):
            return FromUnits(job, run, step, reader)
        return job.database.transact(lambda c: _replay(c, job, run, step, reader))
    claimed = job.database.transact(lambda c: claim_of(c, run.batch.batch_id, step.name))
    if step.hooks is None:
        return FromClaim(job, run, step, reader, claimed)
    position = position_of(job.database, run)
    reached("position taken", step.name)
    if position.again is not None:
        return FromRun(job, run, step, reader, position.again)
    committed = None if position.previous is None else position.previous.snapshot
    if position.after_failure:
        step.hooks.roll_back(committed)
    step.hooks.init_state(committed)
    return FromPosition(job, run, step, reader, claimed, step.hooks, position)


def _replay(
    connection: Connection, job: Job, run: OpenedRun, step: SourceStep, reader: SourceReader
) -> Origin:
    batch = run.batch
    messages = replays.claimed_messages(connection, batch.batch_id, step.name)
    if not messages or not (batch.selection or {}).get("from_source"):
        return FromRecords(job, run, step, reader, messages)
    original = batches.get_batch(connection, batch.original_id)
    claimed = reread_claim(connection, batch, step.name)
    expired = original.files_expired_at is not None
    return FromSource(job, run, step, reader, messages, claimed, expired)
