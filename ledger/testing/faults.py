"""Faults in a run of ``ledger.testing``: lost or doubled rows, lost files, crashes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.core.column_names import ANCHOR, POSITION, ROOT, ROOTS
from ledger.errors import DeclarationError, IntegrityError, suggestion
from ledger.pipeline.pipeline import Pipeline
from ledger.spark.job import Job

# The points of ``crash_at`` by the places of ``ledger.core.probes``.
_PLACES = {
    "batch_opened": "before run",
    "output_written": "files written",
    "deltas_posted": "deltas posted",
    "steps_committed": "before settlement",
}
POINTS = tuple(_PLACES)


class Crash(BaseException):
    """Death of the process, which ``crash_at`` raises: its run is not reported as failed."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong in a run.

    ``wrap``: returns the pipeline to run instead. ``change``: returns the job to run instead.
    ``at``: called at each place of ``ledger.core.probes``. ``ends_with``: errors by which the
    ledger notices the fault, which end the run like a crash.
    """

    wrap: Callable[[Pipeline], Pipeline] = lambda pipeline: pipeline
    change: Callable[[Job], Job] = lambda job: job
    at: Callable[[str, str], None] = lambda place, of: None
    ends_with: tuple[type[Exception], ...] = ()


def lose_rows(stage_name: str, *, fraction: float, seed: int = 0) -> Fault:
    """Return the fault that a stage loses this share of its output rows, the same by seed."""

    def lose(rows: DataFrame) -> DataFrame:
        is_kept = F.when(_share(rows, seed) >= fraction, F.lit(True))  # a false one would drop
        return rows.where(is_kept)

    return _on_output(stage_name, lose)


def duplicate_rows(step_name: str, *, fraction: float, seed: int = 0) -> Fault:
    """Return the fault that a sink reads, or a stage emits, a share of the rows twice.

    The ledger notices rows that a sink reads twice, because each row that it reads is acked, and
    rows that an ``emits="one"`` stage emits twice. From other stages two rows for one input are as
    valid as those of an ``explode``, and the sink has both.
    """

    def twice(rows: DataFrame, *identity: str) -> DataFrame:
        return rows.unionByName(rows.where(_share(rows, seed, *identity) < fraction))

    emitted = _on_output(step_name, twice)

    def wrap(pipeline: Pipeline) -> Pipeline:
        _check_tracked(pipeline, step_name)
        is_sink = pipeline.step(step_name).is_published
        return pipeline if is_sink else emitted.wrap(pipeline)

    def change(job: Job) -> Job:
        def read(step: str, rows: DataFrame) -> DataFrame:
            rows = job.on_read(step, rows)
            if step != step_name or not job.pipeline.step(step).is_published:
                return rows
            return twice(rows, *(name for name in (ROOT, ROOTS, POSITION) if name in rows.columns))

        return replace(job, on_read=read)

    return Fault(wrap, change)


def lose_file(step_name: str) -> Fault:
    """Return the fault that a file of the step is lost before it is counted: the step fails, the
    result has its error, and ``resume`` continues.
    """

    def lose(place: str, folder: str) -> None:
        own = f"/{step_name}/batch=" in folder or f"/{step_name}/_staging/" in folder
        if place == "files written" and own:
            sorted(Path(folder).rglob("*.parquet"))[-1].unlink()

    def checked(pipeline: Pipeline) -> Pipeline:
        _check_tracked(pipeline, step_name)
        return pipeline

    return Fault(checked, at=lose, ends_with=(IntegrityError,))


def crash_at(point: str) -> Fault:
    """Return the fault that the process dies at ``point``: ``batch_opened``, ``output_written`` or
    ``deltas_posted`` (of the first source), ``steps_committed`` (before the settlement). Its run
    is not reported as failed.
    """
    if point not in POINTS:
        raise DeclarationError(f"crash_at({point!r}){suggestion(point, POINTS)}")
    dead = False

    def die(place: str, of: str) -> None:
        nonlocal dead
        dead = dead or place == _PLACES[point]
        if dead:  # it stays dead: nothing later is done either
            raise Crash(point)

    def change(job: Job) -> Job:
        nonlocal dead
        dead = False  # of this run
        # A few deltas would be posted with the commit.
        return replace(job, few_rows=0) if point == "deltas_posted" else job

    return Fault(change=change, at=die)


def _share(rows: DataFrame, seed: int, *identity: str) -> Any:
    """Return a number from 0 to 1 for each row, by the columns ``identity``, its anchor or else its
    values."""
    by_anchor = [F.col(ANCHOR)] if ANCHOR in rows.columns else [F.to_json(F.struct("*"))]
    names = [*identity] or by_anchor
    return F.pmod(F.xxhash64(*names, F.lit(seed)), F.lit(1_000_000)) / 1_000_000


def _check_tracked(pipeline: Pipeline, step_name: str) -> None:
    """Raise DeclarationError for a step that follows the settlement, where no record is tracked."""
    if pipeline.graph.follows(step_name):
        raise DeclarationError(
            f"{step_name!r} follows the settlement, where nothing is tracked any more: expected a"
            " source, a stage, or a sink of records"
        )


def _on_output(stage_name: str, change: Callable[[DataFrame], DataFrame]) -> Fault:
    """Return the fault that changes the output of a stage of frames."""

    def wrap(pipeline: Pipeline) -> Pipeline:
        stages = {step.name: step for step in pipeline.stages() if not step.by_record}
        if pipeline.step(stage_name).name not in stages:
            raise DeclarationError(
                f"{stage_name!r} is no stage of frames: rows can be lost or doubled only there"
            )

        step = stages[stage_name]

        @wraps(step.function)
        def hurt(*frames: DataFrame, **arguments: Any) -> Any:
            output = step.function(*frames, **arguments)
            if isinstance(output, tuple):
                return (change(output[0]), *output[1:])
            return change(output)

        steps = {**pipeline.graph.steps, stage_name: replace(step, function=hurt)}
        return pipeline.with_steps(steps.values())

    return Fault(wrap)
