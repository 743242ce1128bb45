"""Tables that a script has written: each is shown by a global temporary view of its copies."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from ledger.auditing.outputs import HIDDEN
from ledger.auditing.scripts.phantoms import Phantoms
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import NATIVE, Destination, Written, full_path
from ledger.types.spark import quoted

HIVE = "hive"
_CATALOG = "spark_catalog"
# Classes of this catalog whose databases end with the session.
_IN_MEMORY = ("builtin", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
_GONE = (Py4JError, OSError, PySparkException)  # errors of a session whose JVM may have ended


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


@dataclass(frozen=True)
class Partitioned:
    """Partitioning of a table.

    ``columns``: the columns of PARTITIONED BY.
    ``is_hive``: whether it is a Hive table. An overwrite of a Hive table replaces only partitions
    that it has rows of, whatever the session's options are.
    """

    columns: tuple[str, ...]
    is_hive: bool


@dataclass(frozen=True)
class Declared:
    """A table that CREATE TABLE has declared.

    ``schema``: its columns in order, with partition columns last.
    ``has_rows``: whether it may have rows before the script writes it.
    """

    schema: StructType
    partitioned: Partitioned
    has_rows: bool


@dataclass
class Tables:
    """Tables of a script's own, by the catalog, database and name that a session gives them.

    A view has a name that no script uses. It is gone once its table is dropped, so that Spark
    itself says that there is no such table.

    ``phantoms``: the paths whose files are not as the script left them.
    """

    written: Written
    phantoms: Phantoms
    _views: dict[str, str] = field(default_factory=dict)
    _declared: dict[str, Declared] = field(default_factory=dict)
    _partitioned: dict[str, Partitioned] = field(default_factory=dict)
    _databases: list[str] = field(default_factory=list)
    _locations: dict[str, str] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)
    _spark: SparkSession | None = None

    def __bool__(self) -> bool:
        return bool(self._views)

    def declare(self, spark: SparkSession, key: str, declared: Declared) -> None:
        """Register a table that CREATE TABLE would have made, without rows."""
        self._declared[key], self._partitioned[key] = declared, declared.partitioned
        self._left.discard(key)
        self.show(spark, key)

    def create_database(
        self, spark: SparkSession, parts: Sequence[str], location: str | None, folder: Path
    ) -> bool:
        """Create a database if it ends with the session. Returns whether it did or exists.

        Ends the script in another catalog, whose databases are the user's. ``parts``: of its name,
        with the catalog. ``location``: of its files, which are in ``folder`` instead; None: the
        warehouse.
        """
        if spark.catalog.databaseExists(".".join(map(quoted, parts))):
            return True
        of_catalog, *names = parts
        name = ".".join(map(quoted, names))
        if of_catalog != _CATALOG:
            raise ScriptStop(
                f"creates the database {name} in the catalog {of_catalog}: expected the catalog "
                f"{_CATALOG}, because the audit changes no other one. Create it before the audit"
            )
        catalog = str(spark.conf.get(f"spark.sql.catalog.{_CATALOG}", "builtin"))
        implementation = str(spark.conf.get("spark.sql.catalogImplementation"))
        if implementation != "in-memory" or catalog not in _IN_MEMORY:
            return False
        own = f"{folder}/databases/{len(self._databases)}"
        address = f"file://{own}".replace("'", "\\'")
        spark.sql(f"CREATE DATABASE {_CATALOG}.{name} LOCATION '{address}'")
        self._databases.append(name)
        warehouse = spark.conf.get("spark.sql.warehouse.dir")
        self._locations[own] = full_path(location or f"{warehouse}/{names[-1]}.db")
        self._spark = spark
        return True

    def located(self, to: Destination) -> Destination:
        """Return a destination with its files in the location that the script gave the database."""
        for own, location in self._locations.items():
            if to.location.startswith(f"{own}/"):
                return replace(to, location=f"{location}{to.location.removeprefix(own)}")
        return to

    def show(self, spark: SparkSession, key: str) -> None:
        """Create or replace the view with the current rows of a table."""
        last = re.sub(r"\W", "_", table_parts(spark, key)[-1], flags=re.ASCII)
        view = self._views.setdefault(key, f"ackledger_{uuid4().hex}_{last}")
        rows = self.rows(spark, key)
        assert rows is not None
        rows.createOrReplaceGlobalTempView(view)
        self._spark = spark

    def drop(self, spark: SparkSession, key: str, place: str) -> None:
        """Drop a table that the script has written."""
        self.written.drop("table", key, place, "DROP TABLE")
        self._declared.pop(key, None)
        self._partitioned.pop(key, None)
        spark.catalog.dropGlobalTempView(self._views[key])

    def leave(self, key: str) -> None:
        """Record that the script wants to drop a table of the catalog, which the audit does not
        drop.
        """
        self._left.add(key)

    def replace(self, key: str, partitioned: Partitioned) -> None:
        """Forget the columns that CREATE TABLE gave a table, which is written with others."""
        self._declared.pop(key, None)
        self._partitioned[key] = partitioned
        self._left.discard(key)

    def close(self) -> None:
        """Drop all views, and the databases that were created here, which have no tables."""
        if self._spark is None:
            return
        for view in self._views.values():
            with suppress(*_GONE):
                self._spark.catalog.dropGlobalTempView(view)
        for name in self._databases:
            with suppress(*_GONE):
                self._drop_database(self._spark, name)

    def _drop_database(self, spark: SparkSession, name: str) -> None:
        manager = _state(spark).catalogManager()
        current = [manager.currentCatalog().name(), *manager.currentNamespace()]
        if [each.lower() for each in current] == [_CATALOG, *name_parts(spark, name.lower())]:
            spark.catalog.setCurrentDatabase("default")
        spark.sql(f"DROP DATABASE IF EXISTS {_CATALOG}.{name}")

    def rows(self, spark: SparkSession, name: str) -> DataFrame | None:
        """Return the rows of a table that the script has written; None if it has not written it."""
        key = table_key(spark, name)
        live = self.written.live("table", key)
        if not live:
            declared = self._declared.get(key)
            return None if declared is None else _empty(spark, declared.schema)
        to = live[-1].destination
        columns = [each for each in to.columns if each not in to.partitions] + [*to.partitions]
        frames = [output.rows(spark).drop(HIDDEN) for output in live]
        rows = reduce(DataFrame.unionByName, frames)
        return rows.select(*map(quoted, columns))

    def has_written(self, key: str) -> bool:
        """Return whether the script has written a table, which it may have dropped since."""
        return key in self._views

    def view_of(self, spark: SparkSession, name: str | Sequence[str]) -> str | None:
        """Return the view to read instead of a table. None: the script has not written the table.

        After a table was dropped, its view no longer exists.
        """
        if is_temporary(spark, name):
            return None
        view = self._views.get(table_key(spark, name))
        database = spark.conf.get("spark.sql.globalTempDatabase", "global_temp")
        return None if view is None else f"{database}.{view}"

    def exists(self, spark: SparkSession, name: str | Sequence[str]) -> bool:
        """Return whether a table exists for the script."""
        if table_key(spark, name) in self._left and not is_temporary(spark, name):
            return False
        view = self.view_of(spark, name)
        if view is None:
            view = ".".join(map(quoted, name_parts(spark, name)))
        return bool(spark.catalog.tableExists(view))

    def require_known(self, spark: SparkSession, name: str | Sequence[str]) -> None:
        """End the script if it reads a table whose rows only CREATE TABLE would show."""
        key = table_key(spark, name)
        declared = self._declared.get(key)
        if declared is not None and declared.has_rows and not self.written.live("table", key):
            raise ScriptStop(
                f"reads {'.'.join(name_parts(spark, name))}, a table that the script makes over "
                "rows that are there: expected spark.read of its path"
            )

    def in_database(
        self, spark: SparkSession, database: str | None, pattern: str | None
    ) -> "OwnTables":
        """Return the script's own tables in a database. ``database``: None: the current one.

        ``pattern``: with ``*`` for any text and ``|`` between alternatives, as in Spark.
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

    def is_live(self, key: str) -> bool:
        """Return whether a table of the script exists now."""
        return key in self._declared or bool(self.written.live("table", key))

    def schema(self, spark: SparkSession, key: str) -> StructType | None:
        """Return the columns of a table in their order; None: there is no such table."""
        if key in self._declared:
            return self._declared[key].schema
        table = self.rows(spark, key)
        if table is None and self.exists(spark, key):
            table = spark.table(key)
        return None if table is None else table.schema

    def partitions(self, key: str) -> tuple[str, ...]:
        """Return the columns by which CREATE TABLE has partitioned a table."""
        declared = self._declared.get(key)
        return () if declared is None else declared.partitioned.columns

    def partitioned(self, spark: SparkSession, key: str) -> Partitioned | None:
        """Return how a table is partitioned; None: it is not known."""
        catalog, *parts = table_parts(spark, key)
        kind = spark.conf.get(f"spark.sql.catalog.{_CATALOG}", "builtin")
        if catalog != _CATALOG or kind != "builtin":  # an overwrite may mean something else there
            return None
        if key in self._partitioned:
            return self._partitioned[key]
        table = _state(spark).sqlParser().parseTableIdentifier(".".join(map(quoted, parts)))
        sessions = _state(spark).catalog()
        if key in self._left or not sessions.tableExists(table):
            return None
        metadata = sessions.getTableMetadata(table)
        provider = metadata.provider()
        format_ = str(provider.get()).lower() if provider.isDefined() else ""
        if format_ not in (*NATIVE, HIVE):
            return None
        columns = metadata.partitionColumnNames()
        names = tuple(str(columns.apply(at)) for at in range(columns.size()))
        return Partitioned(names, is_hive=format_ == HIVE)

    def as_in_table(
        self, frame: DataFrame, name: str, static: Mapping[str, str | None] | None = None
    ) -> DataFrame:
        """Return rows with the columns and types of the table that they are inserted into. Ends the
        script if their number differs, or if the audit does not know how Spark converts a value.

        A table that does not exist yet gets the columns of the rows. ``static``: the values of
        PARTITION (name = value), which the rows do not have.
        """
        spark, static = frame.sparkSession, static or {}
        values = {column.lower(): F.lit(value) for column, value in static.items()}
        schema = self.schema(spark, table_key(spark, name))
        if schema is None:
            return frame.withColumns({column: F.lit(value) for column, value in static.items()})
        selected = [column for column in schema.names if column.lower() not in values]
        if len(selected) != len(frame.columns):
            raise ScriptStop(
                f"inserts {len(frame.columns)} columns into {'.'.join(name_parts(spark, name))}: "
                f"expected {len(selected)}, {', '.join(selected)}"
            )
        frame = frame.toDF(*selected)
        columns = []
        for wanted in schema:
            value = values.get(wanted.name.lower())
            if value is None:
                kind = frame.schema[selected.index(wanted.name)].dataType
                value = F.col(quoted(wanted.name))
                if _is_other(kind, wanted.dataType):
                    _require_assignable(spark, wanted.name, kind, wanted.dataType)
                    value = value.cast(wanted.dataType)
            elif wanted.dataType.simpleString() != "string":
                value = value.cast(wanted.dataType)
            columns.append(value.alias(wanted.name))
        return frame.select(*columns)


