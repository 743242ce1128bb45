"""The audit of one script: its sources, its outputs, and how it ended."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from time import time_ns

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from ledger.auditing.attribution import EXECUTION_ERRORS, Attribution, condition_of, in_few_shuffles
from ledger.auditing.losses import OutputResult
from ledger.auditing.options import options_of
from ledger.auditing.outputs import HIDDEN, OutputLeaf, ids_on_main_routes
from ledger.auditing.report import AuditReport
from ledger.auditing.results import judged
from ledger.auditing.scripts.changes import (
    cached_leaves,
    has_changed,
    leaves,
    require_same_options,
)
from ledger.auditing.scripts.file_columns import (
    reads_file_names,
    with_file_columns,
    with_metadata,
    without_metadata,
)
from ledger.auditing.scripts.partitions import left_outputs
from ledger.auditing.scripts.phantoms import Phantoms, left_out
from ledger.auditing.scripts.reader_options import require_no_drops, skipped_files
from ledger.auditing.scripts.stops import first_line
from ledger.auditing.scripts.tables import Tables, table_key
from ledger.auditing.scripts.written import (
    Destination,
    Written,
    WrittenOutput,
    full_path,
    named_path,
)
from ledger.auditing.sources import AuditSource, Leaf, Sources, relation_of
from ledger.errors import CarryError, InputError
from ledger.lineage.carrier import STREAMING, TOO_DEEP
from ledger.lineage.catalyst import Catalyst, Node
from ledger.lineage.nodes import simple_name
from ledger.lineage.sites import UNKNOWN, Sites, user_line

_NO_FILES = ("to_gbq", "to_sql")  # of pandas, which write tables
_OF_NO_FILE = (
    "its rows come from no file or table in its plan, but from createDataFrame(), collect(), "
    "toPandas() or an RDD"
)


@dataclass
class JobAudit:
    """All facts about a script that are collected while it runs.

    ``folder``: the folder of all copies.
    ``on_output``: called with each output once it is written.
    ``paths_read``: the full paths of files that Spark has read, without copies.
    ``taken``: frames whose rows left Spark's plans, with the call and its line.
    """

    folder: Path
    on_output: Callable[[WrittenOutput], None] = lambda output: None
    sites: Sites = field(default_factory=Sites)
    notes: list[str] = field(default_factory=list)
    others: list[OutputResult] = field(default_factory=list)
    lock: RLock = field(default_factory=RLock)
    paths_read: set[str] = field(default_factory=set)
    taken: list[tuple[DataFrame, str]] = field(default_factory=list)
    written: Written = field(init=False)
    phantoms: Phantoms = field(init=False)
    tables: Tables = field(init=False)
    _sources: Sources | None = None
    _by_key: dict[tuple[str, ...], AuditSource] = field(default_factory=dict)
    _refused: dict[tuple[str, ...], str] = field(default_factory=dict)
    _read: list[tuple[DataFrame, str]] = field(default_factory=list)
    _read_at: dict[str, int] = field(default_factory=dict)
    _changed: set[int] = field(default_factory=set)
    _copied: dict[int, tuple[int, Mapping[str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.written = Written(self.folder)
        self.phantoms = Phantoms(self.written, self.paths_read)
        self.tables = Tables(self.written, self.phantoms)

    def note_read(self, frame: DataFrame, at: int) -> None:
        """Note a frame that the script has read from files or a table; see ``note_paths``."""
        self._read.append((frame, user_line() or UNKNOWN))
        self.note_paths(frame, at)

    def note_paths(self, frame: DataFrame, at: int | None = None) -> None:
        """Record the files of a frame. ``at``: the time before it read them, in nanoseconds; None:
        unknown.
        """
        catalyst = Catalyst(frame.sparkSession)
        for node in leaves(catalyst, catalyst.analyzed(frame)):
            for full in map(full_path, _paths(catalyst, node)):
                if self._is_of_script(full):
                    self.paths_read.add(full)
                    if at is not None:
                        self._read_at.setdefault(full, at)

    def _is_of_script(self, full: str) -> bool:
        """Return whether a full path is outside of all copies."""
        return not full.startswith(f"{self.folder}/")

    def write(self, frame: DataFrame, destination: Destination) -> WrittenOutput:
        """Write the rows of a frame to a copy, with the ids of their records."""
        with self.lock:
            destination = self.tables.located(destination.in_one_case())
            copy = self.written.next_copy()
            place = user_line() or UNKNOWN
            options = options_of(frame.sparkSession)
            output = WrittenOutput(
                destination.name, place, destination=destination, copy=copy, options=options
            )
            output.write_copy(frame, self._followed(frame, output))
            if destination.replaces:
                live = self.written.live(destination.kind, destination.key)
                output.left = left_outputs(frame.sparkSession, output, live)
            self.written.outputs.append(output)
            if destination.kind == "table":
                self.tables.show(frame.sparkSession, destination.key)
            self.on_output(output)
            return output

    def note_driver_rows(self, frame: DataFrame, what: str) -> None:
        """Record a frame whose rows leave Spark's plans through the driver or an RDD, from where
        they may go to an output.
        """
        self.taken.append((frame, f"{what} at {user_line() or UNKNOWN}"))

    def _doubts(self) -> dict[int, str]:
        """Return a sentence for each source whose rows went through the driver, if an output may
        have them.
        """
        if not self.others and not any(each.has_driver_rows for each in self.written.outputs):
            return {}
        doubts = {}
        for frame, what in self.taken:
            catalyst = Catalyst(frame.sparkSession)
            for node in leaves(catalyst, catalyst.analyzed(frame)):
                source = self._by_key.get(_key(catalyst, node))
                if source is not None:
                    doubts[source.number] = f"not known: rows went through {what}"
        return doubts

    def note_pandas(self, name: str, method: str) -> None:
        """Note an output that pandas would have written."""
        place = user_line() or UNKNOWN
        if method not in _NO_FILES:
            self.phantoms.unmade[full_path(name)] = left_out(method, full_path(name))
        why = f"pandas {method}() is left out: its rows went through the driver"
        self.others.append(OutputResult(name, place, why, is_final=True))

    def report(
        self, final: Sequence[str], on_output: Callable[[str], None] = lambda name: None
    ) -> AuditReport:
        """Return the report on all outputs. ``final``: see ``judged``."""
        notes = [*self._unused(), *self.notes]
        if self._sources is None:
            return AuditReport([], [], None, self.others, notes=notes)
        self.written.note_replaced()
        outputs = self.written.outputs
        with in_few_shuffles(self._sources):
            for output in outputs:
                self._require_arrived(output)
            report = judged(self._sources, outputs, final, on_output, doubts=self._doubts())
        listed = [*report.outputs, *self.others]
        return replace(report, outputs=listed, notes=[*notes, *report.notes])

    def _require_arrived(self, output: WrittenOutput) -> None:
        """Compute what arrived at an output. If that fails, for example because an input is gone,
        the output is no longer followed, and ``why`` has the reason.
        """
        try:
            len(output.arrived)  # computes it
        except EXECUTION_ERRORS as error:
            output.attribution, output.routes = None, ()
            output.why = f"its records cannot be computed: {condition_of(error)}"

    def _unused(self) -> Iterator[str]:
        """Yield a sentence for each file or table that was read, and is not in the plan of any
        output.
        """
        named: set[tuple[str, ...]] = set()
        for frame, place in self._read:
            catalyst = Catalyst(frame.sparkSession)
            for node in leaves(catalyst, catalyst.analyzed(frame)):
                key = _key(catalyst, node)
                others = (self._by_key, self._refused, named)
                if relation_of(node) is None or any(key in each for each in others):
                    continue
                if self._sources is not None and self._sources.leaf_of(node) is not None:
                    continue
                if catalyst.identity(relation_of(node)) in self._changed:
                    continue
                try:
                    outputs = self._outputs_in(catalyst, node)
                except CarryError as error:
                    yield str(error)
                    continue
                if not outputs:
                    named.add(key)
                    yield (
                        f"{_name(catalyst, node)}, read at {place}, is in the plan of no output: "
                        "its records are not followed"
                    )

    def _followed(self, frame: DataFrame, output: WrittenOutput) -> DataFrame | None:
        """Return the rows of a frame with their ids. None: they cannot be followed, and the
        output's ``why`` has the reason.
        """
        catalyst = Catalyst(frame.sparkSession)
        if self._sources is None:
            self._sources = Sources(catalyst, self.folder)
        try:
            return self._carried(catalyst, self._sources, frame, output)
        except (CarryError, InputError) as error:
            output.why = str(error)
        except RecursionError:
            output.why = TOO_DEEP
        output.attribution, output.routes = None, ()
        return None

    def _carried(
        self, catalyst: Catalyst, sources: Sources, frame: DataFrame, output: WrittenOutput
    ) -> DataFrame:
        original = catalyst.analyzed(frame)
        if original.isStreaming():
            raise CarryError(STREAMING)
        self.note_paths(frame)
        refused = self._follow_leaves(catalyst, sources, original, output)
        plan = catalyst.without_ctes(original)
        places = self.sites.places(catalyst, plan, original)
        attribution = Attribution(catalyst, sources, places, plan, options=output.options)
        output.follow(attribution, with_file_columns)
        if refused:
            raise CarryError(refused)
        assert output.attribution is not None
        if not output.sources:
            raise CarryError(_OF_NO_FILE)

        def on_mains(ids: Column) -> Column:
            return ids_on_main_routes(ids, output.routes)

        return output.attribution.with_ids(HIDDEN, on_mains)

    def _follow_leaves(
        self, catalyst: Catalyst, sources: Sources, plan: Node, output: WrittenOutput
    ) -> str:
        """Follow all files and tables that a plan reads. Return why one of them cannot be followed;
        empty if all can.

        The output gets the sources of the others in any case, so that they are not judged without
        it.
        """
        refused, has_names = "", reads_file_names(catalyst, plan)
        cached = cached_leaves(catalyst, plan)
        for node in leaves(catalyst, plan):
            try:
                if catalyst.identity(node) in cached:
                    self._require_as_cached(catalyst, sources, node, output)
                self._follow_leaf(catalyst, sources, node, output, has_names)
            except (CarryError, InputError) as error:
                refused = refused or str(error)
        return refused

    def _follow_leaf(
        self,
        catalyst: Catalyst,
        sources: Sources,
        node: Node,
        output: WrittenOutput,
        has_names: bool,
    ) -> None:
        """Follow the files or the table that a leaf reads. Raises CarryError or InputError.

        ``has_names``: copy the names of its files as well.
        """
        if simple_name(node) == "HiveTableRelation":
            raise CarryError(
                f"it reads {node.tableMeta().identifier().unquotedString()}, a table in a format "
                "of Hive, which is not followed: expected Parquet, ORC, CSV, JSON, text or JDBC"
            )
        if relation_of(node) is None:
            output.has_driver_rows |= simple_name(node) in ("LocalRelation", "LogicalRDD")
            return
        leaf = sources.leaf_of(node)
        is_known = leaf is not None
        if leaf is None:
            read = self._outputs_in(catalyst, node)
            self._require_all_records(catalyst, node)
            leaf = (
                self._own_leaf(catalyst, node, output, read)
                if read
                else self._source(catalyst, sources, node, has_names)
            )
            sources.follow(node, leaf)
        output.sources |= frozenset(leaf.numbers)
        if isinstance(leaf, AuditSource):
            copied_at, options = self._copied[leaf.number]
            if is_known:
                _require_unchanged(catalyst, node, copied_at, "was copied")
            require_same_options(leaf.name, options, output.options or {})
        if isinstance(leaf, OutputLeaf):
            output.reads += self._outputs_in(catalyst, node)

    def _require_as_cached(
        self, catalyst: Catalyst, sources: Sources, node: Node, output: WrittenOutput
    ) -> None:
        """Raise CarryError if files of a leaf have changed, whose rows Spark may have cached."""
        paths = map(full_path, _paths(catalyst, node))
        times = [self._read_at.get(each, 0) for each in paths if self._is_of_script(each)]
        leaf = sources.leaf_of(node)
        try:
            if times:
                _require_unchanged(catalyst, node, min(times), "was cached")
        except CarryError:
            output.sources |= frozenset(() if leaf is None else leaf.numbers)
            self._changed.add(catalyst.identity(relation_of(node)))
            raise

    def _require_all_records(self, catalyst: Catalyst, node: Node) -> None:
        """Raise CarryError if the reader of files drops records; note it if it may skip files."""
        if _paths(catalyst, node):
            name, key = _name(catalyst, node), _key(catalyst, node)
            try:
                require_no_drops(catalyst, node, name)
            except CarryError as error:
                self._refused[key] = str(error)
                raise
            note = skipped_files(catalyst, node, name)
            self.notes += [note] if note and note not in self.notes else []

    def _own_leaf(
        self, catalyst: Catalyst, node: Node, output: WrittenOutput, read: list[WrittenOutput]
    ) -> Leaf:
        """Return the leaf for an output that reads other outputs of the script. Raises CarryError
        if one of these is not followed.
        """
        unfollowed = [each for each in read if each.attribution is None]
        if unfollowed:
            output.reads += read
            output.sources |= frozenset().union(*(each.sources for each in read))
            raise CarryError(f"it reads {unfollowed[0].name}, which is not followed")
        names = [each.name() for each in catalyst.output(node)]
        hidden = HIDDEN if HIDDEN in names else read[0].last_of_csv
        is_text = read[0].destination.is_text and not _reads(catalyst, node, read[0].copy)
        return OutputLeaf(read, hidden, is_text)

    def _source(
        self, catalyst: Catalyst, sources: Sources, node: Node, has_names: bool
    ) -> AuditSource:
        """Return the source for a leaf. Leaves that read the same files in the same way share one
        source. Raises CarryError if its records cannot be copied.

        ``has_names``: copy the names of its files as well.
        """
        key = _key(catalyst, node)
        if key in self._refused:
            raise CarryError(self._refused[key])
        if key not in self._by_key:
            name = _name(catalyst, node)
            same = sum(source.name.split(" (")[0] == name for source in self._by_key.values())
            if same:
                name = f"{name} ({same + 1})"
            frame, others = catalyst.frame(without_metadata(catalyst, node)), 0
            if has_names:
                frame, others = with_metadata(catalyst, node)
            now = time_ns(), options_of(catalyst.spark)
            try:
                self._by_key[key] = sources.copied(name, frame, others)
            except (InputError, PySparkException, Py4JError) as error:
                self._refused[key] = f"its records cannot be copied: {first_line(str(error))}"
                raise CarryError(self._refused[key]) from error
            self._copied[self._by_key[key].number] = now
        return self._by_key[key]

    def _outputs_in(self, catalyst: Catalyst, node: Node) -> list[WrittenOutput]:
        """Return the outputs of the script that a leaf reads. Raises CarryError if it reads one in
        a way that the audit has not intercepted.
        """
        self._require_not_written(catalyst, node)
        paths = [Path(full_path(path)) for path in _paths(catalyst, node)]
        outputs = []
        for output in self.written.outputs:
            own = (output.copy, output.files, *output.merged)
            places = [each for each in own if each is not None]
            if any(_are_one(path, place) for path in paths for place in places):
                outputs.append(output)
            elif any(output.is_at(path) for path in paths):
                raise CarryError(
                    f"{output.name} is read in a way that the audit does not see: read it with "
                    "spark.read"
                )
        return outputs

    def _require_not_written(self, catalyst: Catalyst, node: Node) -> None:
        """Raise CarryError if a leaf reads a table of the catalog that the script has written."""
        table = _table(node)
        if table and self.tables.has_written(table_key(catalyst.spark, table)):
            raise CarryError(
                f"{'.'.join(table)} is read as it was before the script wrote it: read it again "
                "after the write"
            )


def _paths(catalyst: Catalyst, node: Node) -> list[str]:
    """Return the paths of the files that a leaf reads; empty if it reads no files."""
    relation = relation_of(node)
    if relation is None:
        return []
    try:
        return [str(path) for path in catalyst.items(relation.location().rootPaths())]
    except Py4JError:  # it has no location
        return []


def _table(node: Node) -> list[str]:
    """Return the parts of the name of the catalog table that a leaf reads; empty if it reads
    none.
    """
    kind = simple_name(node)
    if kind == "LogicalRelation" and node.catalogTable().isDefined():
        parts = node.catalogTable().get().identifier().nameParts()
        return [str(parts.apply(at)) for at in range(parts.size())]
    if kind == "DataSourceV2Relation" and node.identifier().isDefined():
        catalog = [node.catalog().get().name()] if node.catalog().isDefined() else []
        table = node.identifier().get()
        return [*map(str, (*catalog, *table.namespace(), table.name()))]
    return []


def _require_unchanged(catalyst: Catalyst, node: Node, since: int, what: str) -> None:
    """Raise CarryError if local files of a leaf have changed since a time, in nanoseconds."""
    if _paths(catalyst, node) and has_changed(relation_of(node), since):
        raise CarryError(
            f"{_name(catalyst, node)} has changed since it {what}, so it is not known which "
            "records the output has. Write the output before, or read the files again after"
        )


def _reads(catalyst: Catalyst, node: Node, folder: Path) -> bool:
    return any(Path(full_path(path)) == folder for path in _paths(catalyst, node))


def _are_one(path: Path, place: Path) -> bool:
    return path == place or path in place.parents or place in path.parents


def _key(catalyst: Catalyst, node: Node) -> tuple[str, ...]:
    """Return a key of the files or the table that a leaf reads, their state, and the reader's
    options.
    """
    relation, schema = relation_of(node), str(without_metadata(catalyst, node).schema().json())
    paths = _paths(catalyst, node)
    if paths:
        kind = str(relation.fileFormat().getClass().getName())
        state = str(relation.location().sizeInBytes()), _newest(paths)
        return (kind, str(relation.options().toString()), schema, *state, *paths)
    if relation is None:
        return ()
    return (str(relation.toString()), schema, str(catalyst.identity(relation)))


def _newest(paths: Sequence[str]) -> str:
    """Return the time of the last change of local files, because a script may rewrite its
    inputs.
    """
    files = [
        file
        for path in map(full_path, paths)
        for file in ([path] if os.path.isfile(path) else Path(path).rglob("*"))
    ]
    return str(max((os.stat(file).st_mtime_ns for file in files), default=0))


def _name(catalyst: Catalyst, node: Node) -> str:
    """Return the name by which a user knows the files or the table that a leaf reads."""
    paths = _paths(catalyst, node)
    if not paths:
        relation = relation_of(node)
        return str(relation.toString() if relation is not None else node.nodeName())
    full = [named_path(path) for path in paths]
    common = full[0] if len(full) == 1 else f"{os.path.commonpath(full)}/*"
    here = f"{os.getcwd()}/"
    return common.removeprefix(here)
