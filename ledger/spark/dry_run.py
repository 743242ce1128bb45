"""Check the steps of a pipeline without running them. No record is read, nothing is claimed or
written.

Headers and footers of a batch's files are read, functions are called over frames without rows, and
the columns of their results are compared with the places that sinks write to. All of it is done by
the functions that a run of the step calls before it reads rows.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ledger.batch.claims import next_claim
from ledger.batch.upkeep.checks import Finding, finding, look_at_sink, references_of
from ledger.core.column_names import ERROR, POSITION, ROOT, is_own
from ledger.core.run_request import Interval
from ledger.core.text import quantity
from ledger.errors import LedgerError
from ledger.lineage.carrier import Operation
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import CombineStep, SinkStep, SourceStep, StageStep, StateStep, Step
from ledger.settings import Settings
from ledger.sinks.folder import require_file_columns
from ledger.sources.base import Claim, Source
from ledger.sources.parsing.typed import no_rows
from ledger.sources.references import Reference
from ledger.spark.actions import WritesError, noting_actions
from ledger.spark.failures import one_line, redacted, translated
from ledger.spark.frames.inputs import named_inputs, passed_on, user_columns
from ledger.spark.frames.side_inputs import (
    WithFunction,
    asks_for_params,
    keyword_arguments,
    read_reference,
)
from ledger.spark.frames.staging import require_key_columns
from ledger.spark.origins.snapshot import is_tracked
from ledger.spark.session import SPARK_ERRORS
from ledger.spark.steps.results import result_of
from ledger.spark.steps.source import reading, source_reader
from ledger.spark.steps.stage import stage_output
from ledger.store.connection import Database
from ledger.types.spark import to_arrow_schema

_MOST_COLUMNS = 8  # whose names are shown


class UncheckedError(LedgerError):
    """Raised when a step cannot be checked, through no fault of the step. The message says why."""


class DryRun:
    """The steps of one pipeline, checked in their order.

    ``interval``: None: no file is read. ``database``: the ledger's; None: it cannot be reached.
    ``earlier``: by subject, the findings about sources, references and sinks that needed no Spark.
    ``on_step``: is called with each subject before it is checked.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        pipeline: Pipeline,
        interval: Interval | None,
        database: Database | None,
        earlier: Mapping[str, Finding],
        on_step: Callable[[str], None],
    ):
        self.spark = spark
        self.settings = settings
        self.pipeline = pipeline
        self.interval = interval
        self.database = database
        self._earlier = earlier
        self._on_step = on_step
        self._frames: dict[str, DataFrame] = {}  # of steps and references, without rows
        self._by_rows: set[str] = set()  # steps whose result may depend on rows

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each reference and each step, those that follow a settlement last."""
        for name, reference in references_of(self.pipeline).items():
            check: Callable[[], str] = partial(_check_reference, self, name, reference)
            yield self._finding(f"reference {name}", (), check)
        for step in (*self.pipeline.steps(), *self.pipeline.followers()):
            needs = (*step.inputs, *step.references)
            check = partial(CHECKS[type(step)], self, step)
            yield self._finding(f"{step.kind} {step.name}", needs, check)

    def earlier(self, subject: str) -> str:
        """Return the finding about a subject that needed no Spark, or raise its error."""
        result = self._earlier[subject]
        if result.error is not None:
            raise result.error
        return result.message

    def keep_columns(self, name: str, frame: DataFrame) -> None:
        """Store the columns of a reference, or of the rows that a step passes on."""
        self._frames[name] = no_rows(self.spark, frame.schema).limit(0)

    def empty_frames(self, names: Sequence[str]) -> dict[str, DataFrame]:
        """Return a frame without rows for each of these steps and references, by name."""
        return {name: self._frames[name] for name in names}

    def call(self, step: Step, function: Callable[[], DataFrame]) -> DataFrame:
        """Return the result of a user's function for frames without rows. Raises UncheckedError if
        it may have failed because there were none, or would write.
        """
        frame = self._frames[step.inputs[0]]
        with noting_actions(frame) as actions, redirect_stdout(sys.stderr):
            try:
                output = function()
                _ = output.schema  # a Spark Connect server looks at a frame when it is asked
            except WritesError as exc:
                raise UncheckedError(
                    f"its function writes by itself ({exc}), and only a run lets it"
                ) from exc
            except Exception as exc:
                error = redacted(exc) if self.pipeline.redact else translated(exc)
                if not actions.may_explain(exc):
                    raise error from exc
                raise UncheckedError(
                    f"its function asks for rows ({actions}), and fails where there are none:"
                    f" {one_line(error).rstrip('. ')}. With rows it may pass"
                ) from exc
        if actions.uses_rows or not self._by_rows.isdisjoint(step.inputs):
            self._by_rows.add(step.name)
        return output

    def _finding(self, subject: str, needs: Sequence[str], check: Callable[[], str]) -> Finding:
        """Run the check of a subject. ``needs``: steps and references whose columns it needs."""

        def checked() -> str:
            try:
                return check()
            except UncheckedError:
                raise
            except Exception as exc:
                if self.pipeline.redact:
                    raise redacted(exc) from None
                if isinstance(exc, SPARK_ERRORS):
                    raise translated(exc) from exc
                raise

        self._on_step(subject)
        missing = [name for name in needs if name not in self._frames]
        if missing:
            return self._unchecked(
                subject, f"the columns of {self._in_words(missing[0])} are not known"
            )
        result = finding(subject, checked)
        if isinstance(result.error, UncheckedError):
            return self._unchecked(subject, result.message)
        by_rows = [name for name in needs if name in self._by_rows]
        if result.ok or not by_rows:
            return result
        return Finding(
            subject,
            f"may be wrong: {result.message.rstrip('. ')}. The result of"
            f" {self._in_words(by_rows[0])} depends on its rows, and a check gives it none",
            hint=True,
        )

    def _unchecked(self, subject: str, reason: str) -> Finding:
        """Return a hint that a step is not checked, beside the finding about it without Spark."""
        earlier = self._earlier.get(subject)
        if earlier is None:
            return Finding(subject, f"not checked, because {reason}", hint=True)
        if not earlier.ok:
            return earlier
        message = f"{earlier.message}; not checked further, because {reason}"
        return Finding(subject, message, hint=True)

    def _in_words(self, name: str) -> str:
        if name in self.pipeline.graph.references:
            return f"reference {name!r}"
        return f"{self.pipeline.step(name).kind} {name!r}"


def _check_reference(run: DryRun, name: str, reference: Reference) -> str:
    """Read headers and footers of a reference, and look for a row."""
    reader = reference.source.reader(run.spark)
    reader.describe(_claim_at(run, name, reference.source))
    run.keep_columns(name, no_rows(run.spark, reader.schema))
    message = run.earlier(f"reference {name}")
    if run.interval is not None:
        read_reference(run.spark, run.settings, run.interval, name, reference)
    return message


def _claim_at(run: DryRun, name: str, source: Source) -> Claim:
    """Return a claim with the path that a batch over the interval would read. Raises UncheckedError
    for a source that describes itself if the interval is not known.
    """
    if run.interval is not None:
        return Claim(name, source.path(run.settings, run.interval))
    if source.describes_itself:
        raise UncheckedError("the table has its columns: give --from and --to to look at it")
    return Claim(name, source.place)


def _check_source(run: DryRun, step: SourceStep) -> str:
    """Read headers and footers of the files that a batch over the interval would take."""
    reader = source_reader(
        run.spark, run.pipeline, step, lambda source: _claim_at(run, source.name, source.source)
    )
    records = no_rows(run.spark, reader.schema).withColumn(ERROR, F.lit(None).cast("string"))
    if step.track is not None:
        _ = records.where(is_tracked(step.track)).schema
    number = F.lit(0).cast("bigint")
    stored = records.withColumn(ROOT, number).withColumn(POSITION, number)
    run.keep_columns(step.name, passed_on(stored))
    message = run.earlier(f"source {step.name}")
    if run.interval is not None:
        with reading(reader):
            if not step.incremental:
                claim = Claim(step.name, step.source.path(run.settings, run.interval))
            elif run.database is None:
                raise UncheckedError("only the ledger knows which of its files are new")
            else:
                claim = next_claim(run.database, run.settings, run.pipeline, step, run.interval)
            reader.check(claim)
    return message


def _check_stage(run: DryRun, step: StageStep) -> str:
    """Call a stage's function, and check that its output can be tracked."""
    inputs, arguments = named_inputs(run.empty_frames(step.inputs)), _keyword_arguments(run, step)
    gathering: Sequence[Operation] = ()

    def output_rows() -> DataFrame:
        nonlocal gathering
        output = stage_output(run.pipeline, step, inputs, arguments)
        gathering = output.gathering
        return output.rows

    output = run.call(step, output_rows)
    stored = no_rows(run.spark, output.schema)
    run.keep_columns(step.name, passed_on(stored.withColumn(POSITION, F.lit(0).cast("bigint"))))
    if not gathering:
        return _returned(output)
    run.pipeline = run.pipeline.with_whole({*run.pipeline.graph.whole, step.name})
    run.pipeline.steps()  # raises what cannot be in a pipeline with a whole stage
    operations = ", ".join(map(str, gathering))
    return f"{_returned(output)}; whole, by {operations}: a replay takes the whole batch"