def _empty(spark: SparkSession, schema: StructType) -> DataFrame:
    columns = [F.lit(None).cast(each.dataType).alias(each.name) for each in schema]
    return spark.range(0).select(*columns)


def _is_other(kind: DataType, wanted: DataType) -> bool:
    return kind.simpleString() != wanted.simpleString()


def _require_assignable(spark: SparkSession, name: str, kind: DataType, wanted: DataType) -> None:
    """End the script where the audit does not know how Spark stores one type as another."""
    nested = (ArrayType, MapType, StructType)
    policy = str(spark.conf.get("spark.sql.storeAssignmentPolicy", "ANSI")).upper()
    java: Any = spark._jvm
    session: Any = spark._jsparkSession
    types = [session.parseDataType(each.json()) for each in (kind, wanted)]
    cast = java.org.apache.spark.sql.catalyst.expressions.Cast
    is_known = policy == "ANSI" and cast.canANSIStoreAssign(*types)
    if not is_known or isinstance(kind, nested) or isinstance(wanted, nested):
        raise ScriptStop(
            f"inserts {kind.simpleString()} into the column {name} {wanted.simpleString()}: "
            "the audit does not know what Spark stores. Cast the value"
        )


def location_of(spark: SparkSession, key: str, path: object) -> str:
    """Return the full path of a table's files; empty: it is not known. ``path``: the option."""
    if path is not None:
        return full_path(str(path))
    catalog, *parts = table_parts(spark, key)
    state = _state(spark)
    if catalog != _CATALOG or len(parts) != 2:
        return ""
    table = state.sqlParser().parseTableIdentifier(".".join(map(quoted, parts)))
    sessions = state.catalog()
    with suppress(Py4JError, AnalysisException):
        if sessions.tableExists(table):
            return full_path(str(sessions.getTableMetadata(table).location().toString()))
        return full_path(str(sessions.defaultTablePath(table).toString()))
    return ""


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


def name_parts(spark: SparkSession, name: str | Sequence[str]) -> list[str]:
    """Return the parts of a name, without quotes."""
    if not isinstance(name, str):
        return [*name]
    parsed = _state(spark).sqlParser().parseMultipartIdentifier(name)
    return [str(parsed.apply(at)) for at in range(parsed.size())]


def _state(spark: SparkSession) -> Any:
    session: Any = spark._jsparkSession
    return session.sessionState()
