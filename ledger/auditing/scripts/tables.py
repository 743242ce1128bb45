"""Tables that a script has written: each is shown by a global temporary view of its copies."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from ledger.auditing.outputs import HIDDEN
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import Destination, Written


@dataclass(frozen=True)
class OwnTables:
    """Tables of one database that a script has written. ``at``: catalog and database. ``names``:
    those that match a pattern, and that it has not dropped.
    """

    at: Sequence[str]
    names: Sequence[str]
    every: frozenset[str]

    @property
    def namespace(self) -> str:
        """The database."""
        return ".".join(self.at[1:])

    def has_written(self, name: str) -> bool:
        """Return whether a table of this name is, or was, the script's own."""
        return name.lower() in self.every


@dataclass
class Tables:
    """Tables of a script's own, by the catalog, database and name that a session gives them.

    A view has a name that no script uses. It is gone once its table is dropped, so that Spark
    itself says that there is no such table.
    """

    written: Written
    _views: dict[str, str] = field(default_factory=dict)
    _spark: SparkSession | None = None

    def __bool__(self) -> bool:
        return bool(self._views)

    def show(self, spark: SparkSession, to: Destination) -> None:
        """Show the rows that a table has now."""
        last = re.sub(r"\W", "_", table_parts(spark, to.key)[-1], flags=re.ASCII)
        view = self._views.setdefault(to.key, f"ackledger_{uuid4().hex}_{last}")
        rows = self.rows(spark, to.key)
        assert rows is not None
        rows.createOrReplaceGlobalTempView(view)
        self._spark = spark

    def drop(self, spark: SparkSession, key: str, place: str) -> None:
        """Drop a table that the script has written."""
        self.written.drop("table", key, place, "DROP TABLE")
        spark.catalog.dropGlobalTempView(self._views[key])

    def close(self) -> None:
        """Drop all views."""
        if self._spark is not None:
            with suppress(Py4JError, OSError):  # the JVM has ended
                for view in self._views.values():
                    self._spark.catalog.dropGlobalTempView(view)

    def rows(self, spark: SparkSession, name: str) -> DataFrame | None:
        """Return the rows of a table that the script has written; None: it has not."""
        live = self.written.live("table", table_key(spark, name))
        if not live:
            return None
        to = live[-1].destination
        columns = [each for each in to.columns if each not in to.partitions] + [*to.partitions]
        frames = [output.rows(spark).drop(HIDDEN) for output in live]
        rows = reduce(DataFrame.unionByName, frames)
        return rows.select(*map(quoted, columns))

    def has_written(self, key: str) -> bool:
        """Return whether the script has written a table, which it may have dropped since."""
        return key in self._views

    def view_of(self, spark: SparkSession, name: str | Sequence[str]) -> str | None:
        """Return the view to read instead of a name; None: it is no table of the script's own.

        Of a table that was dropped, there is no view of that name.
        """
        if is_temporary(spark, name):
            return None
        view = self._views.get(table_key(spark, name))
        database = spark.conf.get("spark.sql.globalTempDatabase", "global_temp")
        return None if view is None else f"{database}.{view}"

    def exists(self, spark: SparkSession, name: str) -> bool:
        """Return whether a table exists for the script."""
        view = self.view_of(spark, name)
        return bool(spark.catalog.tableExists(name if view is None else view))

    def in_database(
        self, spark: SparkSession, database: str | None, pattern: str | None
    ) -> "OwnTables":
        """Return the tables of the script in a database; None: the current one.

        ``pattern``: with ``*`` for any text and ``|`` between alternatives, as Spark has it.
        """
        *at, _ = table_parts(spark, "x" if database is None else f"{database}.x")
        written = {}
        for key in self._views:
            *where, name = table_parts(spark, key)
            if where == at:
                written[name] = bool(self.written.live("table", key))
        wanted = [each.strip().replace("*", ".*") for each in (pattern or "*").split("|")]
        names = [
            name
            for name, is_live in written.items()
            if is_live and any(re.fullmatch(each, name, re.IGNORECASE) for each in wanted)
        ]
        return OwnTables(at, names, frozenset(written))

    def as_in_table(self, frame: DataFrame, name: str) -> DataFrame:
        """Return the rows that are inserted into a table under the names of its columns.

        A table that does not exist takes those of the rows.
        """
        spark = frame.sparkSession
        table = self.rows(spark, name)
        if table is None and self.exists(spark, name):
            table = spark.table(name)
        names = frame.columns if table is None else table.columns
        return frame.toDF(*names) if len(names) == len(frame.columns) else frame


def is_temporary(spark: SparkSession, name: str | Sequence[str]) -> bool:
    """Return whether a name is that of a temporary view, which comes before a table."""
    parts = name_parts(spark, name)
    catalog = _state(spark).catalog()
    return len(parts) == 1 and bool(catalog.getTempView(parts[0]).isDefined())


def require_no_view(spark: SparkSession, name: str | Sequence[str]) -> None:
    """End the script if it inserts into a temporary view: the rows would be those of its table."""
    if is_temporary(spark, name):
        raise ScriptStop(
            f"inserts into {'.'.join(name_parts(spark, name))}, a temporary view: the audit does "
            "not know its table. Insert into the table"
        )


def table_key(spark: SparkSession, name: str | Sequence[str]) -> str:
    """Return a table's name as outputs are compared by: with catalog and database, quoted, in
    lower case.
    """
    return ".".join(map(quoted, table_parts(spark, name)))


def table_parts(spark: SparkSession, name: str | Sequence[str]) -> list[str]:
    """Return the catalog, the database and the name of a table, in lower case."""
    parts = name_parts(spark, name)
    manager = _state(spark).catalogManager()
    if len(parts) == 1:
        parts = [manager.currentCatalog().name(), *manager.currentNamespace(), *parts]
    elif not manager.isCatalogRegistered(parts[0]):
        parts = [manager.currentCatalog().name(), *parts]
    return [part.lower() for part in parts]


def quoted(name: str) -> str:
    """Return a name as SQL has it, whatever its characters."""
    return f"`{name.replace('`', '``')}`"


def name_parts(spark: SparkSession, name: str | Sequence[str]) -> list[str]:
    """Return the parts of a name, without quotes."""
    if not isinstance(name, str):
        return [*name]
    parsed = _state(spark).sqlParser().parseMultipartIdentifier(name)
    return [str(parsed.apply(at)) for at in range(parsed.size())]


def _state(spark: SparkSession) -> Any:
    session: Any = spark._jsparkSession
    return session.sessionState()
