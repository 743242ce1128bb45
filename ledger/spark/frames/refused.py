"""The staged rows that a sink does not take, and the records that fail with them."""

from dataclasses import dataclass, replace
from functools import partial, reduce

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import FAILED, POSITION, ROOT, ROOTS
from ledger.core.paths import literal
from ledger.databases.driver_errors import persist
from ledger.deltas.kernel import Fails
from ledger.deltas.portions import refused
from ledger.deltas.stored import SHARED
from ledger.errors import ConfigurationError, StageError, quote
from ledger.pipeline.steps import SinkStep
from ledger.sinks.base import Delivery, Publisher, Refusal, Rule, SinkPlan, planned
from ledger.spark.failures import one_line, translated
from ledger.spark.frames.inputs import user_columns
from ledger.spark.frames.stored import with_position
from ledger.spark.job import Job
from ledger.spark.session import session_conf
from ledger.storage.manifest import Manifest
from ledger.types.spark import local_rows, to_arrow_schema


@dataclass(frozen=True)
class Refused:
    """Records that fail because a sink refuses their rows.

    ``rows``: number of records.
    ``roots``: a frame with ``ROOT``, ``_failed`` and, after a whole stage, ``SHARED``.
    """

    rows: int
    roots: DataFrame

    def fails(self) -> Fails:
        """Return the records in the kernel's form."""
        table = self.roots.toArrow()
        shared = table[SHARED].combine_chunks() if SHARED in table.column_names else None
        return refused(table[ROOT].to_numpy(), table[FAILED].combine_chunks(), shared)

    def release(self) -> None:
        """Free what was cached."""
        self.roots.unpersist()


def staged_rows(job: Job, delivery: Delivery, schema: StructType) -> DataFrame:
    """Return the rows that a sink has staged, as they were written.

    Their partition columns are read from the names of the folders.
    """
    reader = job.spark.read.schema(schema).option("basePath", delivery.folder)
    return reader.parquet(*literal([file.path for file in delivery.files]))


def plan_of(
    step: SinkStep, publisher: Publisher, rows: DataFrame, delivery: Delivery | None = None
) -> SinkPlan:
    """Return the sink's plan for these rows. Retries a sink that does not answer. Raises StageError
    with the plan's problems.
    """
    schema = to_arrow_schema(rows.select(*user_columns(rows)).schema)
    return persist(partial(planned, step.sink.place, publisher, schema, delivery))


def find_refused(
    job: Job,
    run: OpenedRun,
    step: SinkStep,
    plan: SinkPlan,
    delivery: Delivery,
    schema: StructType,
    misplaced: DataFrame | None,
) -> Refused | None:
    """Return the records whose rows the sink does not take as it is now; None if it takes all rows.
    ``misplaced``: the rows that fit none of its folders, as they were before they were staged.

    Raises StageError if some belong to no record, so that none can fail with them.
    """
    rules, listed = plan.rules, list(plan.refusals)
    if not delivery.files or (not rules and not listed and misplaced is None):
        return None
    staged, manifest = staged_rows(job, delivery, schema), Manifest(delivery.files)
    rows = with_position(staged, manifest, POSITION)
    listed = [replace(refusal, reason=quote(refusal.reason, refusal.masked)) for refusal in listed]
    try:
        refusals = _counted(rows, listed, rules, step, misplaced)
    except Exception as exc:
        if not rules or type(translated(exc)) is not StageError:
            raise
        refusals = _counted_again(rows, listed, rules, step, misplaced)
    if refusals.rows == 0:
        refusals.release()
        return None
    if not run.batch.tracking:
        bare, why = refusals.roots, "with tracking=False no record can fail"
    else:
        bare, why = refusals.roots.where(F.col(ROOT).isNull()), "no record is theirs"
    row = bare.first()
    if row is not None:
        raise StageError(
            f"sink {step.name!r} refuses rows, and {why}; the first: {row[FAILED]}. Fix or drop "
            "them in the step before the sink, or change the table, then run the sink again"
        )
    return refusals


