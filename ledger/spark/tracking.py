"""What a step owes the ledger: which rows it acks and emits, and what has to agree before it
commits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ledger.batch.step_runs import OpenedRun, Record
from ledger.deltas.edges import Edges
from ledger.deltas.kernel import fold_emitted, fold_output
from ledger.deltas.portions import (
    Output,
    Portion,
    Reading,
    Records,
)
from ledger.deltas.spans import RootRange
from ledger.pipeline.steps import StageStep
from ledger.spark.folding.outcome import FoldOutcome
from ledger.spark.frames.anchors import Rooting
from ledger.spark.frames.inputs import emitted_source
from ledger.spark.job import Job, require_equal
from ledger.storage.manifest import Manifest
from ledger.store.queries.runs import Run

SWALLOWED = "no output"  # the reason of what an on_read stage read and did not emit


class StageTracking:
    """What of a stage's run is folded and checked: nothing, in a run without ackers and downstream
    of the last tracked stage.
    """

    def portions(self, manifest: Manifest) -> Sequence[Portion]:
        """What is to be folded."""
        return ()

    def check(self, outcome: FoldOutcome) -> None:
        """Raise IntegrityError unless what was folded is what was written and what was read."""

    def drops(self, outcome: FoldOutcome) -> Mapping[str, int]:
        """Inputs acked without an output, by reason."""
        return {}


@dataclass(frozen=True)
class LastTracked(StageTracking):
    """A stage whose output is not tracked any more acks what it reads."""

    job: Job
    run: OpenedRun

    def portions(self, manifest: Manifest) -> Sequence[Portion]:
        return readings(self.job, self.run)

    def check(self, outcome: FoldOutcome) -> None:
        require_read(self.job, self.run, outcome)


@dataclass(frozen=True)
class Tracked(StageTracking):
    """A stage that acks and emits. ``takes_over``: it acks by reading what it carries over."""

    job: Job
    run: OpenedRun
    step: StageStep
    rooting: Rooting
    takes_over: bool

    @property
    def _by_reading(self) -> bool:
        return self.step.acks == "on_read"

    def portions(self, manifest: Manifest) -> Sequence[Portion]:
        """What it wrote; and of its inputs what it acks by reading."""
        own = fold_output
        if not self._by_reading:
            own = partial(fold_emitted, emits_one=self.step.emits == "one")
        edges = edges_of(self.job, self.run)
        output = Output(manifest.files, own, edges, self.rooting.anchors)
        if self._by_reading or self.takes_over:
            return [output, *readings(self.job, self.run, only_carried=not self._by_reading)]
        return [output]

    def check(self, outcome: FoldOutcome) -> None:
        """Rows, what they come from, and how many edges they have; of a stage that acks what it
        reads, as many edges as its inputs recorded.
        """
        name, number = self.step.name, self.run.run_id
        require_equal(f"rows of {name} in run {number}", self.rooting.wrote.seen, outcome.wrote)
        edges = self.rooting.edges * len(self.job.pipeline.consumers(name))
        require_equal(
            f"rows passed on by {name} in run {number}", edges, outcome.posted.emitted_edges
        )
        if self._by_reading:
            require_read(self.job, self.run, outcome)

    def drops(self, outcome: FoldOutcome) -> Mapping[str, int]:
        """What was dropped with a reason, and what was read without one."""
        if not self._by_reading:
            return outcome.drops
        carried = outcome.read_carried if self.takes_over else 0
        swallowed = outcome.posted.acked_edges - carried - outcome.with_rows
        return {**outcome.drops, **({SWALLOWED: swallowed} if swallowed else {})}


def stage_tracking(
    job: Job, run: OpenedRun, step: StageStep, rows: Rooting, takes_over: bool
) -> StageTracking:
    """What a stage owes the ledger in a run. ``rows``: of its output."""
    tracks = job.pipeline.graph.tracks
    if run.batch.ackers and tracks(step.name):
        return Tracked(job, run, step, rows, takes_over)
    if run.batch.ackers and all(map(tracks, step.inputs)):
        return LastTracked(job, run)
    return StageTracking()


class SourceTracking:
    """What of a source's run is folded and checked: nothing, in a run without ackers."""

    def records(self, manifest: Manifest, emitted: RootRange) -> Sequence[Portion]:
        """What is to be folded."""
        return ()

    def check(self, outcome: FoldOutcome, emitted: RootRange, written: int, failed: int) -> None:
        """Raise IntegrityError unless what was folded is what was written. ``written``: records
        in all, roots or not. ``failed``: those that did not parse.
        """


