"""Outputs of a script: where it wanted to write them, and the copy that is written instead."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledger.auditing.attribution import groups_in_memory
from ledger.auditing.options import under_options
from ledger.auditing.outputs import HIDDEN, AuditOutput, text_of_ids
from ledger.auditing.scripts.places import is_pattern
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.sources import ids_in

NATIVE = ("csv", "json", "orc", "parquet", "text", "xml")
_WITH_TEXT = ("csv", "json", "xml")  # in which a list of ids is a text
_ABOVE = ".."

Partition = tuple[str | None, ...]


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
        location: the full path of a table's files; empty: none, or not known.
        replaces: the columns of partitions, if an overwrite replaces only some partitions.
        emptied: the partition that it replaces, whatever its rows; None: those that it has rows of.
    """

    name: str
    key: str
    kind: str
    format: str
    mode: str
    columns: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    calls: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]] = ()
    location: str = ""
    replaces: tuple[str, ...] = ()
    emptied: Partition | None = None

    def in_one_case(self) -> "Destination":
        """Return a copy whose partitions are spelled as the columns are: Spark ignores the case."""
        names = {name.lower(): name for name in self.columns} | {
            name: name for name in self.columns
        }
        partitions = [names.get(each, names.get(each.lower(), each)) for each in self.partitions]
        return replace(self, partitions=tuple(partitions))

    @property
    def folder(self) -> str:
        """The full path of its files; empty: it is not known, or there are none."""
        return {"path": self.key, "table": self.location}.get(self.kind, "")

    @property
    def is_text(self) -> bool:
        """Whether a file has the list of ids as a text."""
        return self.format in _WITH_TEXT


@dataclass
class WrittenOutput(AuditOutput):
    """An output of a script.

    - ``copy``: its rows as Parquet, in columns c0, c1, ... and, if they are followed, ``HIDDEN``.
    - ``files``: the same rows in the output's own format, written when the script reads them.
    - ``merged``: folders with the same rows and those of other outputs, to which it was appended.
    - ``has_driver_rows``: whether some rows come from the driver or an RDD.
    - ``left``: outputs at the same place that it did not replace.
    - ``options``: the session's options at the time of the write.
    """

    destination: Destination = field(kw_only=True)
    copy: Path = field(kw_only=True)
    files: Path | None = None
    merged: list[Path] = field(default_factory=list)
    has_driver_rows: bool = False
    left: list["WrittenOutput"] = field(default_factory=list)
    _partitions: dict[tuple[str, ...], set[Partition]] = field(default_factory=dict)
    options: Mapping[str, str] | None = None
    _carried: DataFrame | None = None  # its rows with ids, which the copy has without them

    def write_copy(self, rows: DataFrame, carried: DataFrame | None) -> None:
        """Write the output's rows to ``copy``.

        ``carried``: the rows with ids; None: the output is not followed.

        The ids of groups take long to collect. If groups have the same records each time (see
        ``Attribution.collects``), ids are written only when ``rows`` is first called. A table gets
        them now, because its views read the copy.
        """
        to, attribution = self.destination, self.attribution
        if carried is None:
            self.write_rows(rows, [])
        elif to.kind != "table" and attribution is not None and attribution.collects:
            self.write_rows(rows, [])
            self._carried = carried
        else:
            self.write_rows(carried, [HIDDEN])

    def write_rows(self, rows: DataFrame, hidden: list[str]) -> None:
        """Write rows in columns c0, c1, ..., and hidden ones, and note the records in these."""
        numbered = [f"c{at}" for at in range(len(self.destination.columns))]
        with groups_in_memory(rows.sparkSession):
            rows.toDF(*numbered, *hidden).write.parquet(f"file://{self.copy}")
        if hidden and self.attribution is not None:
            self.arrived = ids_in(self.copy, HIDDEN)
            if not any(route.occurrence for route in self.routes):  # the ids are as they came
                self.attribution.note_arrived(self.arrived)

    def leaves(self, other: "WrittenOutput") -> bool:
        """Return whether another output at the same place still exists after this one was
        written.
        """
        return self.destination.mode == "append" or any(other is each for each in self.left)

    def partitions(self, spark: Any, names: tuple[str, ...]) -> set[Partition]:
        """Return the partitions that have rows of this output. ``names``: the partition columns."""
        if names not in self._partitions:
            columns = [name.lower() for name in self.destination.columns]
            rows = spark.read.parquet(f"file://{self.copy}")
            values = [in_folder(rows[f"c{columns.index(name.lower())}"]) for name in names]
            numbered = [value.alias(f"p{at}") for at, value in enumerate(values)]
            distinct = rows.select(*numbered).distinct().collect()
            self._partitions[names] = {tuple(row) for row in distinct}
        return self._partitions[names]

    def is_at(self, path: Path) -> bool:
        """Return whether a path is in the folder where the script wanted to write it."""
        folder = self.destination.folder
        return bool(folder) and Path(folder) in (path, *path.parents)

    @property
    def in_files(self) -> list[str]:
        """The columns that are stored in its files. Partition columns are only in the names of
        folders.
        """
        to = self.destination
        return [name for name in to.columns if name not in to.partitions]

    @property
    def last_of_csv(self) -> str:
        """Spark's name for the last column of its files, if they are CSV without a header."""
        return f"_c{len(self.in_files)}"

    def rows(self, spark: Any) -> DataFrame:
        """Return the rows of the copy with the names of the columns, and ``HIDDEN`` as the last
        column.
        """
        if self._carried is not None:
            without_ids = self.copy
            self.copy = without_ids.with_name(f"{without_ids.name}-with-ids")
            with under_options(spark, self.options):
                self.write_rows(self._carried, [HIDDEN])
            self._carried = None
            shutil.rmtree(without_ids, ignore_errors=True)
        copied: DataFrame = spark.read.parquet(f"file://{self.copy}")
        hidden = [HIDDEN] if HIDDEN in copied.columns else []
        return copied.toDF(*self.destination.columns, *hidden)

    def write_files(self, spark: Any, folder: Path) -> None:
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
        with under_options(spark, self.options):
            writer.mode("append").format(to.format).save(f"file://{folder}")


