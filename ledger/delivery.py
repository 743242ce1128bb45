"""What a sink is handed to make visible, and what every kind of sink must be able to do with it."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from ledger.manifest import DataFile

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


class Publisher(Protocol):
    """One sink, as it is written to: staged files become visible in one moment, once.

    ``keeps_tracking``: whether staged files may carry the ledger's own columns (``_root``, ``_roots``,
    ``_unit``) beside the user's, for the sink never shows them.
    """

    keeps_tracking: bool

    def look(self, schema: "pa.Schema | None") -> None:
        """Raise as ``check`` does, as far as one can tell before there are rows: the sink is reachable, and what
        is there takes rows of ``schema``. None: their columns are not known yet."""

    def check(self, schema: "pa.Schema") -> None:
        """Raise StageError, naming column, expected and found, unless rows of ``schema`` fit the sink.
        Asked before anything is staged; it changes nothing."""

    def staging(self, batch_id: int, version: int) -> str:
        """The folder, absolute or a URL, in which a run stages its files: nobody else ever does."""

    def publish(self, delivery: Delivery) -> None:
        """Show the delivery in one moment, and hide what it replaces in the same one.

        A no-op if the sink's own record says that this version of the batch is shown. An older version
        is replaced; a newer one refuses this with FencedError. Whoever dies in it, the next call goes on.
        """