@dataclass(frozen=True)
class Emits(SourceTracking):
    """A source: each record is a root. ``keeps_text``: that of records that did not parse."""

    job: Job
    run: OpenedRun
    keeps_text: bool

    def records(self, manifest: Manifest, emitted: RootRange) -> Sequence[Portion]:
        edges = edges_of(self.job, self.run)
        first, roots = emitted.first_root, emitted.roots
        return [Records(manifest.files, first, roots, edges, self.keeps_text)]

    def check(self, outcome: FoldOutcome, emitted: RootRange, written: int, failed: int) -> None:
        """As many records are read back as were written, and as many init deltas were folded as
        roots are made of them. All that did not parse fail.
        """
        where = f"{self.run.step} in run {self.run.run_id}"
        require_equal(f"records of {where}", written, outcome.wrote.rows)
        require_equal(f"tracked records of {where}", emitted.roots, outcome.roots)
        require_equal(f"failed records of {where}", failed, outcome.posted.failed_roots)


def source_tracking(job: Job, run: OpenedRun, *, keeps_text: bool) -> SourceTracking:
    """What a source owes the ledger in a run. ``keeps_text``: of records that did not parse."""
    return Emits(job, run, keeps_text) if run.batch.ackers else SourceTracking()


def edges_of(job: Job, run: OpenedRun) -> Edges:
    """The edges that a run emits and acks."""
    inputs = {name: read.step_run_id for name, read in run.inputs.items()}
    return Edges(run.run_id, run.step, tuple(job.pipeline.consumers(run.step)), inputs)


def readings(job: Job, run: OpenedRun, *, only_carried: bool = False) -> list[Portion]:
    """Rows of a run's inputs, each of which it acks because it was read, as they lie in the files
    of the runs that it read.
    """
    edges = edges_of(job, run)
    return [
        Reading(
            job.manifest(read.step_run_id).files,
            edges,
            edges_to(job, name, read),
            number if len(run.inputs) > 1 else None,
            _roots(job, run, name, read),
            only_carried,
        )
        for number, (name, read) in enumerate(run.inputs.items())
    ]


def require_read(job: Job, run: OpenedRun, outcome: FoldOutcome) -> None:
    """Raise IntegrityError unless all edges were acked that a run's inputs have to it."""
    edges = sum(edges_to(job, name, read) for name, read in run.inputs.items())
    require_equal(f"rows read by {run.step} in run {run.run_id}", edges, outcome.posted.acked_edges)


def edges_to(job: Job, name: str, read: Run) -> int:
    """How many edges a run has to each of its consumers: one for each row and root of it."""
    readers = len(job.pipeline.consumers(name))
    return (read.emitted_edges or 0) // readers if readers else read.output_rows or 0


def _roots(job: Job, run: OpenedRun, name: str, read: Run) -> range | None:
    """The roots of a source's snapshot; None of any other step."""
    if not job.pipeline.step(name).makes_roots:
        return None
    source = emitted_source(job, run.batch.batch_id, read.step_run_id)
    first = int(source.first_root)
    return range(first, first + int(source.roots))


def posted(record: Record, outcome: FoldOutcome) -> Record:
    """The record of a run with what it posted."""
    return replace(record, posted=outcome.posted, acks_proved=outcome.proved)
