"""SQL statements of a script: what they write goes to copies, or ends the script."""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import time_ns
from typing import Any

import pyspark.sql.functions
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.catalog import Catalog
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.sql_formatter import SQLStringFormatter
from pyspark.sql.types import StructType

from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.names import (
    expression_with_copies,
    parsed,
    require_unwritten,
    with_copies,
)
from ledger.auditing.scripts.partitions import partition_of
from ledger.auditing.scripts.patches import Patches
from ledger.auditing.scripts.readers import require_no_jdbc, require_no_jdbc_table
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.tables import (
    HIVE,
    Declared,
    Partitioned,
    is_temporary,
    location_of,
    require_no_view,
    table_key,
    table_parts,
)
from ledger.auditing.scripts.writers import is_dynamic
from ledger.auditing.scripts.written import Destination
from ledger.lineage.catalyst import Catalyst, Node
from ledger.lineage.nodes import simple_name
from ledger.lineage.sites import UNKNOWN, user_line
from ledger.types.spark import quoted

# Statements that write nothing of the user's.
_HARMLESS = re.compile(
    r"(Add(Archives|Files|Jars)|Create(UserDefined)?Function|DropFunction"
    r"|Set(Catalog|Namespace|Path)?)Command|SetCatalogAndNamespace|SetVariable"
    r"|(CacheTable|ClearCache|CreateTempView|CreateVariable|Describe|DropTempView|DropVariable"
    r"|Explain|List|Refresh|Reset|Show|UncacheTable|UseCommand)\w*"
)
# Statements that the audit leaves out, because nothing that it reads depends on them.
_LEFT_OUT = {
    "AnalyzeColumn": "ANALYZE TABLE",
    "AnalyzeTable": "ANALYZE TABLE",
    "CreateNamespace": "CREATE DATABASE",
    "CreateTable": "CREATE TABLE",
    "DropNamespace": "DROP DATABASE",
    "DropTable": "DROP TABLE",
    "OptimizeTable": "OPTIMIZE",
    "RepairTable": "MSCK REPAIR TABLE",
    "TruncateTable": "TRUNCATE TABLE",
}
_WRITING = {
    "CreateTableAsSelect": "overwrite",
    "InsertIntoStatement": "append",
    "ReplaceTableAsSelect": "overwrite",
}
_COMMANDS = ("Command", "ParsedStatement")
# Statements that are neither in some or all versions of Spark
_MORE = (
    *("Call", "CompoundBody", "ExecuteImmediateQuery", "InsertIntoDir"),
    "UnresolvedExecuteImmediate",
)
# Of those that are left out: what later reads would show
_EMPTYING = ("DropTable", "TruncateTable")
_OF_FILES = ("avro", "csv", "delta", "hive", "iceberg", "json", "orc", "parquet", "text")
_HIVE_BY_DEFAULT = "spark.sql.legacy.createHiveTableByDefault"
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
# Methods of the catalog that change it, and the statements that are executed instead.
_BY_CATALOG = {
    "analyzeTable": "ANALYZE TABLE {} COMPUTE STATISTICS",
    "createDatabase": "CREATE DATABASE {}",
    "dropDatabase": "DROP DATABASE {}",
    "dropTable": "DROP TABLE {}",
    "dropView": "DROP VIEW {}",
    "recoverPartitions": "MSCK REPAIR TABLE {}",
    "truncateTable": "TRUNCATE TABLE {}",
}


