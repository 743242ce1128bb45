"""Tracking of sources and stages: the rows that a run acks and emits, and the commit's checks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add

from pyspark.sql import DataFrame

from ledger.batch.step_runs import OpenedRun, Record
from ledger.deltas.edges import Edges
from ledger.deltas.kernel import fold_emitted, fold_output
from ledger.deltas.portions import Output, Portion, Reading, Records
from ledger.deltas.spans import RootRange
from ledger.deltas.stored import Checksum
from ledger.pipeline.steps import StageStep
from ledger.spark.folding.outcome import FoldOutcome
from ledger.spark.frames.anchors import rooting
from ledger.spark.job import STORED, Job, require_equal, write_files
from ledger.storage.manifest import Manifest, take_manifest
from ledger.store.queries.runs import Run

SWALLOWED = "no output"  # the reason of what an on_read stage read and did not emit


@dataclass(frozen=True)
class StageFiles:
    """Files of a stage's output, and the counts of their rows.

    ``edges``: the number of edges to one consumer.
    ``anchors``: the approximate number of anchors.
    """

    manifest: Manifest
    checksum: Checksum
    failed: int = 0
    dropped: int = 0
    edges: int = 0
    anchors: int = 0


def write_output(job: Job, step: StageStep, rows: DataFrame, folder: str) -> StageFiles:
    """Write the rows of a stage's output. Raises StageError if a row has an invalid anchor."""
    watched = rooting(job.pipeline, step, rows.columns)
    write_files(watched.watch(rows), folder, STORED)
    manifest = take_manifest(folder)
    require_equal(f"rows of {step.name} in {folder}", watched.wrote.rows, manifest.rows)
    watched.check()
    wrote = watched.wrote
    return StageFiles(
        manifest, wrote.checksum, wrote.failed, wrote.dropped, watched.edges, watched.anchors
    )


@dataclass(frozen=True)
class AckPlan:
    """The files that a run folds into deltas, and the check before it commits.

    Empty in a run without tracking and downstream of the last tracked stage.

    ``check``: raises IntegrityError unless the folded rows are those written and read.
    ``drops``: returns, for an outcome, the number of inputs acked without an output, by reason.
    """

    portions: Sequence[Portion] = ()
    check: Callable[[FoldOutcome], None] = lambda outcome: None
    drops: Callable[[FoldOutcome], Mapping[str, int]] = lambda outcome: outcome.drops


def ack_plan_of_stage(
    job: Job, run: OpenedRun, step: StageStep, written: Sequence[StageFiles]
) -> AckPlan:
    """Return what a stage folds in a run, and the check of its commit.

    The check: rows, their roots and the number of their edges are those that were written. If the
    stage acks by reading, the edges acked are also those that its inputs recorded. A stage whose
    output is not tracked any more acks what it reads and emits nothing.

    ``written``: the stage's output. What is added to it during the fold is checked as well.
    """
    tracks = job.pipeline.graph.tracks
    if not (run.batch.tracking and all(map(tracks, step.inputs))):
        return AckPlan()
    if not tracks(step.name):
        return AckPlan(readings(job, run), partial(require_read, job, run))
    by_reading = step.acks == "on_read"
    portions: list[Portion] = [output_portion(job, run, step, each) for each in written]
    if by_reading:
        portions += readings(job, run)

    def check(outcome: FoldOutcome) -> None:
        where = f"{step.name} in run {run.run_id}"
        wrote = reduce(add, (each.checksum for each in written))
        require_equal(f"rows of {where}", wrote, outcome.wrote)
        edges = sum(each.edges for each in written) * len(job.pipeline.consumers(step.name))
        require_equal(f"rows passed on by {where}", edges, outcome.posted.emitted_edges)
        if by_reading:
            require_read(job, run, outcome)

    def drops(outcome: FoldOutcome) -> Mapping[str, int]:
        """Return the inputs dropped with a reason, and those read without an output."""
        if not by_reading:
            return outcome.drops
        swallowed = outcome.posted.acked_edges - outcome.with_rows
        return {**outcome.drops, **({SWALLOWED: swallowed} if swallowed else {})}

    return AckPlan(portions, check, drops)


def output_portion(job: Job, run: OpenedRun, step: StageStep, written: StageFiles) -> Output:
    """Return the rows that a stage has written, to be folded by the stage's ``acks``."""
    acks = fold_output if step.acks == "on_read" else fold_emitted
    own = partial(acks, emits_one=step.emits == "one")
    return Output(written.manifest.files, own, edges_of(job, run), written.anchors)


def ack_plan_of_source(
    job: Job, run: OpenedRun, manifest: Manifest, emitted: RootRange, failed: int, keeps_text: bool
) -> AckPlan:
    """Return what a source folds in a run, and the check of its commit. Each record is a root.

    The check: as many records are read back as were written, as many init deltas are folded as
    there are roots, and all records that did not parse fail.

    ``failed``: number of records that did not parse.
    ``keeps_text``: whether the text of these is kept.
    """
    if not run.batch.tracking:
        return AckPlan()
    where = f"{run.step} in run {run.run_id}"

    def check(outcome: FoldOutcome) -> None:
        require_equal(f"records of {where}", manifest.rows, outcome.wrote.rows)
        # A record is its own input: there are as many as init deltas, however these are united.
        require_equal(f"tracked records of {where}", emitted.roots, outcome.with_rows)
        require_equal(f"failed records of {where}", failed, outcome.posted.failed_roots)

    first, roots = emitted.first_root, emitted.roots
    return AckPlan([Records(manifest.files, first, roots, edges_of(job, run), keeps_text)], check)


def edges_of(job: Job, run: OpenedRun) -> Edges:
    """Return the edges that a run emits and acks."""
    inputs = {name: read.step_run_id for name, read in run.inputs.items()}
    return Edges(run.run_id, run.step, tuple(job.pipeline.consumers(run.step)), inputs)


def readings(job: Job, run: OpenedRun) -> list[Reading]:
    """Return the rows of a run's inputs, from the files of the runs that it read. The run acks each
    row because it has read it.
    """
    edges = edges_of(job, run)
    return [
        Reading(
            job.manifest(read.step_run_id).files,
            edges,
            edges_to(job, name, read),
            number if len(run.inputs) > 1 else None,
            read.emitted.numbers if read.emitted else None,
        )
        for number, (name, read) in enumerate(run.inputs.items())
    ]


def require_read(job: Job, run: OpenedRun, outcome: FoldOutcome) -> None:
    """Raise IntegrityError unless the run has acked all edges from its inputs."""
    edges = sum(edges_to(job, name, read) for name, read in run.inputs.items())
    require_equal(f"rows read by {run.step} in run {run.run_id}", edges, outcome.posted.acked_edges)


def edges_to(job: Job, name: str, read: Run) -> int:
    """Return the number of edges from a run to each of its consumers: one for each row and root."""
    readers = len(job.pipeline.consumers(name))
    return (read.emitted_edges or 0) // readers if readers else read.output_rows or 0


def posted(record: Record, outcome: FoldOutcome) -> Record:
    """Return a run's record with the totals of the deltas that it posted."""
    return replace(record, posted=outcome.posted, acks_proved=outcome.proved)
