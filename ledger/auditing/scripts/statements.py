"""SQL statements of a script: what they write goes to copies, or ends the script."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.sql_formatter import SQLStringFormatter

from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.patches import Patches
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import Destination, table_key, view_of
from ledger.lineage.catalyst import Catalyst, Node
from ledger.lineage.nodes import simple_name

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
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
_TEXT = re.compile(r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")


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
            frame = _executed(job, method, spark, text, args)
        finally:
            formatter.clear()
        return frame

    patches.replace(SparkSession, "sql", executed)


def _executed(
    job: JobAudit, method: Callable[..., Any], spark: SparkSession, text: str, args: Any
) -> DataFrame:
    catalyst = Catalyst(spark)
    plan = _parsed(spark, text)
    commands = [] if plan is None else list(_commands(catalyst, plan))
    with_views = _with_views(text, job)
    for command in commands:
        name = simple_name(command)
        if name in _WRITING and len(commands) == 1:
            _written(job, catalyst, command, _parsed(spark, with_views), args)
            return spark.range(0).select()
        if name in _LEFT_OUT:
            if name in _EMPTYING:
                _require_unwritten(job, catalyst, command)
            note = f"{_LEFT_OUT[name]} in SQL is left out"
            if note not in job.notes:
                job.notes.append(note)
            return spark.range(0).select()
        if name == "CreateViewCommand" and "Persisted" not in str(command.viewType().toString()):
            continue
        if name == "DropView":
            _require_temporary(catalyst, command)
            continue
        if not _HARMLESS.fullmatch(name):
            raise ScriptStop(
                f"{_words(text)} is SQL that writes, which the audit does not execute: expected "
                "SELECT, INSERT or CREATE TABLE AS, or a write of a DataFrame"
            )
    frame: DataFrame = method(spark, with_views, args) if args else method(spark, with_views)
    return frame


def _require_unwritten(job: JobAudit, catalyst: Catalyst, command: Node) -> None:
    """End the script if it empties a table of its own: the audit would still read its rows."""
    words = _LEFT_OUT[simple_name(command)]
    keys = {
        each.destination.key for each in job.written.outputs if each.destination.kind == "table"
    }
    parts = _name_of_child(catalyst, command)
    if parts is None:
        if keys:
            raise ScriptStop(
                f"{words} of a table whose name the audit cannot read: expected its name"
            )
        return
    dropped = table_key(".".join(parts))
    for key in sorted(keys):
        # A written table is in the statement under its view.
        if dropped in (key, view_of(key)) and job.written.live("table", key):
            raise ScriptStop(
                f"{words} of {key}, which the script has written: the audit does not empty its "
                "copy. Expected a write with mode overwrite, or another table"
            )


def _require_temporary(catalyst: Catalyst, command: Node) -> None:
    """End the script if it drops a view of the catalog."""
    parts = _name_of_child(catalyst, command)
    if parts is None:
        raise ScriptStop("DROP VIEW of a view whose name the audit cannot read: expected its name")
    name = ".".join(f"`{part.replace('`', '``')}`" for part in parts)
    try:
        is_harmless = catalyst.spark.catalog.getTable(name).isTemporary
    except AnalysisException as error:
        is_harmless = error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"  # Spark says so itself
    if not is_harmless:
        raise ScriptStop(
            f"DROP VIEW of {'.'.join(parts)}, which is not a temporary view: the audit does not "
            "drop it. Expected a temporary view"
        )


def _name_of_child(catalyst: Catalyst, command: Node) -> list[str] | None:
    """The parts of the name of what a statement is about; None: it is not a plain name."""
    child = command.child()
    kind = simple_name(child)
    if kind == "UnresolvedIdentifier":
        parts = child.nameParts()
    elif kind == "UnresolvedTable":
        parts = child.multipartIdentifier()
    else:
        return None
    return [str(part) for part in catalyst.items(parts)]


def _written(job: JobAudit, catalyst: Catalyst, command: Node, plan: Node, args: Any) -> None:
    """Write the query of INSERT or CREATE TABLE AS to a copy.

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
        target, mode = command.table(), "overwrite" if command.overwrite() else "append"
        parts = target.multipartIdentifier()
    else:
        target, mode = command.name(), _WRITING[name]
        parts = target.nameParts() if simple_name(target) == "UnresolvedIdentifier" else None
    if parts is None:
        raise ScriptStop("writes a table whose name the audit cannot read: expected its name")
    (with_views,) = _commands(catalyst, plan)
    query = with_views.query()
    if simple_name(plan) == "UnresolvedWith":
        query = plan.withNewChildren(catalyst.scala([query]))
    table = ".".join(str(part) for part in catalyst.items(parts))
    if job.written.live("table", table_key(table)):
        _require_whole(command, table)
    frame = catalyst.frame(query)
    if name == "InsertIntoStatement":
        frame = job.as_in_table(_with_partition(catalyst, frame, command), table)
    to = Destination(table, table_key(table), "table", "parquet", mode, tuple(frame.columns))
    job.write(frame, to)
    job.show_table(catalyst.spark, to)


def _require_whole(command: Node, table: str) -> None:
    """End the script if a statement writes a part of a table, or nothing if it is there."""
    if simple_name(command) == "CreateTableAsSelect" and command.ignoreIfExists():
        raise ScriptStop(f"CREATE TABLE IF NOT EXISTS {table}, which the script has written before")
    if simple_name(command) != "InsertIntoStatement" or not command.overwrite():
        return
    if command.partitionSpec().nonEmpty():
        raise ScriptStop(
            f"replaces a partition of {table}, which the script has written before: the audit "
            "cannot tell which rows remain. Write all partitions at once"
        )


def _with_partition(catalyst: Catalyst, frame: DataFrame, insert: Node) -> DataFrame:
    """The rows of INSERT with the values of PARTITION (name = value) behind them."""
    for pair in catalyst.items(insert.partitionSpec().toSeq()):
        if pair._2().isDefined():
            frame = frame.withColumn(str(pair._1()), F.lit(str(pair._2().get())))
    return frame


def _parsed(spark: SparkSession, text: str) -> Node | None:
    """The plan of a statement; None: Spark cannot parse it, and says so itself."""
    session: Any = spark._jsparkSession
    try:
        return session.sessionState().sqlParser().parsePlan(text)
    except Py4JError:
        return None


def _commands(catalyst: Catalyst, plan: Node) -> Iterator[Node]:
    """The nodes of a parsed statement that are no part of a query."""
    loader = catalyst.class_loader()
    kinds = [loader.loadClass(f"{_LOGICAL}{name}") for name in _COMMANDS]
    for node in catalyst.nodes(plan):
        if simple_name(node) in _MORE or any(kind.isInstance(node) for kind in kinds):
            yield node


def _with_views(text: str, job: JobAudit) -> str:
    """A statement with the views of written tables in place of their names with a database."""
    for output in job.written.outputs:
        to = output.destination
        if to.kind == "table":
            names = r"\s*\.\s*".join(rf"`?{re.escape(part)}`?" for part in to.key.split("."))
            catalog = r"(?:`?spark_catalog`?\s*\.\s*)?" + (
                "" if "." in to.key else r"`?default`?\s*\.\s*"
            )
            pattern = re.compile(rf"(?<![\w.`]){catalog}{names}(?![\w`])", re.IGNORECASE)
            parts = _TEXT.split(text)
            parts[::2] = [pattern.sub(view_of(to.key), part) for part in parts[::2]]
            text = "".join(parts)
    return text


def _words(text: str) -> str:
    """The first words of a statement."""
    words = " ".join(text.split())
    return words if len(words) <= 40 else f"{words[:37]}..."
