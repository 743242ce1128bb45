"""Writes of a script: each goes to a copy, and is followed."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.patches import Patches
from ledger.auditing.scripts.places import ABOVE, INSIDE
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.tables import (
    HIVE,
    Partitioned,
    location_of,
    require_no_view,
    table_key,
)
from ledger.auditing.scripts.written import NATIVE, Destination, full_path
from ledger.types.spark import quoted

_CONFIGURING = ("bucketBy", "clusterBy", "format", "mode", "option", "options", "sortBy")
_ENDING = (
    *("csv", "insertInto", "jdbc", "json", "orc"),
    *("parquet", "save", "saveAsTable", "text", "xml"),
)
_TABLES = ("insertInto", "saveAsTable")
_CALLS = "_ackledger_calls"
# Arguments of the methods that end a write and are no options of a format.
_ARGUMENTS = frozenset(
    {
        *("format", "mode", "name", "overwrite", "partitionBy", "path"),
        *("properties", "self", "table", "tableName", "url"),
    }
)


def intercept_writes(patches: Patches, job: JobAudit) -> None:
    """Have the writes of a script done to copies."""

    def configured(
        method: Callable[..., Any], writer: DataFrameWriter, *args: Any, **kwargs: Any
    ) -> DataFrameWriter:
        calls = writer.__dict__.setdefault(_CALLS, [])
        calls.append((method.__name__, args, kwargs))
        result: DataFrameWriter = method(writer, *args, **kwargs)
        return result

    def ended(
        method: Callable[..., Any], writer: DataFrameWriter, *args: Any, **kwargs: Any
    ) -> None:
        frame: DataFrame = writer._df
        if method.__name__ == "insertInto":
            name = str(next(iter((*args, *kwargs.values()))))
            require_no_view(frame.sparkSession, name)
            frame = job.tables.as_in_table(frame, name)
        elif method.__name__ == "saveAsTable":
            frame = _as_saved(job, writer, frame, args, kwargs)
        destination = _destination(method, writer, frame, args, kwargs, len(job.written.outputs))
        if not _is_written(job, frame.sparkSession, destination):
            return
        if method.__name__ == "saveAsTable" and destination.mode != "append":
            is_hive = destination.format == HIVE
            job.tables.replace(destination.key, Partitioned(destination.partitions, is_hive))
        _require_apart(job, destination)
        replaces = _replaced(job, frame.sparkSession, destination, method.__name__)
        job.write(frame, replace(destination, replaces=replaces))

    for name in (*_CONFIGURING, "partitionBy"):
        patches.replace(DataFrameWriter, name, configured)
    for name in _ENDING:
        patches.replace(DataFrameWriter, name, ended)


def _as_saved(
    job: JobAudit,
    writer: DataFrameWriter,
    frame: DataFrame,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> DataFrame:
    """Return the rows that saveAsTable writes. If it appends to a table with the same names of
    columns, in any order, they are in the table's order and types.
    """
    bound = inspect.signature(DataFrameWriter.saveAsTable).bind(writer, *args, **kwargs).arguments
    calls = writer.__dict__.get(_CALLS, [])
    mode = bound.get("mode") or _last(calls, "mode", "error")
    spark = frame.sparkSession
    schema = job.tables.schema(spark, bound["name"]) if str(mode).lower() == "append" else None
    if schema is None or sorted(map(str.lower, schema.names)) != sorted(
        map(str.lower, frame.columns)
    ):
        return frame
    return job.tables.as_in_table(frame.select(*map(quoted, schema.names)), bound["name"])


def _is_written(job: JobAudit, spark: SparkSession, to: Destination) -> bool:
    """Return whether a write writes. One with mode ignore does not if something is there, which is
    noted.
    """
    live = job.written.live(to.kind, to.key)
    if to.mode == "ignore":
        is_path, there = to.kind == "path", job.phantoms.exists
        exists = there(to.key) if is_path else job.tables.exists(spark, to.key)
        if exists and not live:
            job.notes.append(f"{to.name} exists, so a write with mode('ignore') writes nothing")
        return not exists and not live
    return True


def _require_apart(job: JobAudit, to: Destination) -> None:
    """End the script if an overwrite replaces a partition of another output, or a whole output in a
    folder below.
    """
    if to.mode != "overwrite" or to.kind != "path":
        return
    for own in job.phantoms.outputs(to.key, INSIDE, ABOVE):
        inner = to.key.removeprefix(f"{own.destination.folder}/")
        if inner == to.key or "=" in inner.split("/")[0]:
            raise ScriptStop(
                f"overwrites {to.name}, which has files of {own.name}: the audit cannot tell which "
                "rows remain. Audit what comes before"
            )


def _replaced(job: JobAudit, spark: SparkSession, to: Destination, method: str) -> tuple[str, ...]:
    """Return the columns of the partitions of which an overwrite replaces only some; none: it
    replaces all. Ends the script if it may replace a part of what the script has written.
    """
    if to.mode != "overwrite" or to.kind == "other":
        return ()
    mode = _option(list(to.calls), "partitionoverwritemode")
    is_partial = is_dynamic(spark) if mode is None else str(mode).lower() == "dynamic"
    has_condition = _option(list(to.calls), "replacewhere") is not None
    table = job.tables.partitioned(spark, to.key) if method == "insertInto" else None
    if not (is_partial or has_condition or (table and table.is_hive)):
        return ()
    partitions = None if table is None else table.columns
    if to.kind == "path" and to.format in NATIVE:
        partitions = to.in_one_case().partitions
    return job.written.require_partitions(to, None if has_condition else partitions)


def is_dynamic(spark: SparkSession) -> bool:
    """Return whether overwrites replace only partitions unless an option says otherwise."""
    mode = spark.conf.get("spark.sql.sources.partitionOverwriteMode", "static")
    return str(mode).lower() == "dynamic"


def _destination(
    method: Callable[..., Any],
    writer: DataFrameWriter,
    frame: DataFrame,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    number: int,
) -> Destination:
    """Take the destination of a write from its arguments and from the calls before it."""
    bound = inspect.signature(method).bind(writer, *args, **kwargs).arguments
    values = {name: value for name, value in bound.items() if value is not None}
    values |= values.pop("options", {})
    calls = [*writer.__dict__.get(_CALLS, ())]
    options = {name: value for name, value in values.items() if name not in _ARGUMENTS}
    if options:
        calls.append(("options", (), options))
    kind = "table" if method.__name__ in _TABLES else "path"
    default = frame.sparkSession.conf.get("spark.sql.sources.default", "parquet")
    format_ = _last(calls, "format", default)
    if method.__name__ not in ("save", *_TABLES):
        format_ = method.__name__
    format_ = str(values.get("format", format_)).lower()
    mode = str(values.get("mode", _last(calls, "mode", "error"))).lower()
    if method.__name__ == "insertInto":
        is_overwrite = values.get("overwrite", mode == "overwrite")
        mode = "overwrite" if is_overwrite else "append"
    partitions = [args for name, args, _ in calls if name == "partitionBy"]
    partitions += [(values["partitionBy"],)] if "partitionBy" in values else []
    path = values.get("path", _option(calls, "path"))
    table, location = values.get("table", _option(calls, "dbtable")), ""
    if kind == "table":
        name = str(values.get("name", values.get("tableName")))
        key = table_key(frame.sparkSession, name)
        location = location_of(frame.sparkSession, key, path)
    elif format_ == "jdbc" and table is not None:
        kind, name, key = "other", str(table), f"{values.get('url', _option(calls, 'url'))} {table}"
    elif path is not None:
        name, key = str(path), full_path(str(path))
    else:
        kind, name, key = "other", f"{format_} output {number + 1}", f"{format_} {number}"
    return Destination(
        name=name,
        key=key,
        kind=kind,
        format=format_,
        mode={"errorifexists": "error", "default": "error"}.get(mode, mode),
        columns=tuple(frame.columns),
        partitions=tuple(_flat(partitions[-1])) if partitions else (),
        calls=[call for call in calls if call[0] not in ("partitionBy", "format")],
        location=location,
    )


def _last(calls: list[Any], name: str, default: Any) -> Any:
    values = [args[0] if args else None for called, args, _ in calls if called == name]
    return values[-1] if values else default


def _option(calls: list[Any], name: str) -> Any:
    """Return the value of an option, whose name is in any case; None: it has none."""
    value = None
    for called, args, kwargs in calls:
        if called == "options":
            value = next((v for key, v in kwargs.items() if key.lower() == name), value)
        elif called == "option" and str(args[0] if args else kwargs.get("key")).lower() == name:
            value = args[1] if len(args) > 1 else kwargs.get("value")
    return value


def _flat(columns: tuple[Any, ...]) -> list[str]:
    return [
        name for each in columns for name in (each if isinstance(each, (list, tuple)) else [each])
    ]
