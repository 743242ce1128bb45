"""Guards of states over batches: they refuse to open a batch if a state includes what the batch
would deliver again, or a batch that comes after it.
"""

from sqlalchemy import Connection

from ledger.core.states import PublishPolicy
from ledger.errors import InputError
from ledger.pipeline.pipeline import Pipeline
from ledger.store.queries import checkpoints
from ledger.store.queries.batches import Batch

REBUILD = (
    "give the stage and its sinks new names and reprocess the intervals in order, so that the state"
    " is built again"
)


def check_replaced(connection: Connection, pipeline: Pipeline, batch_id: int) -> None:
    """Raise InputError if a state includes the batch to replace, because no batch can be taken out
    of a state again.
    """
    taken = checkpoints.committed_of(connection, batch_id, _states(pipeline))
    if taken:
        raise InputError(
            f"the state {taken[0]!r} of pipeline {pipeline.name!r} includes batch {batch_id}, and"
            f" would count its records twice: replay what failed; to correct the source {REBUILD}"
        )


def check_quarantined(connection: Connection, pipeline: Pipeline, original: Batch) -> None:
    """Raise InputError if quarantined records of an original can no longer be replayed because of a
    state.

    A quarantined record may be replayed with its whole batch, whose other records a state includes.
    With publish="complete" it keeps its original's place in the order of batches, which a state may
    have passed.
    """
    states = _states(pipeline) if original.is_whole else []
    counted = checkpoints.committed_of(connection, original.batch_id, states)
    if counted:
        raise InputError(
            f"a quarantined record of pipeline {pipeline.name!r} would replay its whole batch,"
            f" and the state {counted[0]!r} includes the rest of it: {REBUILD}"
        )
    later = _later(connection, pipeline, original)
    if later is not None:
        state, batch_id = later
        raise InputError(
            f"a quarantined record of batch {original.batch_id} of pipeline {pipeline.name!r}"
            f" belongs before batch {batch_id}, "
            f'which the state {state!r} includes, and with publish="complete" it keeps to the order'
            f" of batches: {REBUILD}"
        )


def check_reopened(connection: Connection, pipeline: Pipeline, batch: Batch) -> None:
    """Raise InputError for an abandoned batch with publish="complete" if a state includes a batch
    that comes after it.
    """
    later = _later(connection, pipeline, batch)
    if later is not None:
        state, batch_id = later
        raise InputError(
            f"batch {batch.batch_id} of pipeline {pipeline.name!r} was abandoned, and the state"
            f" {state!r} includes batch "
            f'{batch_id} after it, which with publish="complete" keeps to the order of batches:'
            " open its interval in a new "
            f"run, whose batch comes after that one; or {REBUILD}"
        )


def _later(connection: Connection, pipeline: Pipeline, batch: Batch) -> tuple[str, int] | None:
    """Return a state that includes a batch after this one, and that batch; None if there is none,
    or if this batch does not have publish="complete".
    """
    if batch.publish is not PublishPolicy.COMPLETE:
        return None
    return checkpoints.committed_after(
        connection, batch.pipeline_id, _states(pipeline), batch.original_id
    )


def _states(pipeline: Pipeline) -> list[str]:
    return [step.name for step in pipeline.states()]
