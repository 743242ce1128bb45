"""The kind of source that is a table, read by a cursor."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ledger.core.run_request import Interval
from ledger.sources.base import Claim, Scope, Source, SourceReader
from ledger.sources.sql.source import SqlSource
from ledger.types import ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ledger.settings import Settings


class Table(Source):
    """The ``Source`` of a SqlSource."""

    incremental = True
    by_offset = True
    layout: Mapping[str, Any] = {"closed": True}

    def __init__(self, declared: SqlSource):
        self._declared = declared
        self.schema = declared.schema
        self.place = f"table {declared.table}"

    def path(self, settings: "Settings", interval: Interval) -> str:
        """Return the table's database, without the password, and its name."""
        return self._declared.shown

    def check(self, settings: "Settings", name: str, interval: Interval | None) -> str:
        """Return the table's columns that are read, in words.

        Raises InputError unless the table is there and has the schema's columns, and a cursor of a
        type that can be one.
        """
        from ledger.sources.sql import cursor, queries

        names = ddl.columns(self.schema) or {self._declared.cursor: ""}
        self._declared.require_cursor(list(names))
        table = queries.require_columns(self._declared, [*names, self._declared.cursor])
        form = cursor.timestamp_form(table)
        delay = "; its rows are read 12 hours late, because the cursor has no time zone"
        is_late = form is not None and form.west
        return f"{self._declared.shown} has columns {', '.join(names)}{delay if is_late else ''}"

    def latest(self, scope: Scope, start: Any, room: int | None) -> Claim:
        """Claim the rows above ``start``, up to where no more rows can appear."""
        from ledger.sources.sql import cursor, queries

        bound = queries.safe_bound(self._declared, scope.now)
        after = None if start is None else cursor.from_text(start)
        upto = queries.reach(self._declared, after, bound, room)
        return scope.claim(end=None if upto is None else cursor.to_text(upto), records=room)

    def reader(self, spark: "SparkSession") -> SourceReader:
        """Return the reader of ranges of the table, with one Spark task for each range."""
        from ledger.sources.sql.reader import TableReader

        return TableReader(spark, self._declared)