@dataclass
class Written:
    """All outputs of a script, by kind and key.

    ``folder``: the folder of the copies. When a path is written again, its copy goes to the next
    generation of folders.
    """

    folder: Path
    outputs: list[WrittenOutput] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def next_copy(self) -> Path:
        """Return a new folder for the copy of the next output. A failed write may leave its folder
        behind.
        """
        return self.folder / f"output-{next(self._numbers)}"

    def live(self, kind: str, key: str) -> list[WrittenOutput]:
        """Return the outputs that are now at a path or table: the last one written, and earlier
        ones that it did not replace.
        """
        live: list[WrittenOutput] = []
        for output in self.outputs:
            to = output.destination
            if (to.kind, to.key) == (kind, key):
                earlier = [each for each in live if output.leaves(each)]
                live = [] if output.dropped_by else [*earlier, output]
        return live

    def require_partitions(
        self, to: Destination, partitions: tuple[str, ...] | None
    ) -> tuple[str, ...]:
        """Return the partition columns, if a write replaces only some partitions. None: they are
        unknown, which ends the script if it has written there before.
        """
        if partitions is None and self.live(to.kind, to.key):
            raise ScriptStop(
                f"replaces partitions of {to.name}, which the script has written before: the audit "
                "cannot tell which rows remain. Write all partitions at once"
            )
        return partitions or ()

    def drop(self, kind: str, key: str, place: str, what: str) -> None:
        """Note that a statement or call of the script has dropped a table or a path."""
        for output in self.live(kind, key):
            output.replaced_at, output.dropped_by = place, what

    def note_replaced(self) -> None:
        """Note for each output the line of the write that replaced it."""
        for at, output in enumerate(self.outputs):
            to = output.destination
            if output.dropped_by:
                continue
            for later in self.outputs[at + 1 :]:
                other = later.destination
                is_one = (to.kind, to.key) == (other.kind, other.key)
                if is_one and not later.leaves(output) and to.kind != "other":
                    output.replaced_at = later.place
                    break

    def files_of(self, spark: Any, path: str) -> tuple[list[str], list[WrittenOutput]]:
        """Return the paths to read instead of ``path``, and the outputs there; both empty if the
        script has written nothing there. ``path`` may have wildcards.

        Ends the script if ``path`` also has files that the script has not written.
        """
        self._require_no_table(spark, path)
        keys = {to.key for to in (o.destination for o in self.outputs) if to.kind == "path"}
        each = {key: _place(spark, path, key) for key in sorted(keys)}
        places = {key: place for key, place in each.items() if place is not None}
        if not places:
            return [], []
        if is_pattern(path) or _ABOVE in places.values():
            _require_own(spark, path, list(places))
        live = {key: self.live("path", key) for key in places}
        places = {key: place for key, place in places.items() if live[key]}
        if not places:
            raise ScriptStop(f"reads {path}, which it has removed: expected a read before that")
        if _ABOVE in places.values():
            return self._files_below(spark, path, list(chain(*live.values())), places)
        paths: list[str] = []
        outputs: list[WrittenOutput] = []
        for key, place in places.items():
            folders = self._folders(spark, live[key])
            inside = [
                (f"file://{folder}{place}", output)
                for folder, output in zip(folders, live[key], strict=True)
                if not place or _on_storage(spark, f"file://{folder}{place}")[1]
            ]
            paths += dict.fromkeys(each for each, _ in inside)
            outputs += [output for _, output in inside]
        if not outputs:  # Spark says that there is nothing
            key, place = places.popitem()
            return [f"file://{self._folders(spark, live[key])[-1]}{place}"], live[key][-1:]
        return paths, outputs

    def at(self, spark: Any, path: str) -> list[WrittenOutput]:
        """Return the outputs, including tables, whose files are at, in or above a path. It may have
        wildcards.
        """
        return [output for output in self.outputs if _at(spark, path, output.destination)]

    def _require_no_table(self, spark: Any, path: str) -> None:
        """End the script if it reads the files of a table that it has written."""
        for output in self.at(spark, path):
            if output.destination.kind == "table":
                raise ScriptStop(
                    f"reads {path}, where {output.name} has its files, which the audit has not "
                    "written: expected a read of the table"
                )

    def _files_below(
        self, spark: Any, path: str, outputs: list[WrittenOutput], places: Mapping[str, str]
    ) -> tuple[list[str], list[WrittenOutput]]:
        """Return the folder with the files of all outputs below a path, at the same relative paths,
        and the outputs. Ends the script if no single folder has them all.
        """
        generations = {self._generation(output) for output in outputs}
        if len(generations) > 1 or set(places.values()) != {_ABOVE}:
            raise ScriptStop(
                f"{path} is read, and a part of it was written more than once, or as a part of "
                "another output: expected a read of one output. Read the outputs one by one"
            )
        for output in outputs:
            self._own_files(spark, output)
        root = self.folder / f"files-{generations.pop()}"
        return [f"file://{root}/{path.replace('://', '/').lstrip('/')}"], outputs

    def _own_files(self, spark: Any, output: WrittenOutput) -> Path:
        """Return the folder with the files of one output. They are written on first use."""
        if output.files is None:
            below = output.destination.key.replace("://", "/").lstrip("/")
            output.files = self.folder / f"files-{self._generation(output)}" / below
            output.write_files(spark, output.files)
        return output.files

    def _folders(self, spark: Any, live: Sequence[WrittenOutput]) -> list[Path]:
        """Return the folder to read for each of the outputs at a path; one folder for all if they
        are partitioned.
        """
        if len(live) == 1 or not live[0].destination.partitions:
            return [self._own_files(spark, output) for output in live]
        last = live[-1]
        if not last.merged:
            last.merged.append(self.folder / f"merged-{next(self._numbers)}")
            for output in live:
                output.write_files(spark, last.merged[-1])
            for output in live[:-1]:
                output.merged += last.merged
        return [last.merged[0]] * len(live)

    def _generation(self, output: WrittenOutput) -> int:
        same = [each for each in self.outputs if each.destination.key == output.destination.key]
        return [id(each) for each in same].index(id(output))


