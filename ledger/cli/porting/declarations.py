"""The declarations of sources and sinks that stand for a job's reads and writes."""

import ast
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from ledger.cli.porting.reading import DataAccess
from ledger.sources.files.source import FORMATS, OPTIONS

_WIDTH = 88  # of ruff, unless it is set
# Options of Spark that have arguments of their own here, or need none.
_OWN = {"header", "schema", "nullvalue", "multiline", "path", "format", "sep", "delimiter"}
_OWN |= {"inferschema", "mode", "encoding", "charset", "samplingratio", "mergeschema"}
# Options of a write that its sink has, or that name its place.
_WRITTEN = {"path", "name", "tablename", "format", "mode", "partitionby"}
_OF_JDBC = {"url", "table", "dbtable", "properties", "user", "password", "driver"}
_PARAMS = re.compile(r"\{\{ params\.(\w+) \}\}")
_REMOTE = ("s3://", "s3a://", "gs://", "abfs://", "abfss://", "wasbs://")


@dataclass
class Declaration:
    """A call such as ``FileSource("orders.csv", schema=ORDER)``.

    Attributes:
        name: the name of the class.
        arguments: the texts of its arguments.
        todo: lines of what is left to do.
    """

    name: str
    arguments: list[str] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)


def quoted(text: str) -> str:
    """Return a text as a literal in double quotes."""
    literal = repr(text)
    return literal if '"' in literal else f'"{literal[1:-1]}"'


def call(name: str, arguments: Sequence[str], indent: int = 0, end: str = "") -> str:
    """Return a call in one line with ``end`` behind it, or with one argument a line."""
    line = f"{name}({', '.join(arguments)}){end}"
    if indent + len(line) <= _WIDTH and "\n" not in line:
        return line
    blank = " " * indent
    lines = "".join(f"{blank}    {argument},\n" for argument in arguments)
    return f"{name}(\n{lines}{blank}){end}"


def source(
    name: str, read: DataAccess, path: str | None, template: str | None, schema: str
) -> Declaration:
    """Return the declaration of a source or reference.

    Args:
        name: the name of the step.
        read: the read of the job.
        path: its path or table, None if it is not known before the job runs.
        template: the path with ``{{ params.NAME }}`` for parts that are not known.
        schema: the text of its schema, or empty.
    """
    columns = schema or '"TODO STRING"'
    if read.format in FORMATS:
        declared = _files(name, read, path, template, columns)
    else:
        what = f"{read.format} {path or ''}".rstrip()
        todo = f"reads {what}: declare its files, a SqlSource, or a source of your own"
        unknown = [quoted(f"TODO_{name}"), 'format="parquet"', f"schema={columns}"]
        declared = Declaration("FileSource", unknown, [todo])
    if not schema:
        declared.todo.append(
            "has no schema: write one in DDL, for example the output of"
            " print(FRAME.schema.toDDL()) after the read"
        )
    return declared


def _files(
    name: str, read: DataAccess, path: str | None, template: str | None, columns: str
) -> Declaration:
    declared = Declaration("FileSource")
    if path is None:
        written = ast.unparse(read.location) if read.location else "no path"
        path = template or f"TODO_{name}"
        passed = " ".join(f"--param {each}=..." for each in dict.fromkeys(_PARAMS.findall(path)))
        declared.todo.append(
            f"reads a path that is computed, {written}: write it, for example with"
            " {{ interval_start | ds }}" + (f", or run it with {passed}" if passed else "")
        )
    elif not {".", "*"} & {*path.rpartition("/")[2]}:
        path = f"{path.rstrip('/')}/*"
    declared.arguments.append(quoted(path))
    if read.format != "csv":
        declared.arguments.append(f"format={quoted(read.format)}")
    declared.arguments.append(f"schema={columns}")
    if read.format == "csv" and not read.is_set("header"):
        declared.arguments.append("header=False")
    if read.format == "csv" and read.is_set("multiline"):
        declared.arguments.append("multiline=True")
    elif read.is_set("multiline"):
        declared.todo.append("reads JSON of several lines: write one object a line")
    null = read.constant("nullValue")
    if isinstance(null, str) and null:
        declared.arguments.append(f"null_value={quoted(null)}")
    options = {option: read.constant(option) for option in OPTIONS[read.format]}
    if read.format == "csv":
        options["sep"] = options["sep"] or read.constant("delimiter")
    pairs = [f"{quoted(key)}: {quoted(str(value))}" for key, value in options.items() if value]
    if pairs:
        declared.arguments.append(f"options={{{', '.join(pairs)}}}")
    if str(read.constant("mode")).upper() == "DROPMALFORMED":
        declared.todo.append("drops records that do not parse: here they fail with a reason")
    supported = _OWN | {option.lower() for option in OPTIONS[read.format]}
    others = [
        option
        for option, value in read.options.items()
        if option.lower() not in supported
        or not (isinstance(value, ast.Constant) or option in ("schema", "path"))
    ]
    if others:
        declared.todo.append(f"has options that are left out: {', '.join(others)}")
    return declared


def sink_path(name: str, template: str | None, taken: Container[str]) -> str:
    """Return a path for a sink whose path is not known before the job runs. It has the name of the
    step unless its known parts tell it from the paths that are ``taken``.
    """
    path = _PARAMS.sub("TODO", template or "TODO")
    return f"{path}_{name}" if path in taken or path.endswith("TODO") else path


def sink(write: DataAccess, path: str, *, is_known: bool) -> Declaration:
    """Return the declaration of a sink. ``path``: its path or table, or ``sink_path``."""
    declared = Declaration("ParquetSink")
    if not is_known:
        written = ast.unparse(write.location) if write.location else "no path"
        declared.todo.append(f"writes to a path that is computed, {written}: write it")
    supported = _WRITTEN | (_OF_JDBC if write.format == "jdbc" else set())
    if others := [option for option in write.options if option.lower() not in supported]:
        declared.todo.append(f"has options that are left out: {', '.join(others)}")
    if write.format == "jdbc":
        todo = "writes jdbc: set SINK_URL to a PostgreSQL database, and choose its mode"
        arguments = [quoted("env:SINK_URL"), quoted(path)]
        return Declaration("PostgresSink", arguments, [*declared.todo, todo])
    if write.format == "delta" or path.startswith(_REMOTE):
        declared.name = "DeltaSink"
    kind = declared.name.removesuffix("Sink")
    if write.format == "table":
        path = path.replace(".", "/")
        declared.todo.append(f"writes a table of the catalog: create one over the folder {path}")
    elif write.format != kind.lower():
        declared.todo.append(
            f"writes {write.format}: here it is {kind}. Or write a sink of your own"
            " (docs/extending.md)"
        )
    declared.arguments = [quoted(path)]
    columns = ast.walk(write.options.get("partitionBy", ast.Pass()))
    names = [quoted(str(each.value)) for each in columns if isinstance(each, ast.Constant)]
    if names:
        declared.arguments.append(f"partition_by=({', '.join(names)}{',' * (len(names) == 1)})")
    if "overwrite" in str(write.constant("mode")).lower():
        declared.todo.append(
            "overwrites: here each batch adds its rows to those of earlier ones, so name a new"
            " folder, without the files of the job"
        )
    return declared
