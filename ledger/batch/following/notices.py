"""Notify sources of the results of their records."""

from ledger.batch.following.base import SETTLE, FollowUp
from ledger.batch.following.publications import Publish
from ledger.pipeline.pipeline import Pipeline


class Notify(FollowUp):
    """See ``ledger.spark.steps.notify``."""

    name = "notify"
    does = "Notify the sources of what became of their records."
    is_awaited = False

    def after(self, pipeline: Pipeline) -> str:
        """Return the task that publishes if a source takes notice of commits, otherwise ``settle``:
        a source is notified of a commit once its sinks have published.
        """
        commits = any(step.source.commits for step in pipeline.sources())
        return Publish.name if commits else SETTLE

    def is_wanted(self, pipeline: Pipeline) -> bool:
        return pipeline.wants_notice
