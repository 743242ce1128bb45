"""Copy the Parquet files of a source as they are: the id of a record is its place in its file.

Copying takes a tenth of the time in which Spark reads the rows and writes them with an id.
"""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledger.auditing import ids
from ledger.auditing.ids import Ids
from ledger.lineage.catalyst import Catalyst
from ledger.lineage.nodes import simple_name

_ROW_BITS = 33  # of a file, as in Spark's own ids
_MAX_FILES = 1 << (ids.ROW_BITS - _ROW_BITS)
_DATA_SOURCES = "org.apache.spark.sql.execution.datasources"
_FORMAT = f"{_DATA_SOURCES}.parquet.ParquetFileFormat"
_PATHS = ("path", "paths")
# Options that say how a file is read, and not which files are.
_OPTIONS = (*_PATHS, "datetimerebasemode", "int96rebasemode", "mergeschema")
_SKIPPING = ("ignoreCorruptFiles", "ignoreMissingFiles")
# Options of a reader, with those of the session, that say which calendar a date is of.
_REBASING = {
    "datetimerebasemode": "spark.sql.parquet.datetimeRebaseModeInRead",
    "int96rebasemode": "spark.sql.parquet.int96RebaseModeInRead",
}
# Options of the session that change how values are read. The script may change them before the
# copy is read.
_INTERPRETING = (
    *("spark.sql.legacy.parquet.nanosAsLong", "spark.sql.parquet.binaryAsString"),
    *("spark.sql.parquet.fieldId.read.enabled", "spark.sql.parquet.inferTimestampNTZ.enabled"),
    *("spark.sql.parquet.int96TimestampConversion", *_REBASING.values()),
)
_SCHEME = "^file:/+"  # Spark has one slash or three
_TAKEN = frozenset({"_metadata", "_tmp_metadata_row_index"})  # by Spark


@dataclass(frozen=True)
class CopiedFiles:
    """Copies of the Parquet files of one source.

    Attributes:
        folder: the folder of the copies. The name of a copy is the index of its file in ``names``.
        names: Spark's names of the files that were copied.
        rows: the number of rows of each file.
        options: the options of the reader by which the script reads the files.
        first: the smallest id.
    """

    folder: Path
    names: Sequence[str]
    rows: Sequence[int]
    options: dict[str, str]
    first: int

    @property
    def all_ids(self) -> Ids:
        """The ids of all records, sorted."""
        firsts = [self.first + (at << _ROW_BITS) for at in range(len(self.rows))]
        pairs = zip(firsts, self.rows, strict=True)
        return np.concatenate([np.arange(first, first + rows) for first, rows in pairs])

    def read(self, frame: DataFrame) -> DataFrame:
        """Read the copies with the schema and options with which ``frame`` reads the original
        files.
        """
        reader = frame.sparkSession.read.schema(frame.schema).options(**self.options)
        return reader.parquet(f"file://{self.folder.absolute()}")

    def id_in_copy(self, metadata: Column) -> Column:
        """Return the id of a row of a copy, from the file metadata column of that row."""
        file = F.substring_index(metadata["file_name"], ".", 1).cast("bigint")
        return self._id(file, metadata)

    def id_in_file(self, metadata: Column) -> Column:
        """Return the id of a row of an original file, from the file metadata column of that row."""
        paths = F.array(*(F.lit(re.sub(_SCHEME, "", name)) for name in self.names))
        file = F.array_position(paths, F.regexp_replace(metadata["file_path"], _SCHEME, ""))
        return self._id(file - 1, metadata)

    def _id(self, file: Column, metadata: Column) -> Column:
        return F.lit(self.first) + F.shiftleft(file, _ROW_BITS) + metadata["row_index"]


def copied_files(
    catalyst: Catalyst, frame: DataFrame, folder: Path, first: int
) -> CopiedFiles | None:
    """Copy the files of a frame to a new folder, and give their records ids from ``first`` on.

    Returns None if Spark has to copy the rows: they are not from Parquet files of this machine, a
    file could not be copied, or columns, options or partitions decide which rows and values Spark
    reads from the files.
    """
    node = catalyst.analyzed(frame)
    if not str(catalyst.spark.sparkContext.master).startswith("local"):
        return None
    if simple_name(node) != "LogicalRelation" or node.catalogTable().isDefined():
        return None
    relation = node.relation()
    if simple_name(relation) != "HadoopFsRelation" or relation.partitionSchema().size():
        return None
    if str(relation.fileFormat().getClass().getName()) != _FORMAT:
        return None
    pairs = catalyst.items(relation.options().toSeq())
    options = {str(pair._1()).lower(): str(pair._2()) for pair in pairs}
    conf = catalyst.spark.conf
    has_others = not set(options).issubset(_OPTIONS) or any(
        conf.get(f"spark.sql.files.{each}", "false") != "false" for each in _SKIPPING
    )
    has_others |= any(conf.get(name, None) is not None for name in _INTERPRETING)
    names = [str(name) for name in relation.location().inputFiles()]
    is_taken = not _TAKEN.isdisjoint(map(str.lower, frame.columns))
    if has_others or is_taken or not 0 < len(names) <= _MAX_FILES:
        return None
    try:
        folder.mkdir()
        rows = [_copied(name, folder / f"{at}.parquet") for at, name in enumerate(names)]
        copied = sum(file.stat().st_size for file in folder.iterdir())
        if copied != int(relation.location().sizeInBytes()):
            raise OSError("the files have changed since they were listed")
    except (OSError, pa.ArrowException):  # Spark reads them, or says why it cannot
        shutil.rmtree(folder, ignore_errors=True)
        return None
    others = {option: str(conf.get(name)) for option, name in _REBASING.items()}
    others |= {name: value for name, value in options.items() if name not in _PATHS}
    return CopiedFiles(folder, names, rows, others, first)


def _copied(name: str, target: Path) -> int:
    """Copy a file that Spark names ``name``, and return the number of its rows. Raises OSError if
    it is no file of this machine, or changes meanwhile.
    """
    address = urlparse(name)
    if address.scheme != "file":
        raise OSError(f"{name} is no file of this machine")
    path = unquote(address.path)
    before = os.stat(path)
    shutil.copyfile(path, target)
    after = os.stat(path)
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise OSError(f"{name} has changed while it was copied")
    return int(pq.read_metadata(target).num_rows)
