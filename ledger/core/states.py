"""The state machines of batch, step run and message, as in PostgreSQL's enums of the same names.

batch      open -> settled | abandoned | held;  abandoned -> open;  held -> open;
           settled -> superseded, once a batch opened to replace it is
step run  running -> committed | failed | fenced;  committed -> superseded
message    failed -> replaying -> recovered | failed | quarantined;  failed -> quarantined;
           quarantined -> replaying, by hand;  recovered -> failed, in a later replay of its batch;
           failed -> superseded, with its batch
"""

from enum import StrEnum


class BatchStatus(StrEnum):
    """Status of a batch."""

    OPEN = "open"
    SETTLED = "settled"
    ABANDONED = "abandoned"
    HELD = "held"
    SUPERSEDED = "superseded"

    @property
    def decided(self) -> bool:
        """Whether every root of the batch is decided permanently."""
        return self in (BatchStatus.SETTLED, BatchStatus.SUPERSEDED)

    @property
    def words(self) -> str:
        """The status as it is written in a sentence."""
        return "on hold" if self is BatchStatus.HELD else self.value


class BatchKind(StrEnum):
    """An original batch reads a source; a replay re-emits failed messages of one original."""

    ORIGINAL = "original"
    REPLAY = "replay"


class Guarantee(StrEnum):
    """Guarantee of a pipeline's sinks: publish each acked record exactly once, or publish all rows
    that reached the sink, at least once.
    """

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class PublishPolicy(StrEnum):
    """Condition for publishing the acked records of a batch that runs exactly once: the batch is
    settled, or no record of it and of its replays is failed any more.
    """

    SETTLED = "settled"
    COMPLETE = "complete"


class Outcome(StrEnum):
    """Result of a run for its batch. ``COMPLETE``: every record is acked, tolerated, or quarantined
    and accepted by a person. ``QUARANTINED``: all others are quarantined. ``INCOMPLETE``: any other
    result.
    """

    COMPLETE = "complete"
    QUARANTINED = "complete with quarantined records"
    INCOMPLETE = "incomplete"


class RunState(StrEnum):
    """State of one attempt of one step."""

    RUNNING = "running"
    COMMITTED = "committed"
    FAILED = "failed"
    FENCED = "fenced"
    SUPERSEDED = "superseded"


class FailureCause(StrEnum):
    """Cause of a record's failure in one attempt, as documented for the column
    ``failed_root.cause``. For ``UNPARSED``, ``REJECTED`` and ``REFUSED``, the source, the stage or
    the sink gave a reason.
    """

    UNPARSED = "unparsed"
    REJECTED = "rejected"
    REFUSED = "refused"
    REPEATED = "repeated"
    UNACKED = "unacked"
    LOST = "lost"
    DOUBLED = "doubled"
    SWAPPED = "swapped"
    LATE = "late"


class HoldCause(StrEnum):
    """Cause of a hold: a check failed, too many records failed, or a person restarted the batch."""

    CHECK = "check"
    FAILURES = "failures"
    RESTART = "restart"


class Obstacle(StrEnum):
    """Reason why a state waits for a batch, as the view ``state_progress`` has it."""

    UNDECIDED = "undecided"
    BEING_REPLACED = "being_replaced"
    RECORDS_FAILED = "records_failed"
    STATE_DUE = "state_due"


class Need(StrEnum):
    """Reason why retention keeps the files of a batch and its replays: a step or a user may reread
    them.
    """

    UNDECIDED = "undecided"
    RECORDS_FAILED = "records_failed"
    RECORDS_QUARANTINED = "records_quarantined"
    CONTENT_MISSING = "content_missing"
    UNPUBLISHED = "unpublished"
    COMBINE_DUE = "combine_due"
    NOTICE_PENDING = "notice_pending"
    STATE_DUE = "state_due"
    CURRENT_STATE = "current_state"
    DEDUP_WINDOW = "dedup_window"
    RECENT = "recent"


BATCH_TRANSITIONS: dict[BatchStatus, frozenset[BatchStatus]] = {
    BatchStatus.OPEN: frozenset({BatchStatus.SETTLED, BatchStatus.ABANDONED, BatchStatus.HELD}),
    BatchStatus.ABANDONED: frozenset({BatchStatus.OPEN}),
    BatchStatus.HELD: frozenset({BatchStatus.OPEN}),
    BatchStatus.SETTLED: frozenset({BatchStatus.SUPERSEDED}),
    BatchStatus.SUPERSEDED: frozenset(),
}
