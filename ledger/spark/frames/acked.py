"""Rows of settled batches that are withheld from publication, and the acked rows, which are not.

Withheld are the rows of failed records, or of the units that failed records belong to.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.core.column_names import POSITION, ROOT, ROOTS, UNIT
from ledger.errors import InputError, StageError
from ledger.spark.frames.anchors import carries_unit
from ledger.spark.frames.inputs import delivered_rows, stored_rows, user_columns
from ledger.spark.frames.stored import local_numbers, read_files
from ledger.spark.job import Job
from ledger.store.queries import batches, combines, publications, runs


@dataclass(frozen=True)
class Withheld:
    """Rows of a batch that one sink does not publish: those of some roots, of some units, or all.

    ``roots``: a frame with the column ``ROOT``; None: no roots.
    ``units``: a frame with the column ``UNIT``; None: no units.
    ``everything``: whether all rows are withheld.
    """

    roots: DataFrame | None = None
    units: DataFrame | None = None
    everything: bool = False

    def keep(self, rows: DataFrame) -> DataFrame:
        """The rows that are published, of a sink's input."""
        if self.everything:
            return rows.limit(0)
        if self.units is not None:
            rows = _anti(rows, self.units, UNIT)
        if self.roots is not None and ROOTS in rows.columns:
            own = rows.select(POSITION, F.explode(ROOTS).alias(ROOT))
            hit = own.join(self.roots, ROOT, "left_semi").select(POSITION).distinct()
            return _anti(rows, hit, POSITION)
        return rows if self.roots is None else _anti(rows, self.roots, ROOT)

    def keep_units(self, units: DataFrame) -> DataFrame:
        """The units that are published, of those that a batch emitted. Records that a sink refuses
        take no unit along.
        """
        return replace(self, roots=None).keep(units)


NOTHING_WITHHELD = Withheld()


def _anti(rows: DataFrame, hits: DataFrame, column: str) -> DataFrame:
    names = [f"`{name}`" for name in rows.columns]
    return rows.join(hits, column, "left_anti").select(*names)


def withheld(job: Job, batch_id: int, sink: str) -> Withheld:
    """Return the rows that a sink does not publish of a settled batch.

    If the batch ran at least once, these are the rows of the records that the sink refused.
    """
    batch = job.database.transact(lambda c: batches.get_batch(c, batch_id))
    if batch.exactly_once:
        return not_acked(job, batch_id, sink)
    refused = job.database.transact(lambda c: runs.refused_roots(c, batch_id, sink))
    return Withheld(roots=local_numbers(job.spark, ROOT, refused)) if refused else NOTHING_WITHHELD


def not_acked(job: Job, batch_id: int, name: str) -> Withheld:
    """The rows of failed records, or of their units, in what a step of a settled batch reads."""
    failed = job.database.transact(lambda c: publications.failed_roots(c, batch_id))
    if not failed:
        return NOTHING_WITHHELD
    graph = job.pipeline.graph
    if not graph.in_units(name):
        return Withheld(roots=local_numbers(job.spark, ROOT, [row.root_id for row in failed]))
    spoiling = [row for row in failed if graph.in_units(row.source)]
    if not spoiling:
        return NOTHING_WITHHELD
    if not graph.unit:
        return Withheld(everything=True)
    return Withheld(units=units_of(job, batch_id, [row.root_id for row in spoiling]))