def in_folder(value: Column) -> Column:
    """Return a value as it appears in the name of its partition's folder, where an empty text is
    NULL.
    """
    return F.nullif(value.cast("string"), F.lit(""))


def full_path(path: str) -> str:
    """Return a path in the form in which outputs are compared: absolute if it is local, links
    resolved.
    """
    path = named_path(path)
    return path if "://" in path else os.path.realpath(path)


def named_path(path: str) -> str:
    """Return a path in the form for reports: absolute if it is local, without a trailing slash."""
    for scheme in ("file://", "file:"):
        if path.startswith(scheme):
            path = "/" + path.removeprefix(scheme).lstrip("/")
    if "://" not in path:
        path = os.path.abspath(path)
    return path.rstrip("/") or "/"


def _at(spark: Any, path: str, to: Destination) -> bool:
    return bool(to.folder) and _place(spark, path, to.folder) is not None


def _place(spark: Any, path: str, key: str) -> str | None:
    """Return the place of a path relative to an output: ``_ABOVE`` it, at it (empty), or in its
    folder (the rest of the path); None: elsewhere. The path may have wildcards.
    """
    wanted, names = path.split("/"), key.split("/")
    if not all(_matches(spark, part, name) for part, name in zip(wanted, names, strict=False)):
        return None
    if len(wanted) < len(names):
        return _ABOVE
    return "".join(f"/{part}" for part in wanted[len(names) :])


def _matches(spark: Any, wanted: str, name: str) -> bool:
    if wanted == name or not is_pattern(wanted):
        return wanted == name
    return bool(spark._jvm.org.apache.hadoop.fs.GlobPattern(wanted).matches(name))


def alternatives(spark: Any, path: str) -> list[str]:
    """Expand the alternatives of a path, as {a/b,c}, if one of them has a slash. Return all
    paths.
    """
    return list(spark._jvm.org.apache.hadoop.fs.GlobExpander.expand(path))


def _on_storage(spark: Any, path: str) -> tuple[Any, list[Any]]:
    """Return the file system of a path, and the matching files or folders. The path may have
    wildcards.
    """
    at = spark._jvm.org.apache.hadoop.fs.Path(path)
    system = at.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return system, list(system.globStatus(at) or ())


def _require_own(spark: Any, path: str, keys: Sequence[str]) -> None:
    """End the script if there are files at or below a path that it has not written."""
    system, todo = _on_storage(spark, path)
    while todo:
        status = todo.pop()
        at = status.getPath()
        name = full_path(str(at.toString() if "://" in path else at.toUri().getPath()))
        is_own = any(name == key or name.startswith(f"{key}/") for key in keys)
        if is_own or str(at.getName()).startswith(("_", ".")):
            continue
        if not status.isDirectory():
            raise ScriptStop(
                f"{path} is read, where the script has written {keys[0]}, and {name} is there as "
                "well, which it has not written: expected a read of one of them. Read them one by "
                "one, and use union()"
            )
        todo += system.listStatus(at)