def _check_combine(run: DryRun, step: CombineStep) -> str:
    """Call the function of a combine."""
    inputs, arguments = _columns_of(run, step), _keyword_arguments(run, step)
    output = run.call(step, lambda: result_of(step, step.function, inputs, arguments))
    run.keep_columns(step.name, output.select(*user_columns(output)))
    return _returned(output)


def _check_state(run: DryRun, step: StateStep) -> str:
    """Call the function of a state for the first batch, and for the one after."""
    function = step.function
    if function is None:
        raise UncheckedError("its object keeps the state by itself")
    inputs, arguments = _columns_of(run, step), _keyword_arguments(run, step)
    first = run.call(step, lambda: result_of(step, function, [None, *inputs], arguments))
    run.keep_columns(step.name, first.select(*user_columns(first)))
    state = run.empty_frames([step.name]).values()
    run.call(step, lambda: result_of(step, function, [*state, *inputs], arguments))
    return _returned(first)


def _check_sink(run: DryRun, step: SinkStep) -> str:
    """Compare the columns of a sink's rows with the place that it writes to."""
    (rows,) = _columns_of(run, step)
    require_key_columns(step, rows.columns)
    require_file_columns(f"sink {step.name!r}", step.sink.partition_by, rows.columns)
    return look_at_sink(run.settings, run.pipeline, step, to_arrow_schema(rows.schema))


def _keyword_arguments(run: DryRun, step: WithFunction) -> dict[str, Any]:
    """Return references without rows, and parameters, that a step's function asks for."""
    if run.interval is None and asks_for_params(step):
        raise UncheckedError("its function asks for params: give --from, --to and --param")
    params = {} if run.interval is None else run.interval.params
    return keyword_arguments(step, run.empty_frames(step.references), params)


def _columns_of(run: DryRun, step: Step) -> list[DataFrame]:
    """Return the user's columns of each input of a step, without rows."""
    return [rows.select(*user_columns(rows)) for rows in run.empty_frames(step.inputs).values()]


def _returned(output: DataFrame) -> str:
    names = [name for name in output.columns if not is_own(name)]
    shown = [*names[:_MOST_COLUMNS], *(["..."] if len(names) > _MOST_COLUMNS else [])]
    return f"returns {quantity(len(names), 'column')}: {', '.join(shown)}"


# The check of each kind of step: it returns what was found, or raises what is wrong.
CHECKS: dict[type[Step], Callable[[DryRun, Any], str]] = {
    SourceStep: _check_source,
    StageStep: _check_stage,
    SinkStep: _check_sink,
    CombineStep: _check_combine,
    StateStep: _check_state,
}
