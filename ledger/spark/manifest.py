"""Manifests: which files a run wrote, and the position of each row in them."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import fsspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ledger.errors import IntegrityError
from ledger.spark.files import literal

# A chain of comparisons is fastest for a few files, a broadcast join for many: 16 million rows took
# 0.62 s and 1.14 s with 8 files, the bare scan 0.51 s; but the chain's cost grows with the files.
MOST_FILES_COMPARED = 64

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"


@dataclass(frozen=True)
class DataFile:
    """One Parquet file. ``bytes``: its size. ``first_position``: that of its first row."""

    path: str
    bytes: int
    rows: int
    first_position: int


@dataclass(frozen=True)
class Manifest:
    """The files of one output, by position; positions are dense over all of them."""

    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def paths(self) -> list[str]:
        """Paths of the files, in order."""
        return [file.path for file in self.files]


def take_manifest(folder: str) -> Manifest:
    """The Parquet files below ``folder``, sorted by path, with rows by their footers."""
    fs, root = fsspec.core.url_to_fs(folder)
    found = fs.find(root, detail=True) if fs.exists(root) else {}
    names = sorted(name for name in found if _is_data(name[len(root) :]))
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda name: _footer_rows(fs, name), names))
    files, position = [], 0
    for name, count in zip(names, rows, strict=True):
        path = fs.unstrip_protocol(name) if "://" in folder else name
        files.append(DataFile(path, int(found[name]["size"]), count, position))
        position += count
    return Manifest(tuple(files))


def check_files(manifest: Manifest) -> None:
    """Raise IntegrityError unless every file is there with the size it had."""
    if not manifest.files:
        return
    fs = fsspec.core.url_to_fs(manifest.files[0].path)[0]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda file: _check_file(fs, file), manifest.files))


def read_files(spark: SparkSession, manifest: Manifest, schema: StructType) -> DataFrame:
    """The rows of the manifest's files; needs at least one file, as every stored output has."""
    return spark.read.schema(schema).parquet(*literal(manifest.paths))


def stored_schema(manifest: Manifest) -> StructType:
    """The schema that Spark wrote the manifest's files with, from a footer: no Spark job."""
    with fsspec.open(manifest.paths[0], "rb") as stream:
        metadata = pq.read_metadata(stream).metadata
    return StructType.fromJson(json.loads(metadata[_SPARK_SCHEMA]))


def with_position(frame: DataFrame, manifest: Manifest, name: str, offset: int = 0) -> DataFrame:
    """``frame``, read from the manifest's files, with each row's position + ``offset`` as ``name``."""
    first = {os.path.basename(file.path): file.first_position + offset for file in manifest.files}
    if len(first) != len(manifest.files):
        raise IntegrityError(f"two files of {manifest.paths[0]} and its siblings share a name")
    file, row = F.col("_metadata.file_name"), F.col("_metadata.row_index")
    if len(first) <= MOST_FILES_COMPARED:
        # A map is data to the code that Spark generates; a chain of WHEN would be compiled anew.
        known = F.create_map(*(F.lit(part) for pair in first.items() for part in pair))
        return frame.withColumn(name, known[file].cast("bigint") + row)
    starts = frame.sparkSession.createDataFrame(list(first.items()), "_file string, _first bigint")
    located = frame.select("*", file.alias("_file"), row.alias("_row"))
    joined = located.join(F.broadcast(starts), "_file", "inner")
    return joined.withColumn(name, F.col("_first") + F.col("_row")).drop("_file", "_first", "_row")


def _is_data(relative: str) -> bool:
    parts = relative.strip("/").split("/")
    return relative.endswith(".parquet") and not any(
        part.startswith((".", "_t", "_s")) for part in parts
    )


def _footer_rows(fs: fsspec.AbstractFileSystem, name: str) -> int:
    with fs.open(name, "rb") as stream:
        return int(pq.ParquetFile(stream).metadata.num_rows)


def _check_file(fs: fsspec.AbstractFileSystem, file: DataFile) -> None:
    try:
        size = fs.info(file.path)["size"]
    except FileNotFoundError:
        size = None
    if size != file.bytes:
        found = "it is gone" if size is None else f"found {size} bytes"
        raise IntegrityError(
            f"file {file.path}: expected {file.bytes} bytes with {file.rows} rows, {found}. "
            "Run the step that wrote it again: in Airflow clear its task and those behind it"
        )