def acked_rows(job: Job, original_id: int, reads: str, name: str) -> DataFrame:
    """The user's columns of all acked rows that ``reads`` made in the batches of a family, for
    the step ``name``.

    Of a unit that several batches delivered, whole, the latest counts.
    """
    outputs = job.database.transact(lambda c: combines.committed_outputs(c, original_id, reads))
    committed = [(batch_id, run_id) for batch_id, run_id in outputs if run_id is not None]
    for batch_id, run_id in outputs:
        if run_id is None:
            raise InputError(
                f"{name!r} reads {reads!r}, which batch {batch_id} has not run: the pipeline"
                " has changed since, and a total over the rest would be wrong. Reprocess the"
                " interval"
            )
    in_units = job.pipeline.graph.in_units(name)
    deliveries: list[tuple[DataFrame, DataFrame | None]] = []
    for batch_id, run_id in committed:
        hidden, units = not_acked(job, batch_id, name), None
        if in_units and job.pipeline.graph.unit:
            units = hidden.keep_units(emitted_units(job, batch_id))
        rows = hidden.keep(delivered_rows(job, job.run(run_id)))
        deliveries.append((rows, units))
        one_unit = in_units and not job.pipeline.graph.unit and not hidden.everything
        if one_unit and emitted_in_units(job, batch_id):
            break  # the batch is the unit, and this one delivered it
    return latest_rows(deliveries, name)


def latest_rows(
    deliveries: Iterable[tuple[DataFrame, DataFrame | None]],
    name: str,
    later: DataFrame | None = None,
) -> DataFrame:
    """The user's columns of what batches delivered to the step ``name``, the latest first: of a
    unit, ``UNIT``, that several delivered, the rows of the latest.

    Each delivery is its rows, and the units that it delivered, or None; ``later``: units that a
    batch delivered after all of these.
    """
    parts: list[DataFrame] = []
    for rows, units in deliveries:
        latest = rows if later is None else _anti(rows, later, UNIT)
        parts.append(latest.select(*user_columns(rows)))
        if units is not None:
            later = (units if later is None else later.unionByName(units)).distinct()
    return united(parts, name)


def united(parts: Sequence[DataFrame], name: str) -> DataFrame:
    """The rows that several batches delivered to the step ``name``, null in columns that theirs did
    not have.

    Raises StageError where a column is of two types: Spark would make the values of one type.
    """
    types: dict[str, str] = {}
    for part in parts:
        for field in part.schema:
            kind = field.dataType.simpleString()
            before = types.setdefault(field.name, kind)
            if kind != before:
                raise StageError(
                    f"step {name!r} takes together rows of several batches, and their column"
                    f" {field.name!r} is {before} in one and {kind} in another: expected one type."
                    " Declare the stage before it as it was, or reprocess the interval"
                )
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)


def emitted_in_units(job: Job, batch_id: int) -> int:
    """Records of sources in units that a batch emitted."""
    emits = job.database.transact(lambda c: runs.emits(c, batch_id))
    return sum(emit.roots for emit in emits if job.pipeline.graph.in_units(emit.source))


def emitted_units(job: Job, batch_id: int) -> DataFrame:
    """The units, ``UNIT``, of the records that a batch emitted."""
    frames = [
        read_files(job.spark, job.manifest(emit.emit_run_id)).select(UNIT)
        for emit in job.database.transact(lambda c: runs.emits(c, batch_id))
        if carries_unit(job.pipeline, emit.source)
    ]
    return reduce(DataFrame.unionByName, frames)


def units_of(job: Job, batch_id: int, roots: list[int]) -> DataFrame:
    """The units, ``UNIT``, that roots of a batch are of."""
    of_roots = [
        rows.join(F.broadcast(local_numbers(job.spark, ROOT, roots)), ROOT, "left_semi").select(
            UNIT
        )
        for rows in emitted_roots(job, batch_id)
    ]
    return reduce(DataFrame.unionByName, of_roots).distinct()


def emitted_roots(job: Job, batch_id: int) -> list[DataFrame]:
    """Return the roots that a batch emitted, a frame for each of its sources in units.

    Columns: ``ROOT`` and, if units are declared by columns, ``UNIT``.
    """
    frames = []
    for emit in job.database.transact(lambda c: runs.emits(c, batch_id)):
        if job.pipeline.graph.in_units(emit.source):
            rows = stored_rows(job, emit.emit_run_id, ROOT, emit.first_root)
            frames.append(rows.select(ROOT, *([UNIT] if UNIT in rows.columns else [])))
    return frames
