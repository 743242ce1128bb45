"""What a sink is handed to make visible, and what every kind of sink must be able to do with it."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from ledger.core.commands import ANY_TARGET, CLEAR_WITHHOLD
from ledger.storage.manifest import DataFile, Manifest, check_files

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Delivery:
    """The rows of one batch for one sink, staged as Parquet files.

    ``sink``: ``<pipeline>.<sink>``, under which the sink's own record knows it. ``version``: the stage
    run that staged the rows; a later run of the same batch has a greater one. ``interval_start``,
    ``original_id``: which of two families is the newer; with ``interval_end``: which replace each other. ``folder``: where the files were staged;
    ``files``: those that count. ``replaces``: batches whose rows go in the moment these come.
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

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)


def require_staged(delivery: Delivery) -> None:
    """Raise LostFileError unless all that was staged is still there."""
    check_files(Manifest(delivery.files), stage_again())


def stage_again(before: str = "") -> str:
    """What to do about a staged file that is lost; ``before``: what comes first."""
    return (
        f"Of a settled batch {before}run ackledger publish {ANY_TARGET}, or in Airflow {CLEAR_WITHHOLD}: the rows are "
        "staged anew from the sink's input. Of one that is not settled run the sink again"
    )


@dataclass(frozen=True)
class Refusal:
    """A staged row that a sink does not take. ``position``: its place among all rows of the
    delivery. ``reason``: the sink's own words."""

    position: int
    reason: str


@dataclass(frozen=True)
class Rule:
    """What each row of a table has to meet. ``condition``: in Spark's SQL, true for a row that is
    taken."""

    condition: str
    reason: str


class Publisher(Protocol):
    """One sink, as it is written to: staged files become visible in one moment, once.

    ``keeps_tracking``: whether staged files may carry the ledger's own columns (``_root``, ``_roots``,
    ``_unit``) beside the user's, for the sink never shows them.
    """

    keeps_tracking: bool

    def look(self, schema: "pa.Schema | None") -> None:
        """Raise as ``check`` does, as far as one can tell before there are rows: the sink is reachable, and what
        is there takes rows of ``schema``. None: their columns are not known yet."""

    def check(self, schema: "pa.Schema", *, by_row: bool = False) -> None:
        """Raise StageError, naming column, expected and found, unless rows of ``schema`` fit the
        sink. Asked before anything is staged; it changes nothing. ``by_row``: ``rules`` and
        ``refused`` are asked later, so what only some rows may break is left to them."""

    def rules(self, delivery: Delivery) -> tuple[Rule, ...]:
        """What each row of the delivery has to meet where the sink itself checks nothing. The
        caller evaluates all of them: from here the publish takes the delivery for checked against
        these."""

    def refused(self, delivery: Delivery, siblings: tuple[str, ...] = ()) -> list[Refusal]:
        """The rows of the delivery that the sink does not take as it is now, by position; it
        changes nothing. ``siblings``: tables that other sinks of the pipeline fill with the same
        batch."""

    def staging(self, batch_id: int, version: int) -> str:
        """The folder, absolute or a URL, in which a run stages its files: nobody else ever does."""

    def shows(self, delivery: Delivery) -> bool:
        """Whether the sink's own record says that it shows this version of the batch."""

    def publish(self, delivery: Delivery) -> None:
        """Show the delivery in one moment, and hide what it replaces in the same one.

        A no-op if the sink's own record says that this version of the batch is shown. An older version
        is replaced; a newer one refuses this with FencedError. Whoever dies in it, the next call goes on.
        """
