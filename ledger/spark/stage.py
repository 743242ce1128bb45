"""Run a stage: call its function, write the output, derive the deltas from what is on storage."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from ledger.errors import StageError
from ledger.pipeline import StageStep
from ledger.spark import fold
from ledger.spark.inputs import anchored, input_rows, read_stored, user_columns
from ledger.spark.job import (
    ANCHOR,
    FAILED,
    PARENT,
    POSITION,
    RESERVED,
    ROOT,
    STORED,
    Job,
    Witness,
    file_rows,
    require_equal,
)
from ledger.spark.manifest import Manifest, take_manifest, with_position
from ledger.spark.reading import read_reference
from ledger.stage_runs import OpenedRun, Record, commit


def run_stage(job: Job, run: OpenedRun, step: StageStep) -> Record:
    """Run one stage of one batch and commit it; what it recorded."""
    rows = input_rows(job, run)
    output = _output(job, run, step, rows)
    folder = job.folder(run)
    wrote = Witness(ROOT, PARENT)
    wrote.watch(output).write.options(**STORED).parquet(folder)
    manifest = take_manifest(folder)
    require_equal(f"rows of {step.name} in {folder}", wrote.rows, manifest.rows)
    record = _post(job, run, step, manifest, wrote, rows)
    commit(job.database, run, record, files=file_rows(manifest))
    return record


def _output(job: Job, run: OpenedRun, step: StageStep, rows: DataFrame) -> DataFrame:
    """What the stage's function makes, with the anchor as two columns that store well."""
    references = {
        name: read_reference(job.spark, job.settings, run.batch, name, source)
        for name, source in job.pipeline.references(step).items()
    }
    made = step.function(anchored(rows), **references)
    check_output(step.name, made)
    stored = [F.col(f"{ANCHOR}.root").alias(ROOT), F.col(f"{ANCHOR}.parent").alias(PARENT)]
    failed = [F.col(FAILED)] if FAILED in made.columns else []
    return made.select(*user_columns(made), *stored, *failed)


def check_output(stage: str, made: object) -> None:
    """Raise StageError unless a stage returned a frame that keeps its anchor."""
    if not isinstance(made, DataFrame):
        raise StageError(f"stage {stage!r} returned {type(made).__name__}, expected a DataFrame")
    repeated = sorted({name for name in made.columns if made.columns.count(name) > 1})
    if repeated:
        raise StageError(
            f"stage {stage!r} returned column {repeated[0]!r} twice: drop or rename one"
            + (" (merging anchors is not supported yet)" if repeated[0] == ANCHOR else "")
        )
    if ANCHOR not in made.columns:
        raise StageError(
            f"stage {stage!r} returned a frame without {ANCHOR!r}, so its rows cannot be tracked. "
            f"Keep it, for example .select({', '.join(map(repr, [*made.columns[:3], ANCHOR]))})"
        )
    anchor = made.schema[ANCHOR].dataType.simpleString()
    if anchor != "struct<root:bigint,parent:bigint>":
        raise StageError(f"stage {stage!r} changed {ANCHOR!r} to {anchor}: hand it on as it came")
    taken = sorted((RESERVED - {ANCHOR, FAILED}) & set(made.columns))
    if taken:
        raise StageError(
            f"stage {stage!r} returned column {taken[0]!r}, a name of the ledger: rename it"
        )
    if FAILED in made.columns and not isinstance(made.schema[FAILED].dataType, StringType):
        raise StageError(
            f"stage {stage!r}: {FAILED!r} is the reason of a failure, so it must be a string"
        )


def _post(
    job: Job, run: OpenedRun, step: StageStep, manifest: Manifest, wrote: Witness, rows: DataFrame
) -> Record:
    """Derive the deltas by reading the written files back, and post them."""
    assert run.input_run is not None
    written = with_position(read_stored(job, manifest), manifest, POSITION)
    found = Witness(ROOT, PARENT)
    failed = written.select(ROOT, FAILED) if wrote.failed else None
    output = found.watch(
        written.select(ROOT, PARENT, POSITION, *([FAILED] if wrote.failed else []))
    )
    input_count = run.input_run.output_rows or 0
    if run.batch.ackers == 0:
        return Record(input_rows=input_count, output_rows=manifest.rows)
    consumers = job.pipeline.consumers(step.name)
    input_id = run.input_run.stage_run_id
    if step.acks == "on_emit":
        one_parent = run.input_run.one_row_a_root
        folded = fold.fold_emitted(
            output, failed, input_id, run.run_id, step.name, consumers, one_parent=one_parent
        )
    else:
        folded = fold.fold_on_read(rows, output, failed, input_id, run.run_id, step.name, consumers)
    posted = job.post(run, folded)
    require_equal(f"rows and XOR of {step.name} in run {run.run_id}", wrote.seen, found.seen)
    failed_rows = manifest.rows - posted.emitted_edges // len(consumers)
    return Record(
        input_rows=input_count,
        output_rows=manifest.rows - failed_rows,
        failed_rows=failed_rows,
        delta_rows=posted.rows,
        delta_xor=posted.delta_xor,
        emitted_edges=posted.emitted_edges,
        emitted_roots=posted.emitted_roots,
        acked_edges=posted.acked_edges,
    )
