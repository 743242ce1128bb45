"""The base classes of a kind of source and of its reader, and the claim of a batch on a source."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from ledger import errors
from ledger.core.run_request import Interval
from ledger.errors import LedgerError, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from ledger.settings import Settings
    from ledger.storage.versions import Version

_RAISED = re.compile(r"ledger\.errors\.(\w+): (.*)")


@dataclass(frozen=True)
class FoundFile:
    """A file when it was listed.

    ``digest``: SHA-256 of its content; only of small files.
    ``version``: the store's identifier of this content. Empty if the store has none, or if the file
    was only listed.
    """

    path: str
    bytes: int
    modified_at: datetime
    digest: str | None = None
    version: str = ""


@dataclass(frozen=True)
class Claim:
    """The part of a source that a batch takes, as the ledger keeps it.

    ``source``: the source's name.
    ``path``: the value that ``Source.path`` returned when the batch was opened.
    ``files``: the claimed files.
    ``start``, ``end``: the claimed range, between two offsets, JSON. ``start`` None: from the
    beginning; ``end`` None: nothing. A source by interval may claim an ``end``, too: a version.
    ``number``: the range's place among those of its source.
    ``records``: the most records that the claim may hold; None: not known.
    """

    source: str
    path: str
    files: tuple[FoundFile, ...] = ()
    start: Any = None
    end: Any = None
    number: int | None = None
    records: int | None = None


@dataclass(frozen=True)
class Scope:
    """A request for a claim on a source: its name, the interval, and the path over the interval.

    ``now``: the ledger's time.
    ``unclaimed``: returns those of the given files that no batch has claimed as they are now, the
    oldest first.
    """

    settings: "Settings"
    source: str
    path: str
    interval: Interval
    now: datetime
    unclaimed: "Callable[[Sequence[FoundFile]], list[FoundFile]]"

    def claim(self, **values: Any) -> Claim:
        """Return a claim on the source. ``values``: the claim's other fields."""
        return Claim(self.source, self.path, **values)


@dataclass(frozen=True)
class Sought:
    """A record whose line is sought.

    ``row``: its number in its file, from 1.
    ``content``: its text, or JSON if it is ``parsed``.
    """

    row: int
    content: str
    parsed: bool


@dataclass(frozen=True)
class WrittenFiles:
    """Files that a source's reader has written, with their records.

    ``names``: the files' names.
    ``rows``: number of records.
    ``failed``: number of records that did not parse.
    """

    names: tuple[str, ...] = ()
    rows: int = 0
    failed: int = 0


class SourceReader(Protocol):
    """Reader of one source in one Spark session. Subclasses inherit what most kinds do not need.

    ``schema``: of a source that describes itself, it is known after ``describe``.
    ``named_in_paths``: columns whose values are in the paths of files, which the ledger keeps.
    """

    schema: "StructType"
    named_in_paths: Sequence[str] = ()

    def describe(self, claim: Claim, stored: "StructType | None" = None) -> None:
        """Learn the schema of a source that describes itself. Called before anything else.

        ``stored``: in a replay, the columns in which records are stored, for a source that does not
        have them any more.
        """
        return  # it is declared

    def version(self, claim: Claim) -> "Version | None":
        """Return the files that hold the records of a claim and that do not change; None: the
        records have to be copied. The version has no record that does not fit the schema.
        """
        return None

    def records(self, claim: Claim) -> "DataFrame":
        """Return all records of a claim, none dropped. The frame is lazy and may run more than
        once.

        Its columns: those of the schema, ``_ackledger_raw`` (binary), ``_ackledger_error``
        (string), and ``_ackledger_file`` if the source has files. A record that does not fit the
        schema has its text in ``_ackledger_raw``, the reason in ``_ackledger_error`` and nulls
        elsewhere; both are null in all other records. ``typed.quote_of`` marks the values that a
        reason quotes.
        """

    def check(self, claim: Claim) -> None:
        """Raise the InputError that ``records`` would raise, as far as it shows before a record is
        read: of files in headers and footers. By default call ``records``, which is lazy.
        ``ackledger check`` calls this for a claim that no batch has made; of a source by offset its
        ``end`` is None.
        """
        self.records(claim)

    def write(self, claim: Claim, folder: str) -> "WrittenFiles | None":
        """Write the records of a claim to a folder as Parquet, as ``records`` has them, each reason
        with the value that it quotes; None: Spark is to write them."""
        return None

    def parse_again(self, stored: "DataFrame") -> "DataFrame":
        """Return records that ``records`` returned earlier, parsed again in today's schema.

        Keeps ``_ackledger_message``.

        ``stored``: the records as a snapshot stored them.
        """

    def check_unchanged(self, source: str) -> None:
        """Raise InputError if files that ``records`` has found by itself, which are none of the
        claim's, have changed since. ``source``: its name. Called after each snapshot of what was
        read from the source."""
        return  # it has found none

    def check_read(self, source: str, rows: int, stored: "Callable[[], DataFrame]") -> None:
        """Raise InputError unless the ``rows`` records of ``records``, as they are ``stored``, are
        all that it is known to have. ``source``: its name. Called after each snapshot of a claim.
        """
        return  # their number is not known

    def failure(self, exc: BaseException) -> LedgerError | None:
        """Return the source's error if Spark failed because of it; otherwise None."""
        return raised_by_task(exc)

    def null_columns(self, stored: "Sequence[str] | None" = None) -> "Sequence[str]":
        """Return the columns that no record of the last ``records`` or ``write`` had. They are
        null.

        Called after each snapshot, and once for a reference. Raises InputError if a column may have
        another name there.

        ``stored``: the files of the snapshot; None: there is none.
        """
        return ()  # not known

    @property
    def formats(self) -> Mapping[str, str]:
        """Return the source's formats of dates and times, as options of Spark's readers.

        Empty for ISO 8601.
        """
        return {}


