"""Explain how a stage keeps ``_anchor`` when its function groups, merges or selects without it."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from ledger.core.column_names import ANCHOR
from ledger.errors import StageError
from ledger.lineage.sql_functions import BUILT_IN, in_sql
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import StageStep
from ledger.spark.frames.anchor_use import Loss

_GROUPS = ("MISSING_AGGREGATION", "MISSING_GROUP_BY")


@contextmanager
def explained_anchors(pipeline: Pipeline, step: StageStep, frame: DataFrame) -> Iterator[None]:
    """Replace errors of Spark's analysis that come from ``_anchor`` in a stage.

    ``frame``: one of the stage's session.
    """
    try:
        yield
    except AnalysisException as exc:
        message = _message(pipeline, step, frame, exc)
        if message is None:
            raise
        raise StageError(f"stage {step.name!r} {message}") from exc


def how_to_keep(pipeline: Pipeline, step: StageStep, frame: DataFrame, loss: Loss) -> str:
    """Return what to write in a stage that returned a frame without the anchor."""
    if loss in ("collect_anchors", "merge_anchors"):
        return f"name the column: {in_sql(loss, frame)}"
    if loss == "group":
        return how_to_collect(pipeline, step, frame)
    if loss == "groups":
        return (
            f"{_whole(pipeline, step)}return {ANCHOR!r} from the function of the groups, for"
            " example of applyInPandas: the lists of the rows that a row comes from, concatenated"
        )
    if loss == "rows":
        return (
            f"return {ANCHOR!r} from the function of the rows, for example of mapInPandas: with"
            " each row the value that it came with"
        )
    return f"keep it, for example .select({', '.join(map(repr, [*frame.columns[:3], ANCHOR]))})"


def how_to_collect(pipeline: Pipeline, step: StageStep, frame: DataFrame) -> str:
    """Return what to write where a stage groups rows."""
    written = in_sql("collect_anchors", frame)
    return f"{_whole(pipeline, step)}add collect_anchors() to agg(...), or in SQL {written}"


def _whole(pipeline: Pipeline, step: StageStep) -> str:
    return "" if pipeline.graph.merges(step.name) else "declare the stage with whole=True, and "


def _message(
    pipeline: Pipeline, step: StageStep, frame: DataFrame, exc: AnalysisException
) -> str | None:
    condition, text = exc.getCondition() or "", str(exc)
    if ANCHOR not in text and not any(name in text for name in BUILT_IN):
        return None
    whole = pipeline.graph.merges(step.name) or not pipeline.graph.tracks(step.name)
    needs_whole = "calls {}(), which needs whole=True: declare the stage with it"
    if condition.startswith("DATATYPE_MISMATCH") and not whole:
        names = {"flatten(collect_list(": "collect_anchors", "coalesce(": "merge_anchors"}
        called = next((name for part, name in names.items() if f"{part}{ANCHOR}" in text), None)
        if called:
            return needs_whole.format(called)
    if condition == "UNRESOLVED_ROUTINE":
        called = next((name for name in BUILT_IN if f"`{name}`" in text), None)
        if called and not whole:
            return needs_whole.format(called)
        return called and (
            f"calls {called} in SQL, where this session has no such function: write"
            f" {BUILT_IN[called]}"
        )
    if not condition.startswith((*_GROUPS, "UNRESOLVED_COLUMN")):
        return None
    if not pipeline.graph.tracks(step.name):
        if condition.startswith("UNRESOLVED_COLUMN") and f"`{ANCHOR}`" in text:
            return (
                f"uses {ANCHOR!r}, but tracking ends there or before, so its inputs have no such"
                " column: remove it"
            )
        return None
    if condition == "MISSING_AGGREGATION" and f'"{ANCHOR}"' not in text.partition("GROUP BY")[0]:
        return None
    if condition.startswith("UNRESOLVED_COLUMN") and (
        f"name `{ANCHOR}`" not in text or "Aggregate [" not in text
    ):
        return None
    return (
        f"groups rows without collecting {ANCHOR!r}: {how_to_collect(pipeline, step, frame)}."
        f" any_value({ANCHOR}) would lose all records of a group but one"
    )