def intercept_statements(patches: Patches, job: JobAudit) -> None:
    """Have a script's SQL statements executed by the audit."""

    def executed(
        method: Callable[..., Any], spark: SparkSession, *positional: Any, **kwargs: Any
    ) -> DataFrame:
        query = positional[0] if positional else kwargs.pop("sqlQuery")
        args = positional[1] if len(positional) > 1 else kwargs.pop("args", None)
        formatter = SQLStringFormatter(spark)
        try:
            text = formatter.format(query, **kwargs) if kwargs else query
            at = time_ns()
            frame = _executed(job, spark, text, args)
            require_no_jdbc_table(job, frame)
            job.note_paths(frame, at)
        finally:
            formatter.clear()
        return frame

    def changed(method: Callable[..., Any], catalog: Catalog, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(method).bind(catalog, *args, **kwargs).arguments
        name = next(value for key, value in bound.items() if key != "self")
        if bound.get("ifExists"):
            name = f"IF EXISTS {name}"
        _executed(job, catalog._sparkSession, _BY_CATALOG[method.__name__].format(name), None)

    def selected(
        method: Callable[..., Any], frame: DataFrame, *args: Any, **kwargs: Any
    ) -> DataFrame:
        spark = frame.sparkSession
        texts = args[0] if len(args) == 1 and isinstance(args[0], list) else args
        unnamed = [_in_expression(job, spark, each) for each in texts]
        named = {name: _in_expression(job, spark, each) for name, each in kwargs.items()}
        result: DataFrame = method(frame, *unnamed, **named)
        return result

    def parsed_expression(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        (text,) = (*args, *kwargs.values())
        return method(_in_expression(job, None, text))

    patches.replace(SparkSession, "sql", executed)
    patches.replace(pyspark.sql.functions, "expr", parsed_expression)
    for name in ("filter", "selectExpr"):
        patches.replace(ClassicDataFrame, name, selected)
    for name in _BY_CATALOG:
        patches.replace(Catalog, name, changed)


def _in_expression(job: JobAudit, spark: SparkSession | None, value: Any) -> Any:
    is_text = isinstance(value, str)
    return expression_with_copies(job.tables, spark, value) if is_text else value


def _executed(job: JobAudit, spark: SparkSession, text: str, args: Any) -> DataFrame:
    catalyst = Catalyst(spark)
    plan = parsed(spark, text)
    commands = list(_commands(catalyst, plan))
    for command in commands:
        name = simple_name(command)
        if name in _WRITING and len(commands) == 1:
            with_views = with_copies(job.tables, spark, text, plan)
            _written(job, catalyst, command, parsed(spark, with_views), args)
            return spark.range(0).select()
        if name in _LEFT_OUT:
            if name in _EMPTYING and _is_emptied(job, catalyst, command):
                return spark.range(0).select()
            if name == "DropTable" and _is_of_view(catalyst, command):
                continue
            if name == "CreateTable":
                _declare(job, catalyst, command)
            if name == "CreateNamespace" and _is_created(job, catalyst, command, text):
                return spark.range(0).select()
            note = f"{_LEFT_OUT[name]} in SQL is left out"
            if note not in job.notes:
                job.notes.append(note)
            return spark.range(0).select()
        if name == "CreateViewCommand" and "Persisted" not in str(command.viewType().toString()):
            continue
        if name == "DropView":
            _require_temporary(catalyst, command)
            continue
        if name == "CreateTempViewUsing":
            options = {
                str(pair._1()).lower(): pair._2()
                for pair in catalyst.items(command.options().toSeq())
            }
            if str(command.provider()).lower() == "jdbc":
                require_no_jdbc(job, options.get("url"), options.get("dbtable"))
            require_unwritten(job.tables, spark, str(options.get("path", "")))
        if name == "ShowTables":
            return _shown(job, catalyst, command, text)
        if name == "ShowTablesExtended" and job.tables:
            raise ScriptStop(
                "SHOW TABLE EXTENDED does not know the tables that the script has written: "
                "expected SHOW TABLES"
            )
        if not _HARMLESS.fullmatch(name):
            raise ScriptStop(
                f"{_words(text)} is SQL that writes, which the audit does not execute: expected "
                "SELECT, INSERT or CREATE TABLE AS, or a write of a DataFrame"
            )
    text = with_copies(job.tables, spark, text, plan)
    return spark.sql(text, args) if args else spark.sql(text)


def _declare(job: JobAudit, catalyst: Catalyst, command: Node) -> None:
    """Register the table of a CREATE TABLE, without rows, instead of making it. Does nothing if the
    table exists. Ends the script if the statement has no columns.
    """
    spark, parts = catalyst.spark, _parts(catalyst, command.name())
    if parts is None or job.tables.exists(spark, parts):
        return
    schema = StructType.fromJson(json.loads(str(command.tableSchema().json())))
    if not schema.fields:
        raise ScriptStop(
            f"CREATE TABLE of {'.'.join(parts)}, whose columns Spark takes from its files: "
            "expected spark.read, or the columns"
        )
    partitioned = _partitioned(catalyst, command)
    folded = [name.lower() for name in partitioned.columns]
    others = [each for each in schema if each.name.lower() not in folded]
    last = [each for name in folded for each in schema if each.name.lower() == name]
    provider = command.tableSpec().provider()
    is_elsewhere = provider.isDefined() and str(provider.get()).lower() not in _OF_FILES
    has_rows = is_elsewhere or _path(command) is not None
    declared = Declared(StructType([*others, *last]), partitioned, has_rows)
    job.tables.declare(spark, table_key(spark, parts), declared)


def _is_created(job: JobAudit, catalyst: Catalyst, command: Node, text: str) -> bool:
    """Create the database of a statement if it ends with the session, and return whether it is
    there. If it was there without IF NOT EXISTS, Spark raises its own error.
    """
    if simple_name(command.name()) != "UnresolvedNamespace":
        return False
    spark, name = catalyst.spark, command.name().multipartIdentifier()
    parts = table_parts(spark, [*map(str, catalyst.items(name)), "any table"])[:-1]
    if not command.ifNotExists() and spark.catalog.databaseExists(".".join(map(quoted, parts))):
        spark.sql(text)  # Spark says that there is one
    properties = {str(p._1()): str(p._2()) for p in catalyst.items(command.properties().toSeq())}
    return job.tables.create_database(spark, parts, properties.get("location"), job.folder)


def _partitioned(catalyst: Catalyst, command: Node) -> Partitioned:
    """Return the columns of PARTITIONED BY, and whether the table is one of Hive."""
    identities = [e for e in catalyst.items(command.partitioning()) if e.name() == "identity"]
    provider, serde = command.tableSpec().provider(), command.tableSpec().serde()
    by_default = catalyst.spark.conf.get(_HIVE_BY_DEFAULT, "false") == "true"
    is_hive = serde.isDefined() or by_default
    if provider.isDefined():
        is_hive = str(provider.get()).lower() == HIVE
    return Partitioned(tuple(str(e.references()[0].fieldNames()[0]) for e in identities), is_hive)


def _is_emptied(job: JobAudit, catalyst: Catalyst, command: Node) -> bool:
    """Return whether a statement drops or empties a table of the script's own, and drop it. If it
    drops a table of the catalog, that is noted. Ends the script if it empties a table whose rows
    the audit would still read, or if the name of the table cannot be read.
    """
    words = _LEFT_OUT[simple_name(command)]
    parts = _parts(catalyst, command.child())
    if parts is None:
        if job.tables:
            raise ScriptStop(
                f"{words} of a table whose name the audit cannot read: expected its name"
            )
        return False
    key = table_key(catalyst.spark, parts)
    if _is_of_view(catalyst, command):
        return False
    if not job.tables.is_live(key):
        if simple_name(command) == "DropTable":
            job.tables.leave(key)
        return False
    if simple_name(command) != "DropTable":
        if not job.written.live("table", key):
            return True
        raise ScriptStop(
            f"{words} of {'.'.join(parts)}, which the script has written: the audit does not empty "
            "its copy. Expected a write with mode overwrite, or another table"
        )
    job.tables.drop(catalyst.spark, key, user_line() or UNKNOWN)
    return True


def _is_of_view(catalyst: Catalyst, command: Node) -> bool:
    """Return whether a statement names a temporary view, which it then drops."""
    parts = _parts(catalyst, command.child())
    return parts is not None and is_temporary(catalyst.spark, parts)


def _shown(job: JobAudit, catalyst: Catalyst, command: Node, text: str) -> DataFrame:
    """Return the tables of a database as the script would see them."""
    frame = catalyst.spark.sql(text)
    if not job.tables:
        return frame
    database = pattern = None
    if simple_name(command.namespace()) == "UnresolvedNamespace":
        parts = catalyst.items(command.namespace().multipartIdentifier())
        database = ".".join(quoted(str(part)) for part in parts)
    if command.pattern().isDefined():
        pattern = str(command.pattern().get())
    own = job.tables.in_database(catalyst.spark, database, pattern)
    rows: list[tuple[Any, ...]] = [
        row for row in frame.collect() if row.isTemporary or not own.has_written(row.tableName)
    ]
    rows += [(own.namespace, name, False) for name in own.names]
    return catalyst.spark.createDataFrame(rows, frame.schema)


def _require_temporary(catalyst: Catalyst, command: Node) -> None:
    """End the script if it drops a view of the catalog, or one whose name cannot be read."""
    parts = _parts(catalyst, command.child())
    if parts is None:
        raise ScriptStop("DROP VIEW of a view whose name the audit cannot read: expected its name")
    name = ".".join(map(quoted, parts))
    try:
        is_harmless = catalyst.spark.catalog.getTable(name).isTemporary
    except AnalysisException as error:
        is_harmless = error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"  # Spark says so itself
    if not is_harmless:
        raise ScriptStop(
            f"DROP VIEW of {'.'.join(parts)}, which is not a temporary view: the audit does not "
            "drop it. Expected a temporary view"
        )


def _parts(catalyst: Catalyst, name: Node) -> list[str] | None:
    """Return the parts of the name of what a statement is about; None: it is not a plain name."""
    kind = simple_name(name)
    if kind == "UnresolvedIdentifier":
        parts = name.nameParts()
    elif kind == "UnresolvedTable":
        parts = name.multipartIdentifier()
    else:
        return None
    return [str(part) for part in catalyst.items(parts)]


def _written(job: JobAudit, catalyst: Catalyst, command: Node, plan: Node, args: Any) -> None:
    """Write the query of INSERT or CREATE TABLE AS to a copy. Does nothing for IF NOT EXISTS if the
    table exists. Ends the script if the statement cannot be audited.

    ``plan``: the statement with the views of written tables, which its query reads.
    """
    if args:
        raise ScriptStop("INSERT and CREATE TABLE AS with args= are not audited: expected a text")
    name = simple_name(command)
    if name == "InsertIntoStatement":
        if command.userSpecifiedCols().nonEmpty() or command.byName():
            raise ScriptStop(
                "INSERT with a list of columns or BY NAME is not audited: expected the columns in "
                "the order of the table"
            )
        mode = "overwrite" if command.overwrite() else "append"
        named = catalyst.items(command.table().multipartIdentifier())
        parts: list[str] | None = [str(part) for part in named]
    else:
        mode, parts = _WRITING[name], _parts(catalyst, command.name())
    if parts is None:
        raise ScriptStop("writes a table whose name the audit cannot read: expected its name")
    (with_views,) = _commands(catalyst, plan)
    query = with_views.query()
    if simple_name(plan) == "UnresolvedWith":
        query = plan.withNewChildren(catalyst.scala([query]))
    table, key = ".".join(parts), table_key(catalyst.spark, parts)
    is_made = name != "InsertIntoStatement"
    if is_made and command.ignoreIfExists() and job.tables.exists(catalyst.spark, key):
        job.notes.append(f"{table} exists, so CREATE TABLE IF NOT EXISTS writes nothing")
        return
    frame = catalyst.of_parsed(query)
    require_no_jdbc_table(job, frame)
    if not is_made:
        require_no_view(catalyst.spark, parts)
        frame = job.tables.as_in_table(frame, key, _static(catalyst, command))
        partitions, path = job.tables.partitions(key), None
    else:
        partitioned, path = _partitioned(catalyst, command), _path(command)
        partitions = partitioned.columns
        job.tables.replace(key, partitioned)
    columns, location = tuple(frame.columns), location_of(catalyst.spark, key, path)
    to = Destination(table, key, "table", "parquet", mode, columns, partitions, location=location)
    if not is_made:
        to = _replacing(job, catalyst, command, to, frame)
    job.write(frame, to)


def _path(command: Node) -> str | None:
    """Return the LOCATION of a table that a statement makes; None: it has none."""
    location = command.tableSpec().location()
    return str(location.get()) if location.isDefined() else None


def _replacing(
    job: JobAudit, catalyst: Catalyst, insert: Node, to: Destination, frame: DataFrame
) -> Destination:
    """Return the destination of an INSERT, with the partitions that it replaces if it leaves
    others.

    Ends the script if it may replace a part of what the script has written.
    """
    if not insert.overwrite():
        return to
    spark, emptied = catalyst.spark, None
    table = job.tables.partitioned(spark, to.key)
    by_rows = is_dynamic(spark) or (table is not None and table.is_hive)
    if insert.partitionSpec().isEmpty() and not by_rows:
        return to
    if insert.ifPartitionNotExists():
        raise ScriptStop(
            f"INSERT OVERWRITE of {to.name} with IF NOT EXISTS is not audited: expected a write"
        )
    partitions = None if table is None else table.columns
    static = {name.lower(): value for name, value in _static(catalyst, insert).items()}
    types = {name.lower(): kind for name, kind in frame.dtypes}
    if partitions and static.keys() == set(map(str.lower, partitions)):
        emptied = partition_of(
            spark, [(static[each], types[each]) for each in map(str.lower, partitions)]
        )
    elif table is not None and not by_rows:
        partitions = None if static else ()  # Spark replaces all, or all with the static values
    return replace(to, replaces=job.written.require_partitions(to, partitions), emptied=emptied)


def _static(catalyst: Catalyst, insert: Node) -> dict[str, str | None]:
    """Return the values of PARTITION (name = value), by name. A value may be NULL."""
    pairs = catalyst.items(insert.partitionSpec().toSeq())
    return {str(pair._1()): pair._2().get() for pair in pairs if pair._2().isDefined()}


def _commands(catalyst: Catalyst, plan: Node) -> Iterator[Node]:
    """Yield the nodes of a parsed statement that are no part of a query."""
    loader = catalyst.class_loader()
    kinds = [loader.loadClass(f"{_LOGICAL}{name}") for name in _COMMANDS]
    for node in catalyst.nodes(plan):
        if simple_name(node) in _MORE or any(kind.isInstance(node) for kind in kinds):
            yield node


def _words(text: str) -> str:
    """Return the first words of a statement."""
    words = " ".join(text.split())
    return words if len(words) <= 40 else f"{words[:37]}..."