class Source(Protocol):
    """A source of records for a pipeline. To add a kind of source, subclass this class and call
    ``ledger.sources.registry.register``.

    ``schema``: the records' columns, a StructType or a DDL string. None if it
    ``describes_itself``.
    ``describes_itself``: whether its reader learns the columns from a claim.
    ``place``: the place that is read, in words and without secrets.
    ``incremental``: whether a batch takes what no other batch has taken. Otherwise it reads its
    interval, which no other batch reads.
    ``by_offset``: whether a claim is a range between two offsets. Otherwise it is files.
    ``commits``: whether ``commit`` is called.
    ``layout``: stored by the ledger, to find the raw text of a record in its file. With ``closed``
    that text has the schema's columns and no others.
    ``not_reread``: the reason why single records cannot be reread by key; None: they can.
    """

    schema: "StructType | str | None"
    describes_itself: bool = False
    place: str
    incremental: bool = False
    by_offset: bool = False
    commits: bool = False
    layout: Mapping[str, Any] = {}
    not_reread: str | None = None

    def path(self, settings: "Settings", interval: Interval) -> str:
        """Return the path that a batch over the interval reads, as the ledger shows it, with
        absolute paths.
        """
        return self.place

    def check(self, settings: "Settings", name: str, interval: Interval | None) -> str:
        """Look at the source before a batch is opened, and return what was found, in words.

        Claims nothing. Raises InputError or ConfigurationError on anything that would fail a run.

        ``name``: the source's name, for messages.
        ``interval``: None if it is not known yet.
        """

    def is_empty(self, settings: "Settings", interval: Interval | None) -> bool:
        """Return whether the source is certain to have no records now. ``interval``: None where it
        is not known yet."""
        return False

    def latest(self, scope: Scope, start: Any, room: int | None) -> Claim:
        """Return the claim of the next batch: at most ``room`` records (None: any number), or the
        least that can be taken.

        An incremental source claims files, or the ``end`` of a range that begins at ``start``
        (None: at the beginning). Any other source claims the interval as a whole. Its claim has
        ``records`` only if there is a ``room``, counted no further than until they exceed it.

        Called while nothing is locked, maybe more than once: the ledger accepts the claim, or asks
        again if another batch was faster.
        """
        return scope.claim()

    def commit(self, batch_id: int, end: Any) -> None:
        """Note that the batch whose range has this ``end`` is committed, and so is everything
        before it: settled, and published by the sinks. Replays read the ledger's snapshot.

        The call may come late, twice, or after the call of a later batch. An exception is logged,
        and the call comes again with that of the next batch.
        """

    def reader(self, spark: "SparkSession") -> SourceReader:
        """Return the reader of the source. Raises DeclarationError if its schema cannot be read."""

    @classmethod
    def lines_of(
        cls, path: str, sought: Sequence[Sought], layout: Mapping[str, Any]
    ) -> Mapping[int, int]:
        """Return the line of each record in a file, from 1, by the record's number.

        Records whose line is not certain are left out. The caller has no source, but only its
        ``layout`` from the ledger; a layout of another kind has no lines here.
        """
        return {}


def raised_by_task(exc: BaseException) -> LedgerError | None:
    """Return the InputError or UnavailableError that a task raised; None for any other failure."""
    for name, message in _RAISED.findall(str(exc)):
        if name in ("InputError", "UnavailableError"):
            kind: type[LedgerError] = getattr(errors, name)
            # Java does not mark what it quotes.
            return kind(quote(message.strip()))
    return None
