"""The staged rows that a sink does not take, and the records that fail with them."""

from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ledger.delivery import Delivery, Publisher, Refusal, Rule
from ledger.errors import ConfigurationError, StageError
from ledger.manifest import Manifest
from ledger.publishers.making import database_of
from ledger.sinks import PostgresSink
from ledger.spark.failures import one_line, translated
from ledger.spark.files import literal
from ledger.spark.job import FAILED, POSITION, ROOT, ROOTS, Job, Witness, require_equal
from ledger.spark.manifest import with_position
from ledger.spark.staging import stage_rows, tracking_columns
from ledger.spark.withheld import Withheld
from ledger.stage_runs import OpenedRun
from ledger.steps import SinkStep


@dataclass(frozen=True)
class Refused:
    """``rows``: how many records fail. ``roots``: ``_root``, ``_failed`` and, after a whole stage,
    ``_shared``."""

    rows: int
    roots: DataFrame

    def release(self) -> None:
        """Free what was cached."""
        self.roots.unpersist()


def staged_rows(job: Job, delivery: Delivery, schema: StructType) -> DataFrame:
    """What a sink has staged, as it was written: its partition columns are in the folders'
    names."""
    reader = job.spark.read.schema(schema).option("basePath", delivery.folder)
    return reader.parquet(*literal([file.path for file in delivery.files]))


def find_refused(
    job: Job,
    run: OpenedRun,
    step: SinkStep,
    publisher: Publisher,
    delivery: Delivery,
    schema: StructType,
) -> Refused | None:
    """The rows that the sink does not take as it is now; None if it takes all.

    Raises StageError if some belong to no record, so that none can fail with them.
    """
    if not delivery.files:
        return None
    rules = publisher.rules(delivery)
    listed = publisher.refused(delivery, _siblings(job, step))
    if not rules and not listed:
        return None
    staged = staged_rows(job, delivery, schema)
    frames = [_at(job, staged, delivery, listed)] if listed else []
    frames += [_breaking(staged, rules, step)] if rules else []
    tracking = tracking_columns(staged)
    found = [frame.select(*tracking, FAILED) for frame in frames]
    roots = _roots(reduce(DataFrame.unionByName, found)).persist()
    rows = _counted(roots, rules, step)
    if rows == 0:
        roots.unpersist()
        return None
    _require_records(run, step, roots)
    return Refused(rows, roots)


def _counted(roots: DataFrame, rules: tuple[Rule, ...], step: SinkStep) -> int:
    """How many records fail. Raises StageError, naming the rules, where one of them raises."""
    try:
        return roots.select(ROOT).distinct().count()
    except Exception as exc:
        if not rules or type(translated(exc)) is not StageError:
            raise
        told = "; ".join(rule.reason for rule in rules)
        raise StageError(
            f"sink {step.name!r}: one of what the table asks for ({told}) raises for a row: "
            f"{one_line(exc).rstrip('. ')}. Fix that row in the stage before the sink, or write the "
            "constraint so that it is true or false for each row, then run the sink again"
        ) from exc


def without_refused(
    job: Job, step: SinkStep, delivery: Delivery, schema: StructType, refused: Refused
) -> Manifest:
    """What is staged but for the rows of the records that fail here, as files of their own."""
    staged = staged_rows(job, delivery, schema)
    rows = with_position(staged, Manifest(delivery.files), POSITION)
    chosen = Withheld(roots=refused.roots.select(ROOT).distinct())
    wrote, folder = Witness(), f"{delivery.folder}/kept"
    kept = wrote.watch(chosen.keep(rows).drop(POSITION))
    manifest = stage_rows(kept, step, folder)
    require_equal(f"rows of {step.name} in {folder}", wrote.rows, manifest.rows)
    return manifest


def _siblings(job: Job, step: SinkStep) -> tuple[str, ...]:
    """Tables of the same database that other sinks of the pipeline fill."""
    if not isinstance(step.sink, PostgresSink):
        return ()
    steps = (*job.pipeline.steps(), *job.pipeline.followers())
    sinks = [other.sink for other in steps if isinstance(other, SinkStep) and other is not step]
    database = database_of(step.sink.url)
    others = [one for one in sinks if isinstance(one, PostgresSink)]
    return tuple(one.table for one in others if database_of(one.url) == database)


def _at(job: Job, staged: DataFrame, delivery: Delivery, listed: list[Refusal]) -> DataFrame:
    """The rows at the listed positions, with ``_failed``."""
    columns = {
        POSITION: pa.array([one.position for one in listed], pa.int64()),
        FAILED: pa.array([one.reason for one in listed], pa.string()),
    }
    reasons = F.broadcast(job.spark.createDataFrame(pa.table(columns)))
    rows = with_position(staged.select(*_kept(staged)), Manifest(delivery.files), POSITION)
    return rows.join(reasons, POSITION, "inner")


def _kept(staged: DataFrame) -> list[Column]:
    return [F.col(name) for name in tracking_columns(staged)]


def _breaking(staged: DataFrame, rules: tuple[Rule, ...], step: SinkStep) -> DataFrame:
    """The rows that meet not all rules, with the reason of the first as ``_failed``."""
    reason = F.coalesce(
        *(
            F.when(~F.coalesce(F.expr(rule.condition), F.lit(False)), F.lit(rule.reason))
            for rule in rules
        )
    )
    try:
        return staged.withColumn(FAILED, reason).where(F.col(FAILED).isNotNull())
    except AnalysisException as exc:
        told = "; ".join(rule.reason for rule in rules)
        raise ConfigurationError(
            f"sink {step.name!r}: Spark cannot evaluate what the table asks for ({told}): "
            f"{str(exc).splitlines()[0]}. Drop that constraint, or write to another table"
        ) from exc


def _roots(rows: DataFrame) -> DataFrame:
    """One row for each root of a refused row; of an untracked one its root is null."""
    if ROOTS in rows.columns:
        roots = F.explode_outer(ROOTS).alias(ROOT)
        return rows.select(roots, FAILED, (F.size(ROOTS) > 1).alias("_shared"))
    root = F.col(ROOT) if ROOT in rows.columns else F.lit(None).cast("bigint").alias(ROOT)
    return rows.select(root, FAILED)


def _require_records(run: OpenedRun, step: SinkStep, roots: DataFrame) -> None:
    bare = roots if run.batch.ackers == 0 else roots.where(F.col(ROOT).isNull())
    found = bare.first()
    if found is not None:
        why = "with ackers=0 no record can fail" if run.batch.ackers == 0 else "no record is theirs"
        raise StageError(
            f"sink {step.name!r} refuses rows, and {why}; the first: {found[FAILED]}. Fix or drop "
            "them in the stage before the sink, or change the table, then run the sink again"
        )
