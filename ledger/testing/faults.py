"""What can go wrong in a run of ``ledger.testing``: rows lost or doubled, files gone, processes dead."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import ANCHOR, POSITION, ROOT, ROOTS
from ledger.errors import DeclarationError, IntegrityError, suggestion
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SinkStep, StageStep, Step
from ledger.spark import post as folding
from ledger.spark.frames import inputs, staging
from ledger.spark.job import Job
from ledger.spark.steps import sink, stage
from ledger.spark.steps import source as emit

POINTS = ("batch_opened", "output_written", "deltas_posted", "steps_committed")


class Crash(BaseException):
    """What ``crash_at`` raises: the process is gone, nobody says that its run failed."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong in a run: ``wrap`` changes the pipeline, ``during`` the machinery. ``ends_with``:
    errors by which the ledger notices it, and which end the run like a crash."""

    wrap: Callable[[Pipeline], None] = lambda pipeline: None
    during: Callable[[], Any] = ExitStack
    ends_with: tuple[type[Exception], ...] = ()


def lose_rows(stage_name: str, *, fraction: float, seed: int = 0) -> Fault:
    """The stage silently loses this share of its output rows, the same for the same seed."""
    return _on_output(stage_name, lambda rows: rows.where(_share(seed) >= fraction))


def duplicate_rows(step_name: str, *, fraction: float, seed: int = 0) -> Fault:
    """A share of the rows comes twice: those that a sink, or a stage that acks on read, reads; those that any
    other stage emits.

    The ledger notices what is read twice, for each row that such a step reads is acked, and at an
    ``emits="one"`` stage. Elsewhere two rows for one input are as lawful as those of an ``explode``, and the
    sink holds them.
    """

    def twice(rows: DataFrame, share: Any) -> DataFrame:
        return rows.unionByName(rows.where(share < fraction))

    def read_twice(rows: DataFrame) -> DataFrame:
        own = [name for name in (ROOT, ROOTS, POSITION) if name in rows.columns]
        return twice(rows, _share(seed, *own))

    emitted = _on_output(step_name, lambda rows: twice(rows, _share(seed)))
    reading = _on_input(step_name, read_twice)

    def wrap(pipeline: Pipeline) -> None:
        _check_tracked(pipeline, step_name)
        if not _acks_by_reading(pipeline.step(step_name)):
            emitted.wrap(pipeline)

    return Fault(wrap, reading.during)


def lose_file(step_name: str) -> Fault:
    """A file that the step has written is gone before it is counted: the step fails, the result has its error, and
    ``resume`` goes on."""

    @contextmanager
    def during() -> Iterator[None]:
        def lossy(take: Callable[[str], Any]) -> Callable[[str], Any]:
            def taken(folder: str) -> Any:
                if f"/{step_name}/batch=" in folder or f"/{step_name}/_staging/" in folder:
                    sorted(Path(folder).rglob("*.parquet"))[-1].unlink()
                return take(folder)

            return taken

        with ExitStack() as stack:
            for module in (emit, stage, staging):
                stack.enter_context(
                    patch.object(module, "take_manifest", lossy(module.take_manifest))
                )
            yield

    def known(pipeline: Pipeline) -> None:
        _check_tracked(pipeline, step_name)

    return Fault(known, during, (IntegrityError,))


def crash_at(point: str) -> Fault:
    """The process dies at ``point``: ``batch_opened``, ``output_written`` or ``deltas_posted`` (of the
    first source), ``steps_committed`` (before the settlement). Nobody says that its run failed.
    """
    if point not in POINTS:
        raise DeclarationError(f"crash_at({point!r}){suggestion(point, POINTS)}")
    targets = {
        "batch_opened": ("ledger.testing.lab.run_steps", False),
        "output_written": ("ledger.spark.steps.source.take_manifest", True),
        "deltas_posted": ("ledger.spark.steps.source.fold", True),
        "steps_committed": ("ledger.testing.lab.settle_and_follow", False),
    }
    target, afterwards = targets[point]

    @contextmanager
    def during() -> Iterator[None]:
        patched = patch(target)
        original, _ = patched.get_original()

        def die(*arguments: Any, **options: Any) -> None:
            if afterwards:
                original(*arguments, **options)
            raise Crash(point)

        with ExitStack() as stack:
            stack.enter_context(patch(target, die))
            stack.enter_context(patch("ledger.execution._end", lambda *arguments: None))
            if point == "deltas_posted":  # few would be posted with the commit
                stack.enter_context(patch.object(folding, "FEW_ROWS", -1))
            yield

    return Fault(during=during)


def _share(seed: int, *identity: str) -> Any:
    """A number from 0 to 1 for each row, by its anchor alone."""
    names = identity or (ANCHOR,)
    return F.pmod(F.xxhash64(*names, F.lit(seed)), F.lit(1_000_000)) / 1_000_000


def _check_tracked(pipeline: Pipeline, step_name: str) -> None:
    """Raise DeclarationError for a step that follows the settlement: no record is tracked there any more."""
    if pipeline.graph.follows(step_name):
        raise DeclarationError(
            f"{step_name!r} follows the settlement, where nothing is tracked any more: expected a source, a stage, "
            "or a sink of records"
        )


def _acks_by_reading(step: Step) -> bool:
    return isinstance(step, SinkStep) or (isinstance(step, StageStep) and step.acks == "on_read")


def _on_input(step_name: str, change: Callable[[DataFrame], DataFrame]) -> Fault:
    """Change what a step reads, if it acks each row that it reads."""

    @contextmanager
    def during() -> Iterator[None]:

        def rows(job: Job, run: OpenedRun) -> DataFrame:
            found = inputs.input_rows(job, run)
            return change(found) if run.stage == step_name else found

        def frames(job: Job, run: OpenedRun) -> dict[str, DataFrame]:
            found = inputs.input_frames(job, run)
            if run.stage != step_name or not _acks_by_reading(job.pipeline.step(step_name)):
                return found
            return {name: change(frame) for name, frame in found.items()}

        with patch.object(sink, "input_rows", rows), patch.object(stage, "input_frames", frames):
            yield

    return Fault(during=during)


def _on_output(stage_name: str, change: Callable[[DataFrame], DataFrame]) -> Fault:
    def wrap(pipeline: Pipeline) -> None:
        step = pipeline.step(stage_name)
        if not isinstance(step, StageStep) or step.by_record:
            raise DeclarationError(
                f"{stage_name!r} is no stage of frames: rows can be lost or doubled only there"
            )

        def hurt(*frames: DataFrame, **references: DataFrame) -> Any:
            made = step.function(*frames, **references)
            if isinstance(made, tuple):
                return (change(made[0]), *made[1:])
            return change(made)

        pipeline._steps[stage_name] = replace(step, function=hurt)

    return Fault(wrap)
