"""Reads of a script: those of its own outputs read the copies."""

import inspect
import os
import re
from collections.abc import Callable
from time import time_ns
from typing import Any, cast

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.catalog import Catalog, Table
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from ledger.auditing.outputs import HIDDEN
from ledger.auditing.scripts.changes import leaves
from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.names import require_table
from ledger.auditing.scripts.patches import Patches
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.tables import name_parts, table_parts
from ledger.auditing.scripts.written import NATIVE, WrittenOutput, alternatives, full_path
from ledger.lineage.catalyst import Catalyst
from ledger.lineage.nodes import simple_name
from ledger.types.spark import quoted

_READING = ("csv", "json", "load", "orc", "parquet", "text", "xml")
_REDIRECTED = (
    *("cacheTable", "getTable", "isCached", "listColumns"),
    *("refreshTable", "tableExists", "uncacheTable"),
)
_STATE = "_ackledger_state"
_QUOTES = r"[\"`\[\]]"
_TABLE = re.compile(rf"(?:\w|[.$#]|{_QUOTES})+")  # any other text may be a query


def intercept_reads(patches: Patches, job: JobAudit) -> None:
    """Have reads of what a script has written read the copies, and note all other reads."""

    def configured(
        method: Callable[..., Any], reader: DataFrameReader, *args: Any, **kwargs: Any
    ) -> DataFrameReader:
        state = reader.__dict__.setdefault(_STATE, {})
        bound = inspect.signature(method).bind(reader, *args, **kwargs).arguments
        if method.__name__ == "options":
            state |= {name.lower(): value for name, value in bound.get("options", {}).items()}
        elif method.__name__ == "option":
            state[str(bound["key"]).lower()] = bound["value"]
        else:
            state[f"_{method.__name__}"] = bound.get("source", bound.get("schema"))
        result: DataFrameReader = method(reader, *args, **kwargs)
        return result

    def read(
        method: Callable[..., Any], reader: DataFrameReader, *args: Any, **kwargs: Any
    ) -> DataFrame:
        with job.lock:
            frame = _of_outputs(job, method, reader, args, kwargs)
        if frame is None:
            at = time_ns()
            frame = method(reader, *args, **kwargs)
            job.note_read(frame, at)
        return frame

    def table(method: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> DataFrame:
        name = str(next(iter((*args, *kwargs.values()))))
        session = owner if isinstance(owner, SparkSession) else owner._spark
        view = job.tables.view_of(session, name)
        if view is not None:
            job.tables.require_known(session, name)
        rows = None if view is None else job.tables.rows(session, name)
        if rows is not None:
            return rows.alias(name_parts(session, name)[-1])
        if view is not None:  # dropped, which Spark says
            return cast(DataFrame, method(owner, view))
        require_table(job.tables, session, name)
        at = time_ns()
        frame: DataFrame = method(owner, *args, **kwargs)
        require_no_jdbc_table(job, frame)
        job.note_read(frame, at)
        return frame

    def jdbc(
        method: Callable[..., Any], reader: DataFrameReader, *args: Any, **kwargs: Any
    ) -> DataFrame:
        bound = inspect.signature(method).bind(reader, *args, **kwargs).arguments
        require_no_jdbc(job, bound["url"], bound["table"])
        at = time_ns()
        frame: DataFrame = method(reader, *args, **kwargs)
        job.note_read(frame, at)
        return frame

    for name in ("format", "option", "options", "schema"):
        patches.replace(DataFrameReader, name, configured)
    for name in _READING:
        patches.replace(DataFrameReader, name, read)
    patches.replace(DataFrameReader, "jdbc", jdbc)
    patches.replace(DataFrameReader, "table", table)
    patches.replace(SparkSession, "table", table)
    _intercept_catalog(patches, job)


def _intercept_catalog(patches: Patches, job: JobAudit) -> None:
    """Have the catalog know the tables that the script has written."""

    def redirected(method: Callable[..., Any], catalog: Catalog, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(method).bind(catalog, *args, **kwargs).arguments
        spark, name = catalog._sparkSession, bound["tableName"]
        if bound.get("dbName"):
            name = f"{quoted(bound['dbName'])}.{quoted(name)}"
        view = job.tables.view_of(spark, name)
        if view is None:
            return method(catalog, *args, **kwargs)
        bound |= {"tableName": view}
        result = method(**{each: value for each, value in bound.items() if each != "dbName"})
        is_table = method.__name__ == "getTable"
        return _own_table(*table_parts(spark, name)) if is_table else result

    def listed(
        method: Callable[..., Any], catalog: Catalog, *args: Any, **kwargs: Any
    ) -> list[Table]:
        bound = inspect.signature(method).bind(catalog, *args, **kwargs).arguments
        spark, tables = catalog._sparkSession, method(catalog, *args, **kwargs)
        own = job.tables.in_database(spark, bound.get("dbName"), bound.get("pattern"))
        others = [each for each in tables if each.isTemporary or not own.has_written(each.name)]
        return [*others, *(_own_table(*own.at, name) for name in own.names)]

    for name in _REDIRECTED:
        patches.replace(Catalog, name, redirected)
    patches.replace(Catalog, "listTables", listed)


def _own_table(catalog: str, *parts: str) -> Table:
    *namespace, name = parts
    return Table(name, catalog, namespace, None, "MANAGED", isTemporary=False)


def require_no_jdbc(job: JobAudit, url: Any, table: Any) -> None:
    """End the script if it may read by JDBC what it has written. ``table``: a table or a query."""
    written = [
        o.destination.key.split(" ", 1)
        for o in job.written.outputs
        if o.destination.kind == "other" and o.destination.format == "jdbc"
    ]
    names = [name for to, name in written if _database(to) == _database(str(url))]
    is_name = _TABLE.fullmatch(str(table or "").strip())
    if names and (not is_name or _last_part(str(table)) in map(_last_part, names)):
        raise ScriptStop(
            f"{table or 'a query'} is read by JDBC after the script has written "
            f"{', '.join(names)}: the audit has not written it. Audit what comes before"
        )


def require_no_jdbc_table(job: JobAudit, frame: DataFrame) -> None:
    """End the script if a frame reads a table of a catalog of JDBC that it has written."""
    catalyst = Catalyst(frame.sparkSession)
    for node in leaves(catalyst, catalyst.analyzed(frame)):
        if simple_name(node) == "DataSourceV2Relation":
            table = node.table()
            if str(table.getClass().getSimpleName()) == "JDBCTable":
                options = table.jdbcOptions()
                require_no_jdbc(job, options.url(), options.tableOrQuery())


def _database(url: str) -> str:
    """Return the database of a URL of JDBC, without a user and parameters."""
    return re.sub(r"//[^/]*@", "//", re.split("[?;]", url)[0]).rstrip("/").lower()


def _last_part(table: str) -> str:
    """Return the name of a table without a schema, which may be that of the connection."""
    return re.sub(_QUOTES, "", table).split(".")[-1].strip().lower()


def _of_outputs(
    job: JobAudit,
    method: Callable[..., Any],
    reader: DataFrameReader,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> DataFrame | None:
    """Read outputs of the script from their copies. None: the call reads other files. Ends the
    script if copies cannot be read as the outputs would have been.
    """
    state: dict[str, Any] = reader.__dict__.get(_STATE, {})
    bound = inspect.signature(method).bind(reader, *args, **kwargs).arguments
    format_ = _format(reader, state, method, bound)
    if format_ == "jdbc":
        options = {**state, **{key.lower(): each for key, each in bound.get("options", {}).items()}}
        require_no_jdbc(job, options.get("url"), options.get("dbtable"))
    names = ("path", "paths")
    wanted = next((bound[name] for name in names if name in bound), state.get("path"))
    if not isinstance(wanted, (str, os.PathLike, list, tuple)):
        return None  # nothing, or an RDD of texts
    paths = [wanted] if isinstance(wanted, (str, os.PathLike)) else [*wanted]
    read: list[str] = []
    outputs: list[WrittenOutput] = []
    has_others = False
    for path in paths:
        for each in alternatives(reader._spark, os.fspath(path)):
            files, written = job.written.files_of(reader._spark, full_path(each))
            if not files:
                has_others = True
                job.phantoms.require_readable(full_path(each))
                job.paths_read.add(full_path(each))  # not all plans name their files
            read += files
            outputs += written
    if not outputs:
        return None
    _require_readable(outputs, format_, has_others)
    return _read(reader, state, bound, format_, read, outputs)


def _format(
    reader: DataFrameReader,
    state: dict[str, Any],
    method: Callable[..., Any],
    bound: dict[str, Any],
) -> str:
    if method.__name__ != "load":
        return method.__name__
    default = reader._spark.conf.get("spark.sql.sources.default", "parquet")
    return str(bound.get("format") or state.get("_format", default)).lower()


def _require_readable(outputs: list[WrittenOutput], format_: str, has_others: bool) -> None:
    """Stop the script if copies cannot be read as the outputs would have been."""
    for output in outputs:
        written = output.destination.format
        if written not in NATIVE:
            advice = "the audit has written Parquet instead. Audit what comes before and after"
            raise ScriptStop(f"{output.name} was written as {written} and is read again: {advice}")
        if written != format_ or written == "text":
            raise ScriptStop(
                f"{output.name} was written as {written} and is read as {format_}: rows cannot be "
                "followed through such files. Write Parquet, CSV or JSON and read the same"
            )
    if has_others:
        raise ScriptStop(
            f"{outputs[0].name} is read together with files that the script has not written: "
            "expected a read of one of them. Read them one by one, and use union()"
        )


def _read(
    reader: DataFrameReader,
    state: dict[str, Any],
    bound: dict[str, Any],
    format_: str,
    paths: list[str],
    outputs: list[WrittenOutput],
) -> DataFrame:
    is_followed = all(output.attribution is not None for output in outputs)
    arguments = {k: v for k, v in bound.items() if k not in ("self", "path", "paths", "format")}
    arguments |= arguments.pop("options", {})
    schema = arguments.pop("schema", None) or state.get("_schema")
    options = {k: v for k, v in state.items() if not k.startswith("_") and k != "path"}
    options |= {name.lower(): value for name, value in arguments.items() if value is not None}
    if "basepath" in options:
        options["basepath"] = _base(options["basepath"], outputs)
    redirected = reader._spark.read.format(format_).options(**options)
    if schema is not None:
        schema = _with_hidden(schema, outputs[0]) if is_followed else schema
        redirected = redirected.schema(schema)
    frame = redirected.load(paths)
    if not is_followed:
        return frame
    if HIDDEN not in frame.columns:  # a CSV file without a header
        last = outputs[0].last_of_csv
        if last not in frame.columns:
            raise ScriptStop(
                f"{outputs[0].name} is read with other columns than it was written with: expected "
                f"{', '.join(outputs[0].destination.columns)}"
            )
        frame = frame.withColumnRenamed(last, HIDDEN)
    return frame.drop(HIDDEN)


def _base(path: str, outputs: list[WrittenOutput]) -> str:
    """Return the folder of an output's files in place of the option ``basePath``. Ends the script
    if the option is another folder.
    """
    for output in outputs:
        if output.destination.key == full_path(path):
            return f"file://{output.merged[-1] if output.merged else output.files}"
    raise ScriptStop(
        f"{outputs[0].name} is read with basePath {path}: expected {outputs[0].destination.key}"
    )


def _parsed(schema: str) -> StructType:
    parsed = StructType.fromDDL(schema)
    return parsed if isinstance(parsed, StructType) else StructType([StructField("value", parsed)])


def _with_hidden(schema: StructType | str, output: WrittenOutput) -> StructType:
    """Return a schema with the column of ids behind the others. Ends the script if the schema of a
    CSV has not all columns.
    """
    to = output.destination
    parsed = schema if isinstance(schema, StructType) else _parsed(schema)
    in_files = [name for name in parsed.names if name not in to.partitions]
    if to.format == "csv" and len(in_files) != len(output.in_files):
        raise ScriptStop(
            f"{output.name} is read with a schema of {len(in_files)} columns and was written with "
            f"{len(output.in_files)}: rows cannot be followed. Give all columns"
        )
    kind = StringType() if to.is_text else ArrayType(LongType())
    return StructType([*parsed.fields, StructField(HIDDEN, kind)])
