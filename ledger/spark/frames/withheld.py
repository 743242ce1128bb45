"""Rows that are withheld from publication, and acked rows, which are not."""

from collections.abc import Sequence
from functools import partial, reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.core.column_names import POSITION, ROOT, ROOTS
from ledger.errors import InputError, StageError
from ledger.spark.frames.inputs import delivered_rows, user_columns
from ledger.spark.frames.stored import local_numbers
from ledger.spark.job import Job
from ledger.store.queries import batches, publications, runs


class Withheld:
    """Rows of a batch that one sink does not publish: the rows of some ``roots``."""

    def __init__(self, job: Job, roots: Sequence[int]):
        self._roots = local_numbers(job.spark, ROOT, roots) if roots else None

    def keep(self, rows: DataFrame) -> DataFrame:
        """Return the rows of a sink's input that are published."""
        if self._roots is None:
            return rows
        hits, column = self._roots, ROOT
        if ROOTS in rows.columns:
            own = rows.select(POSITION, F.explode(ROOTS).alias(ROOT))
            hits = own.join(self._roots, ROOT, "left_semi").select(POSITION).distinct()
            column = POSITION
        names = [f"`{name}`" for name in rows.columns]
        return rows.join(hits, column, "left_anti").select(*names)


def withheld(job: Job, batch_id: int, sink: str) -> Withheld:
    """Return the rows that a sink does not publish of a settled batch.

    If the batch ran at least once, these are the rows of the records that the sink refused.
    """
    batch = job.database.transact(lambda c: batches.get_batch(c, batch_id))
    if batch.exactly_once:
        return not_acked(job, batch_id)
    return Withheld(job, job.database.transact(lambda c: runs.refused_roots(c, batch_id, sink)))


def not_acked(job: Job, batch_id: int) -> Withheld:
    """Return the rows of the failed records of a settled batch."""
    failed = job.database.transact(lambda c: publications.failed_roots(c, batch_id))
    return Withheld(job, [row.root_id for row in failed])


def output_runs(job: Job, original_id: int, reads: str) -> list[int]:
    """Return the runs whose rows ``acked_rows`` returns."""
    outputs = job.database.transact(lambda c: runs.committed_outputs(c, original_id, reads))
    return [run_id for _, run_id in outputs if run_id is not None]


def acked_rows(job: Job, original_id: int, reads: str, name: str) -> DataFrame:
    """Return the user's columns of all acked rows that ``reads`` made in the batches of a family,
    for the step ``name``. A column that a batch did not have is null.

    Raises StageError if a column has two types: Spark would make the values of one type.
    """
    parts: list[DataFrame] = []
    types: dict[str, str] = {}
    outputs = job.database.transact(lambda c: runs.committed_outputs(c, original_id, reads))
    for batch_id, run_id in outputs:
        if run_id is None:
            raise InputError(
                f"{name!r} reads {reads!r}, which batch {batch_id} has not run: the pipeline"
                " has changed since, and a total over the rest would be wrong. Reprocess the"
                " interval"
            )
        rows = not_acked(job, batch_id).keep(delivered_rows(job, job.run(run_id)))
        parts.append(rows.select(*user_columns(rows)))
        for field in parts[-1].schema:
            kind = field.dataType.simpleString()
            before = types.setdefault(field.name, kind)
            if kind != before:
                raise StageError(
                    f"step {name!r} takes together rows of several batches, and their column"
                    f" {field.name!r} is {before} in one and {kind} in another: expected one type."
                    " Declare the stage before it as it was, or reprocess the interval"
                )
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
