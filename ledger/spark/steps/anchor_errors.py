"""Explain errors of a stage whose function groups or merges without ``_anchor``."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException

from ledger.core.column_names import ANCHOR
from ledger.errors import StageError
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import StageStep

_GROUPS = ("MISSING_AGGREGATION", "MISSING_GROUP_BY")
_FUNCTIONS = {
    "collect_anchors": f"flatten(collect_list({ANCHOR})) AS {ANCHOR}",
    "merge_anchors": f"concat(o.{ANCHOR}, c.{ANCHOR}) AS {ANCHOR}",
}


@contextmanager
def explained_anchors(pipeline: Pipeline, step: StageStep) -> Iterator[None]:
    """Replace errors of Spark's analysis that come from ``_anchor`` in a stage."""
    try:
        yield
    except AnalysisException as exc:
        message = _message(pipeline, step, exc)
        if message is None:
            raise
        raise StageError(f"stage {step.name!r} {message}") from exc


def how_to_collect(pipeline: Pipeline, step: StageStep) -> str:
    """Return what to write where a stage groups rows."""
    whole = "" if pipeline.graph.merges(step.name) else "declare the stage with whole=True, and "
    in_sql = f"collect_anchors({ANCHOR}) AS {ANCHOR}"
    return f"{whole}add collect_anchors() to agg(...), or in SQL {in_sql}"


def _message(pipeline: Pipeline, step: StageStep, exc: AnalysisException) -> str | None:
    condition, text = exc.getCondition() or "", str(exc)
    if ANCHOR not in text and not any(name in text for name in _FUNCTIONS):
        return None
    whole = pipeline.graph.merges(step.name) or not pipeline.graph.tracks(step.name)
    needs_whole = "calls {}(), which needs whole=True: declare the stage with it"
    if condition.startswith("DATATYPE_MISMATCH") and not whole:
        names = {"flatten(collect_list(": "collect_anchors", "coalesce(": "merge_anchors"}
        called = next((name for part, name in names.items() if f"{part}{ANCHOR}" in text), None)
        if called:
            return needs_whole.format(called)
    if condition == "UNRESOLVED_ROUTINE":
        called = next((name for name in _FUNCTIONS if f"`{name}`" in text), None)
        if called and not whole:
            return needs_whole.format(called)
        return called and (
            f"calls {called} in SQL, where this session has no such function: write"
            f" {_FUNCTIONS[called]}"
        )
    if not condition.startswith((*_GROUPS, "UNRESOLVED_COLUMN")):
        return None
    if not pipeline.graph.tracks(step.name):
        if condition.startswith("UNRESOLVED_COLUMN") and f"`{ANCHOR}`" in text:
            return f'has acks="untracked", so its inputs have no {ANCHOR!r}: remove the column'
        return None
    if condition == "MISSING_AGGREGATION" and f'"{ANCHOR}"' not in text.partition("GROUP BY")[0]:
        return None
    if condition.startswith("UNRESOLVED_COLUMN") and (
        f"name `{ANCHOR}`" not in text or "Aggregate [" not in text
    ):
        return None
    return (
        f"groups rows without collecting {ANCHOR!r}: {how_to_collect(pipeline, step)}."
        f" any_value({ANCHOR}) would lose all records of a group but one"
    )
