"""Rows of several anchors, as whole stages make them: how they are stored and what is checked of them."""

from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from ledger.core.column_names import ANCHOR, ANCHORS, DROPPED, FAILED
from ledger.errors import StageError
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import StageStep
from ledger.spark.job import observed


def expected_type(pipeline: Pipeline, step: StageStep) -> str:
    """The type of ``_anchor`` in a stage, as Spark writes it."""
    fields = ["root:bigint", "parent:bigint"]
    fields += ["input:string"] if len(step.inputs) > 1 else []
    fields += ["unit:bigint"] if carries_unit(pipeline, step.name) else []
    one = f"struct<{','.join(fields)}>"
    return f"array<{one}>" if pipeline.graph.merges(step.name) else one


def carries_unit(pipeline: Pipeline, name: str) -> bool:
    """Whether the rows of a step say which unit they belong to."""
    return bool(pipeline.graph.unit) and pipeline.graph.in_units(name)


def stored_anchor(pipeline: Pipeline, step: StageStep) -> list[Column]:
    """``_anchor`` as columns that store well: of one record flat, of several a sorted list."""
    if pipeline.graph.merges(step.name):
        return [F.sort_array(ANCHOR).alias(ANCHORS)]
    names = ["root", "parent", *(["input"] if len(step.inputs) > 1 else [])]
    names += ["unit"] if carries_unit(pipeline, step.name) else []
    return [F.col(f"{ANCHOR}.{name}").alias(f"_{name}") for name in names]


def _bare() -> Column:
    """Whether a row comes from no record, or in part from one that nobody knows."""
    anchors = F.col(ANCHORS)
    unknown = F.exists(anchors, lambda one: one["root"].isNull())
    return anchors.isNull() | (F.size(anchors) == 0) | F.coalesce(unknown, F.lit(False))


class AnchorWitness:
    """Counts the anchors of the rows that pass by, and remembers one whose anchors cannot be."""

    def __init__(self) -> None:
        self._observation = Observation(str(uuid4()))

    def watch(self, frame: DataFrame) -> DataFrame:
        """The same frame, with its column ``_anchors`` observed when it is next executed."""
        roots = F.array_distinct(F.transform(ANCHORS, lambda one: one["root"]))
        marks = [F.col(name).isNull() for name in (FAILED, DROPPED) if name in frame.columns]
        passes = F.lit(True)
        for mark in marks:
            passes &= mark
        return frame.observe(
            self._observation,
            F.sum(F.when(passes, F.size(roots)).otherwise(F.lit(0))).alias("edges"),
            F.max(F.size(roots)).alias("most"),
            F.count_if(_bare()).alias("bare"),
            self._strangers(frame).alias("strangers"),
        )

    def check(self, step: StageStep, max_anchors: int, unit: tuple[str, ...] | None) -> None:
        """Raise StageError if a row has no anchor, too many, or those of two units."""
        found = self._metrics()
        if found["bare"]:
            raise StageError(
                f"stage {step.name!r} returned {found['bare']} rows with an empty {ANCHOR!r} or a null in it, which "
                "come from no record: merge_anchors(...) unites those of all inputs that a row may come from"
            )
        if found["most"] is not None and int(found["most"]) > max_anchors:
            raise StageError(
                f"stage {step.name!r} returned a row of {found['most']} records, max_anchors is {max_anchors}: end "
                "tracking there (anchored=False), or raise max_anchors of the pipeline"
            )
        if found["strangers"] is not None:
            raise StageError(
                f"stage {step.name!r} returned a row of roots {found['strangers']}, whose units differ "
                f"({', '.join(unit or ())}): expected the records of a row to agree in these columns. See "
                "SELECT * FROM root_state(root), or leave out unit=, which makes the batch the unit"
            )

    @property
    def edges(self) -> int:
        """Roots of the rows that go on, summed: the edges that they have to one consumer."""
        return int(self._metrics()["edges"] or 0)

    def _strangers(self, frame: DataFrame) -> Column:
        fields = frame.schema[ANCHORS].dataType.elementType.names  # type: ignore[attr-defined]
        if "unit" not in fields:
            return F.max(F.lit(None).cast("string"))
        first = F.get(F.col(ANCHORS), F.lit(0))
        other = F.get(F.filter(ANCHORS, lambda one: one["unit"] != first["unit"]), F.lit(0))
        both = F.concat(first["root"].cast("string"), F.lit(" and "), other["root"].cast("string"))
        return F.max(F.when(other.isNotNull(), both))

    def _metrics(self) -> dict[str, Any]:
        nothing = {"edges": 0, "most": None, "bare": 0, "strangers": None}
        return observed(self._observation, nothing)