def _counted(
    rows: DataFrame,
    listed: list[Refusal],
    rules: tuple[Rule, ...],
    step: SinkStep,
    misplaced: DataFrame | None,
) -> Refused:
    """Return the records of the listed rows, of other rows that break a rule, and of those that
    are misplaced.
    """
    parts = [] if misplaced is None else [misplaced]
    if rules or listed:
        parts.append(_refused_rows(rows, listed, rules, step))
    roots = reduce(DataFrame.unionByName, map(_roots, parts)).persist()
    try:
        return Refused(roots.select(ROOT).distinct().count(), roots)
    except Exception:
        roots.unpersist()
        raise


def _counted_again(
    rows: DataFrame,
    listed: list[Refusal],
    rules: tuple[Rule, ...],
    step: SinkStep,
    misplaced: DataFrame | None,
) -> Refused:
    """Return what ``_counted`` does, if a rule raises for a row, which a writer of rows would
    refuse. Such rows are found without ANSI, where null stands for most errors.

    Raises StageError, naming the rules, for other errors, as of an integer that overflows.
    """
    with session_conf(rows.sparkSession, {"spark.sql.ansi.enabled": "false"}):
        frame = _refused_rows(rows, listed, rules, step)
        broken = frame.select(POSITION, FAILED).toArrow()
    raising = [Refusal(row[POSITION], row[FAILED]) for row in broken.to_pylist()]
    try:
        return _counted(rows, raising, rules, step, misplaced)
    except Exception as exc:
        if type(translated(exc)) is not StageError:
            raise
        requirements, message = "; ".join(rule.reason for rule in rules), one_line(exc).rstrip(". ")
        raise StageError(
            f"sink {step.name!r}: one of what the table asks for ({requirements}) raises for a row:"
            f" {quote(message)}. Fix that row in the stage before the sink, or write"
            " the constraint so that it is true or false for each row, then run the sink again"
        ) from exc


def _refused_rows(
    rows: DataFrame, listed: list[Refusal], rules: tuple[Rule, ...], step: SinkStep
) -> DataFrame:
    """Return the rows at the listed positions, and those that do not meet all rules, with the first
    reason as ``_failed``, in one line. Rules are not evaluated for a listed row. A rule's reason
    quotes no row.
    """
    columns = {
        POSITION: pa.array([refusal.position for refusal in listed], pa.int64()),
        FAILED: pa.array([refusal.reason for refusal in listed], pa.string()),
    }
    reasons = [
        F.when(~F.coalesce(F.expr(rule.condition), F.lit(False)), F.lit(rule.reason))
        for rule in rules
    ]
    if listed:
        refusals = F.broadcast(local_rows(rows.sparkSession, columns))
        rows = rows.join(refusals, POSITION, "left")
        reasons.insert(0, F.regexp_replace(FAILED, r"\s*\R\s*", " "))
    try:
        frame = rows.withColumn(FAILED, F.coalesce(*reasons)).where(F.col(FAILED).isNotNull())
        _ = frame.schema  # a Spark Connect server looks at a frame when it is asked about it
    except AnalysisException as exc:
        requirements = "; ".join(rule.reason for rule in rules)
        raise ConfigurationError(
            f"sink {step.name!r}: Spark cannot evaluate what the table asks for ({requirements}): "
            f"{str(exc).splitlines()[0]}. Drop that constraint, or write to another table"
        ) from exc
    return frame


def _roots(rows: DataFrame) -> DataFrame:
    """Return one row for each root of a refused row. The root of an untracked row is null."""
    if ROOTS in rows.columns:
        roots = F.explode_outer(ROOTS).alias(ROOT)
        return rows.select(roots, FAILED, (F.size(ROOTS) > 1).alias(SHARED))
    root = F.col(ROOT) if ROOT in rows.columns else F.lit(None).cast("bigint").alias(ROOT)
    return rows.select(root, FAILED)
