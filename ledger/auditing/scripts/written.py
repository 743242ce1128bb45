"""Outputs of a script: where it wanted to write them, and the copy that is written instead."""

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from ledger.auditing.outputs import HIDDEN, AuditOutput, text_of_ids
from ledger.auditing.scripts.stops import ScriptStop

NATIVE = ("csv", "json", "orc", "parquet", "text", "xml")
_WITH_TEXT = ("csv", "json", "xml")  # in which a list of ids is a text


@dataclass(frozen=True)
class Destination:
    """The place and the form of a write.

    Attributes:
        name: the path, table or address, as the script calls it.
        key: the path in full, the name of the table, or the address.
        kind: "path", "table", or "other" for what no path or table of Spark is.
        format: in lower case.
        mode: of the save, in lower case.
        columns: those of the frame.
        partitions: the columns of ``partitionBy``.
        calls: names, arguments and keywords of the writer's methods that configured it.
    """

    name: str
    key: str
    kind: str
    format: str
    mode: str
    columns: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    calls: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]] = ()

    @property
    def is_text(self) -> bool:
        """Whether a file has the list of ids as a text."""
        return self.format in _WITH_TEXT


@dataclass
class WrittenOutput(AuditOutput):
    """An output of a script. ``copy``: its rows as Parquet, in columns c0, c1, ... and, if they are
    followed, ``HIDDEN``. ``files``: the same in its own format, once the script reads them.
    ``has_driver_rows``: rows come from the driver or an RDD.
    """

    destination: Destination = field(kw_only=True)
    copy: Path = field(kw_only=True)
    files: Path | None = None
    has_driver_rows: bool = False

    def is_at(self, path: Path) -> bool:
        """Return whether a path is in the folder where the script wanted to write it."""
        key = Path(self.destination.key)
        return self.destination.kind == "path" and (path == key or key in path.parents)

    @property
    def in_files(self) -> list[str]:
        """The columns in its files: partitions are in the names of folders."""
        to = self.destination
        return [name for name in to.columns if name not in to.partitions]

    @property
    def last_of_csv(self) -> str:
        """Spark's name of the last column of its files if these are CSV without a header."""
        return f"_c{len(self.in_files)}"

    def rows(self, spark: Any) -> DataFrame:
        """Return the copy under the names of the columns, with ``HIDDEN`` behind them."""
        copied: DataFrame = spark.read.parquet(f"file://{self.copy}")
        hidden = [HIDDEN] if HIDDEN in copied.columns else []
        return copied.toDF(*self.destination.columns, *hidden)

    def write_files(self, spark: Any, folder: Path) -> Path:
        """Write the rows in the format of the output, as the script would have."""
        frame = self.rows(spark)
        to = self.destination
        if to.format == "text":
            frame = frame.drop(HIDDEN)
        elif to.is_text and HIDDEN in frame.columns:
            frame = frame.withColumn(HIDDEN, text_of_ids(frame[HIDDEN]))
        writer = frame.write
        for name, args, kwargs in to.calls:
            if name != "mode":
                writer = getattr(writer, name)(*args, **kwargs)
        if to.partitions:
            writer = writer.partitionBy(*to.partitions)
        writer.mode("error").format(to.format).save(f"file://{folder}")
        self.files = folder
        return folder


@dataclass
class Written:
    """All outputs of a script, by what it calls them.

    ``folder``: of the copies. A path that is written again gets a copy of its own, in the next
    generation of folders.
    """

    folder: Path
    outputs: list[WrittenOutput] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def next_copy(self) -> Path:
        """Return a folder for the copy of the next output; a write that fails leaves its own."""
        return self.folder / f"output-{next(self._numbers)}"

    def live(self, kind: str, key: str) -> list[WrittenOutput]:
        """Return the outputs that are at a path or table now: the last one, and those that it was
        appended to.
        """
        live: list[WrittenOutput] = []
        for output in self.outputs:
            to = output.destination
            if (to.kind, to.key) == (kind, key):
                live = [*live, output] if to.mode == "append" else [output]
        return live

    def note_replaced(self) -> None:
        """Note for each output the line of the write that replaced it."""
        for at, output in enumerate(self.outputs):
            to = output.destination
            for later in self.outputs[at + 1 :]:
                other = later.destination
                is_one = (to.kind, to.key) == (other.kind, other.key)
                if is_one and other.mode != "append" and to.kind != "other":
                    output.replaced_at = later.place
                    break

    def below(self, path: str) -> list[WrittenOutput]:
        """Return the outputs at or below a path, in which a wildcard may be."""
        return [
            output
            for key in dict.fromkeys(to.key for to in self._paths())
            if _is_at_or_below(key, path)
            for output in self.live("path", key)
        ]

    def above(self, path: str) -> list[WrittenOutput]:
        """Return the outputs in whose folder a path is."""
        return [
            output
            for key in dict.fromkeys(to.key for to in self._paths())
            if path.startswith(f"{key}/")
            for output in self.live("path", key)
        ]

    def _paths(self) -> list[Destination]:
        return [each.destination for each in self.outputs if each.destination.kind == "path"]

    def files_of(self, spark: Any, path: str) -> tuple[list[str], list[WrittenOutput]]:
        """Return the paths to read instead of one, and the outputs that are there; none: the
        script has written nothing there.
        """
        at, above = self.below(path), self.above(path)
        if not at and not above:
            return [], []
        outputs = at or above
        for output in outputs:
            if output.files is None:
                generation = self._generation(output)
                below = output.destination.key.replace("://", "/").lstrip("/")
                output.write_files(spark, self.folder / f"files-{generation}" / below)
        if at and any(output.destination.key != path for output in at):
            if len({self._generation(output) for output in at}) > 1:
                raise ScriptStop(
                    f"{path} is read, and a part of it was written more than once: expected a read "
                    "of one output. Read the outputs one by one"
                )
            root = self.folder / f"files-{self._generation(at[0])}"
            return [f"file://{root}/{path.replace('://', '/').lstrip('/')}"], outputs
        if at:
            return [f"file://{output.files}" for output in at], outputs
        paths = []
        for output in outputs:
            inside = f"{output.files}{path.removeprefix(output.destination.key)}"
            if glob.glob(inside):
                paths.append(f"file://{inside}")
        return paths or [f"file://{outputs[-1].files}{path}"], outputs

    def _generation(self, output: WrittenOutput) -> int:
        same = [each for each in self.outputs if each.destination.key == output.destination.key]
        return [id(each) for each in same].index(id(output))


def full_path(path: str) -> str:
    """Return a path as outputs are compared by: absolute if it is local, without a last slash."""
    for scheme in ("file://", "file:"):
        if path.startswith(scheme):
            path = "/" + path.removeprefix(scheme).lstrip("/")
    if "://" not in path:
        path = os.path.abspath(path)
    return path.rstrip("/") or "/"


def table_key(name: str) -> str:
    """Return a table's name as outputs are compared by: in lower case, without the default
    catalog.
    """
    return name.replace("`", "").lower().removeprefix("spark_catalog.").removeprefix("default.")


def view_of(key: str) -> str:
    """Return the name of the view that shows a table: its last part."""
    return key.rpartition(".")[2]


def _is_at_or_below(key: str, path: str) -> bool:
    if key == path or key.startswith(f"{path}/"):
        return True
    if not any(sign in path for sign in "*?[{"):
        return False
    parts, wanted = key.split("/"), path.split("/")
    if len(parts) < len(wanted):
        return False
    pairs = zip(parts, wanted, strict=False)
    return all(fnmatch.fnmatchcase(part, pattern) for part, pattern in pairs)
