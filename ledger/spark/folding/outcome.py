"""What a run's fold came to, wherever it was done."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from ledger.batch.step_runs import OpenedRun
from ledger.core.text import quantity
from ledger.databases.driver_errors import raw_cursor
from ledger.deltas import posting
from ledger.deltas.edges import Edges
from ledger.deltas.kernel import Deltas, Fails
from ledger.deltas.portions import Folded
from ledger.deltas.posting import Posted
from ledger.deltas.stored import Seen


@dataclass(frozen=True)
class Frame:
    """Rows that a sink acks because it read them, as it read them: see
    ``ledger.spark.frames.inputs.root_rows``. ``size``: how many there are.
    """

    rows: DataFrame
    edges: Edges
    size: int


@dataclass(frozen=True)
class FoldOutcome:
    """What a run's fold came to. ``pending``: deltas that are posted in the transaction that
    commits the run; of all others the buckets are there before it. ``fails``: roots that fail,
    beside those of the deltas. ``proved``: of a tracked sink, whether it took each row of its
    input once.
    """

    run: OpenedRun
    posted: Posted = field(default_factory=Posted)
    wrote: Seen = field(default_factory=Seen)
    read_carried: int = 0
    with_rows: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    pending: Sequence[Deltas] = ()
    fails: Sequence[Fails] = ()
    proved: bool | None = None

    @classmethod
    def of(cls, run: OpenedRun, folded: Sequence[Folded]) -> "FoldOutcome":
        """What folded rows come to."""
        return reduce(cls.__add__, (_outcome(run, some) for some in folded), cls(run))

    def post(self, connection: Connection) -> None:
        """Post what is pending, in the transaction that commits the run."""
        batch_id = self.run.batch.batch_id
        with raw_cursor(connection) as cursor:
            for bucket, deltas in enumerate(self.pending):
                posting.post(cursor, batch_id, self.run.run_id, bucket, deltas)
            posting.post_fails(cursor, batch_id, self.run.run_id, self.fails)

    def __add__(self, other: "FoldOutcome") -> "FoldOutcome":
        drops = {
            reason: self.drops.get(reason, 0) + other.drops.get(reason, 0)
            for reason in {*self.drops, *other.drops}
        }
        return replace(
            self,
            posted=self.posted + other.posted,
            wrote=self.wrote + other.wrote,
            read_carried=self.read_carried + other.read_carried,
            with_rows=self.with_rows + other.with_rows,
            drops=drops,
        )


def _outcome(run: OpenedRun, folded: Folded) -> FoldOutcome:
    deltas = folded.deltas
    return FoldOutcome(
        run,
        Posted.of(deltas),
        folded.wrote,
        folded.read_carried,
        deltas.with_rows,
        dict(deltas.drops),
    )


def ways_in_words(ways: Iterable[tuple[int, str]]) -> str:
    """How many files were folded in which way, for the log."""
    return "; ".join(f"{quantity(count, 'file')} {way}" for count, way in ways if count)
