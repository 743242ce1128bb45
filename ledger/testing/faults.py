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

    ``wrap``: makes the pipeline that runs instead. ``change``: makes the surroundings that the
    run has instead. ``at``: called at each place of ``ledger.core.probes``. ``ends_with``: errors
    by which the ledger notices the fault, and which end the run like a crash.
    """

    wrap: Callable[[Pipeline], Pipeline] = lambda pipeline: pipeline
    change: Callable[[Job], Job] = lambda job: job
    at: Callable[[str, str], None] = lambda place, of: None
    ends_with: tuple[type[Exception], ...] = ()


def lose_rows(stage_name: str, *, fraction: float, seed: int = 0) -> Fault:
    """The stage silently loses this share of its output rows, the same for the same seed."""
    return _on_output(stage_name, lambda rows: rows.where(_share(seed) >= fraction))


def duplicate_rows(step_name: str, *, fraction: float, seed: int = 0) -> Fault:
    """A share of the rows comes twice: those that a sink reads; those that a stage emits.

    The ledger notices what a sink reads twice, for each row that it reads is acked, and what an
    ``emits="one"`` stage emits twice. Elsewhere two rows for one input are as lawful as those of
    an ``explode``, and the sink holds them.
    """

    def twice(rows: DataFrame, share: Any) -> DataFrame:
        return rows.unionByName(rows.where(share < fraction))

    def read_twice(rows: DataFrame) -> DataFrame:
        own = [name for name in (ROOT, ROOTS, POSITION) if name in rows.columns]
        return twice(rows, _share(seed, *own))

    emitted = _on_output(step_name, lambda rows: twice(rows, _share(seed)))
    reading = _on_input(step_name, read_twice)

    def wrap(pipeline: Pipeline) -> Pipeline:
        _check_tracked(pipeline, step_name)
        is_sink = pipeline.step(step_name).is_published
        return pipeline if is_sink else emitted.wrap(pipeline)

    return Fault(wrap, reading.change)


def lose_file(step_name: str) -> Fault:
    """A file that the step has written is lost before it is counted: the step fails, the result
    has its error, and ``resume`` goes on.
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
    """The process dies at ``point``: ``batch_opened``, ``output_written`` or ``deltas_posted``
    (of the first source), ``steps_committed`` (before the settlement). Its run is not
    reported as failed.
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


def _share(seed: int, *identity: str) -> Any:
    """A number from 0 to 1 for each row, by its anchor alone."""
    names = identity or (ANCHOR,)
    return F.pmod(F.xxhash64(*names, F.lit(seed)), F.lit(1_000_000)) / 1_000_000


def _check_tracked(pipeline: Pipeline, step_name: str) -> None:
    """Raise DeclarationError for a step that follows the settlement: no record is tracked there
    any more.
    """
    if pipeline.graph.follows(step_name):
        raise DeclarationError(
            f"{step_name!r} follows the settlement, where nothing is tracked any more: expected a"
            " source, a stage, or a sink of records"
        )


def _on_input(step_name: str, change: Callable[[DataFrame], DataFrame]) -> Fault:
    """Change what a step reads, if it is a sink."""

    def change_job(job: Job) -> Job:
        def read(step: str, rows: DataFrame) -> DataFrame:
            delivered = job.on_read(step, rows)
            hit = step == step_name and job.pipeline.step(step).is_published
            return change(delivered) if hit else delivered

        return replace(job, on_read=read)

    return Fault(change=change_job)


def _on_output(stage_name: str, change: Callable[[DataFrame], DataFrame]) -> Fault:
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
