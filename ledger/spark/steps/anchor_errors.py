"""Explain how a stage keeps ``_anchor`` when its function groups, merges or selects without it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from ledger.core.column_names import ANCHOR
from ledger.errors import StageError
from ledger.lineage.sql_functions import BUILT_IN, in_sql
from ledger.pipeline.steps import StageStep
from ledger.spark.frames.anchor_use import Loss

# What frames of a stage have of anchors: nothing, because tracking has ended; nothing, because the
# library carries them; one in each row; or lists of them.
Anchors = Literal["untracked", "carried", "one", "lists"]
_WITHOUT = {
    "untracked": (
        f"uses {ANCHOR!r}, but tracking ends there or before, so its inputs have no such column:"
        " remove it"
    ),
    "carried": (
        f"uses {ANCHOR!r}, which the library carries by itself: leave it out, with"
        " merge_anchors() and collect_anchors(), or declare the stage with"
        ' anchors="by_hand" or "merged_by_hand"'
    ),
}
_GROUPS = ("MISSING_AGGREGATION", "MISSING_GROUP_BY")


@contextmanager
def explained_anchors(step: StageStep, frame: DataFrame, anchors: Anchors) -> Iterator[None]:
    """Replace errors of Spark's analysis that come from ``_anchor`` in a stage.

    ``frame``: one of the stage's session. ``anchors``: what the stage's frames have of anchors.
    """
    try:
        yield
    except AnalysisException as exc:
        message = _message(frame, anchors, exc)
        if message is None:
            raise
        raise StageError(f"stage {step.name!r} {message}") from exc


def how_to_keep(frame: DataFrame, loss: Loss, *, as_list: bool) -> str:
    """Return what to write in a stage that returned a frame without the anchor. ``as_list``: it
    gets lists of anchors.
    """
    if loss in ("collect_anchors", "merge_anchors"):
        return f"name the column: {in_sql(loss, frame)}"
    if loss == "group":
        return how_to_collect(frame, as_list=as_list)
    if loss == "groups":
        return (
            f"{_merged(as_list)}return {ANCHOR!r} from the function of the groups, for"
            " example of applyInPandas: the lists of the rows that a row comes from, concatenated"
        )
    if loss == "rows":
        return (
            f"return {ANCHOR!r} from the function of the rows, for example of mapInPandas: with"
            " each row the value that it came with"
        )
    return f"keep it, for example .select({', '.join(map(repr, [*frame.columns[:3], ANCHOR]))})"


def how_to_collect(frame: DataFrame, *, as_list: bool) -> str:
    """Return what to write where a stage groups rows."""
    written = in_sql("collect_anchors", frame)
    return f"{_merged(as_list)}add collect_anchors() to agg(...), or in SQL {written}"


def _merged(as_list: bool) -> str:
    return "" if as_list else 'declare the stage with anchors="merged_by_hand", and '


def _message(frame: DataFrame, anchors: Anchors, exc: AnalysisException) -> str | None:
    condition, text = exc.getCondition() or "", str(exc)
    if ANCHOR not in text and not any(name in text for name in BUILT_IN):
        return None
    if anchors in _WITHOUT:
        return _WITHOUT[anchors] if _is_unknown(condition, text) else None
    needs_lists = 'calls {}(), which needs anchors="merged_by_hand": declare the stage with it'
    if condition.startswith("DATATYPE_MISMATCH") and anchors == "one":
        names = {"flatten(collect_list(": "collect_anchors", "coalesce(": "merge_anchors"}
        called = next((name for part, name in names.items() if f"{part}{ANCHOR}" in text), None)
        if called:
            return needs_lists.format(called)
    if condition == "UNRESOLVED_ROUTINE":
        called = next((name for name in BUILT_IN if f"`{name}`" in text), None)
        if called and anchors == "one":
            return needs_lists.format(called)
        return called and (
            f"calls {called} in SQL, where this session has no such function: write"
            f" {BUILT_IN[called]}"
        )
    if not condition.startswith((*_GROUPS, "UNRESOLVED_COLUMN")):
        return None
    if condition == "MISSING_AGGREGATION" and f'"{ANCHOR}"' not in text.partition("GROUP BY")[0]:
        return None
    if condition.startswith("UNRESOLVED_COLUMN") and (
        f"name `{ANCHOR}`" not in text or "Aggregate [" not in text
    ):
        return None
    return (
        f"groups rows without collecting {ANCHOR!r}:"
        f" {how_to_collect(frame, as_list=anchors == 'lists')}."
        f" any_value({ANCHOR}) would lose all records of a group but one"
    )


def _is_unknown(condition: str, text: str) -> bool:
    """Return whether a column or a function of anchors is not known."""
    if condition.startswith("UNRESOLVED_COLUMN"):
        return f"`{ANCHOR}`" in text
    return condition == "UNRESOLVED_ROUTINE" and any(f"`{name}`" in text for name in BUILT_IN)
