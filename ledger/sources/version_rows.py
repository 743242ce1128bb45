"""Rows of a version's files, read by Spark, and the files that rows come from."""

import json
import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from ledger.core.column_names import FILE, POSITION
from ledger.core.paths import literal
from ledger.errors import IntegrityError
from ledger.storage.versions import Version
from ledger.types.spark import local_rows, nullable

_PLAIN = re.compile(r"[\w.-]+", re.ASCII)  # a name that no URL encodes
_PART, _ROW, _FIRST, _VALUE = (
    "_ackledger_part",
    "_ackledger_row",
    "_ackledger_first",
    "_ackledger_value_",
)


def file_keys(frame: DataFrame, paths: Sequence[str]) -> tuple[Column, list[str]]:
    """Return the key of the file that each row of a frame is read from, and the key of each path. A
    key is the end of a path: as many names as tell the paths apart.
    """
    split = [path.split("/") for path in paths]
    for names in range(1, max(map(len, split), default=1) + 1):
        keys = ["/".join(parts[-names:]) for parts in split]
        if len(set(keys)) == len(keys):
            break
    else:
        raise IntegrityError(
            f"{paths[0]} and its siblings: expected each file once, found one twice"
        )
    about = frame.metadataColumn("_metadata")  # a column of the user may be called so
    if names == 1 and all(map(_PLAIN.fullmatch, keys)):
        return about["file_name"], keys
    path = F.url_decode(F.replace(about["file_path"], F.lit("+"), F.lit("%2B")))
    return F.substring_index(path, "/", -names), keys


def count_rows(spark: SparkSession, version: Version) -> int:
    """Return the number of rows that Spark reads from a version's files and finds a position for.
    Reads no column.
    """
    if not version.files:
        return 0
    return version_rows(spark, version, position=POSITION).count()


def version_rows(
    spark: SparkSession,
    version: Version,
    *,
    position: str | None = None,
    offset: int = 0,
    deleted: Mapping[str, Sequence[int]] | None = None,
    with_file: bool = False,
) -> DataFrame:
    """Return the rows of a version, with its columns.

    ``position``: the name of a further column with each row's position + ``offset``.
    ``deleted``: by path, the indexes of rows that are left out.
    ``with_file``: whether ``FILE`` is a further column.
    """
    schema = nullable(StructType.fromJson(json.loads(version.schema)))
    assert isinstance(schema, StructType)
    further = [StructField(position, LongType())] if position else []
    if not version.files:
        return spark.createDataFrame([], StructType([*schema.fields, *further]))
    paths = [file.path for file in version.files]
    frame = spark.read.schema(schema).parquet(*literal(paths))
    about, (key, keys) = frame.metadataColumn("_metadata"), file_keys(frame, paths)
    named = {FILE: about["file_path"]} if with_file else {}
    named |= {_PART: key, _ROW: about["row_index"]}
    rows = frame.select("*", *(column.alias(name) for name, column in named.items()))
    if deleted:
        by_path = dict(zip(paths, keys, strict=True))
        places = [(by_path[path], row) for path, own in deleted.items() for row in own]
        gone = {_PART: pa.array([place[0] for place in places], pa.string())}
        gone[_ROW] = pa.array([place[1] for place in places], pa.int64())
        rows = rows.join(local_rows(spark, gone), [_PART, _ROW], "left_anti")
    columns = {name: F.col(f"`{name}`") for name in schema.names}
    of_files = {_PART: pa.array(keys)}
    if position:
        of_files[_FIRST] = pa.array([file.first_position + offset for file in version.files])
    if version.values is not None:
        for number, name in enumerate(version.values.column_names):
            of_files[f"{_VALUE}{number}"] = version.values[name].combine_chunks()
            kind = schema[name].dataType
            columns[name] = F.col(f"{_VALUE}{number}").cast(kind).alias(name)
    if len(of_files) > 1:
        rows = rows.join(F.broadcast(local_rows(spark, of_files)), _PART, "inner")
    if position:
        columns[position] = (F.col(_FIRST) + F.col(_ROW)).alias(position)
    if with_file:
        columns[FILE] = F.col(FILE)
    return rows.select(*columns.values())
