"""Tell sources what became of their records."""

from ledger.batch.following.base import SETTLE, FollowUp, Task
from ledger.batch.following.publications import PUBLISH
from ledger.pipeline.pipeline import Pipeline
from ledger.store.queries import batches


def _after_settle_or_publish(pipeline: Pipeline) -> str:
    """A source that keeps its position is told what its sinks have published."""
    keeping = any(step.hooks is not None for step in pipeline.sources())
    return PUBLISH.name if keeping else SETTLE


NOTIFY = FollowUp(
    "notify",
    "Tell the sources what became of their records.",
    task=Task(after=_after_settle_or_publish, awaited=False),
    wanted=lambda pipeline: pipeline.wants_notice,
    overdue=batches.unnotified,
)
