"""The public protocol of sinks: the declaration, the delivery of a batch, and its publication.

``Sink`` is the declaration that a pipeline names. A ``Publisher`` writes to its place. There is a
worked example in docs/extending.md.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from ledger.errors import MASK, StageError
from ledger.sinks.options import Dedup
from ledger.storage.manifest import DataFile, Manifest, check_files

if TYPE_CHECKING:
    import pyarrow as pa

    from ledger.settings import Settings


@dataclass(frozen=True)
class Delivery:
    """The rows of one batch for one sink, staged as Parquet files.

    - ``sink``: ``<pipeline>.<sink>``, the name in the sink's own record.
    - ``pipeline_since``: the time at which the ledger first saw the pipeline. A ledger that is set
    up again gives the same numbers, but not the same time.
    - ``version``: the step run that staged the rows. A later run of the same batch has a greater
    number.
    - ``interval_start``, ``original_id``: decide which of two families is newer.
    - ``interval_start``, ``interval_end``: decide which families replace each other.
    - ``folder``: the folder of the staged files.
    - ``files``: the files that count.
    - ``replaces``: the batches whose rows are removed when these are published.
    - ``is_first``: whether this sink cannot have published an earlier version of the batch, as far
    as the ledger knows.
    """

    sink: str
    batch_id: int
    version: int
    interval_start: datetime
    original_id: int
    folder: str
    files: tuple[DataFile, ...]
    replaces: tuple[int, ...] = ()
    interval_end: datetime | None = None
    is_first: bool = False
    pipeline_since: datetime = field(kw_only=True)

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)


# A settled batch runs no step again.
WHERE_STAGED_FILES_ARE_LOST = (
    "If the batch is settled, reprocess its interval; if it is not, run the sink again"
)


def require_staged(delivery: Delivery) -> None:
    """Raise LostFileError unless all staged files still exist."""
    check_files(Manifest(delivery.files), WHERE_STAGED_FILES_ARE_LOST)


@dataclass(frozen=True)
class Refusal:
    """A staged row that a sink does not take.

    ``position``: the row's position among all rows of the delivery.
    ``reason``: the sink's own words, which may quote the row.
    ``masked``: the reason without any value, for a pipeline that redacts.
    """

    position: int
    reason: str
    masked: str = MASK


@dataclass(frozen=True)
class Rule:
    """A condition that each row of a table has to meet.

    ``condition``: in Spark SQL, true for a row that the table takes.
    ``reason``: the reason of a row that does not meet it.
    """

    condition: str
    reason: str


@dataclass(frozen=True)
class SinkPlan:
    """A sink's answer about rows that it is to publish.

    ``problems``: why it takes no rows of these columns, one sentence for each fault.
    ``rules``: conditions that each row has to meet where the sink itself checks nothing.
    ``refusals``: staged rows that it does not take as it is now.
    """

    problems: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    refusals: tuple[Refusal, ...] = ()


def planned(
    what: str, publisher: "Publisher", schema: "pa.Schema | None", delivery: Delivery | None = None
) -> SinkPlan:
    """Return the sink's plan. Raises StageError with all its problems. ``what``: the sink in words,
    for the message.
    """
    plan = publisher.plan(schema, delivery)
    if plan.problems:
        raise StageError(f"{what} does not take the rows: {'; '.join(plan.problems)}")
    return plan


class Publisher(Protocol):
    """Writer to one sink: it makes staged files visible to readers atomically, once."""

    @property
    def keeps_tracking(self) -> bool:
        """Whether staged files may carry the ledger's own columns (``_ackledger_root``,
        ``_ackledger_roots``) beside the user's. The sink never publishes them.
        """

    def plan(self, schema: "pa.Schema | None", delivery: Delivery | None) -> SinkPlan:
        """Return what the sink says of rows with the columns of ``schema``. It changes nothing that
        readers see, and raises a LedgerError where the place is not reachable or not as needed.

        It is asked before a batch is opened and before rows are staged, without a delivery, and
        again once they are staged. ``schema``: None while the columns are not known. ``delivery``:
        the staged rows, of which ``refusals`` are found. The caller evaluates ``rules`` for these:
        from here on, ``publish`` takes the delivery for checked against them.
        """

    def staging(self, batch_id: int, version: int) -> str:
        """Return the folder, an absolute path or a URL, in which one run stages its files. No other
        run may use it. Its name ends in ``version``.
        """

    def publish(self, delivery: Delivery) -> None:
        """Publish the delivery atomically, and remove what it replaces: in the same transaction, or
        before, where the place has none.

        A no-op if the sink's own record has this version of the batch. An older version is
        replaced. Raises FencedError where a newer one is published, unless the place keeps no
        versions; LostFileError where a staged file is gone. If it dies at any point, the next call
        finishes what it began.
        """


class Sink(Protocol):
    """A kind of sink, as a pipeline declares it. It is made when a DAG file is read, so it imports
    what it writes with when it is asked for its publisher, and connects to nothing.

    ``dedup``: how it recognizes rows that it has delivered already; see ``SinkOptions``.
    """

    @property
    def place(self) -> str:
        """The place that the sink writes to, in words: ``path 'out'``, ``table
        'reporting.departures'``.
        """

    @property
    def identity(self) -> str:
        """Key of the sink's place. Two sinks of a pipeline with equal keys are refused, because
        they would write to the same place.
        """

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Columns by which staged files are partitioned into folders ``<column>=<value>``."""

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that identify a row of the sink. Empty: rows are only added."""

    @property
    def dedup(self) -> Dedup:
        """See above."""

    @property
    def replaces_intervals(self) -> bool:
        """Whether each batch replaces the rows that other batches published for its interval."""

    @property
    def in_place(self) -> bool:
        """Whether readers read the files where they were staged. ``ackledger gc`` then never
        deletes staged files.
        """

    def publisher(self, settings: "Settings", pipeline: str, name: str) -> Publisher:
        """Return the publisher that writes to the sink ``name`` of ``pipeline``; connects to
        nothing.
        """
