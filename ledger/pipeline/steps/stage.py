"""Stages: functions of tracked rows."""

import ast
import inspect
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ledger.core.text import as_reason
from ledger.errors import DeclarationError
from ledger.pipeline.steps.base import (
    Step,
    check_option,
    checked_name,
    one_input,
    parameters,
)
from ledger.types.ddl import check_types

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Acks = Literal["on_emit", "on_read", "explicit", "untracked"]
Emits = Literal["any", "one"]
AnchorsOf = Literal["carried", "by_hand", "merged_by_hand"]
Filters = Literal["dropped", "lost"]

_AGGREGATES = frozenset(
    {"groupBy", "groupby", "rollup", "cube", "agg", "distinct",
     "dropDuplicates", "drop_duplicates", "limit", "over"}
)  # fmt: skip


@dataclass(frozen=True)
class StageStep(Step):
    """A stage: a function of the DataFrames of its tracked inputs, or of a single record."""

    name: str
    function: "Callable[..., Any]"
    inputs: tuple[str, ...]
    acks: Acks
    references: tuple[str, ...]
    emits: Emits = "any"
    schema: "StructType | str | None" = None
    anchors: AnchorsOf = "carried"
    filters: Filters = "dropped"
    expected: Mapping[str, str] = field(default_factory=dict)
    kind = "stage"
    in_words = "a stage"
    files = "outputs"

    @property
    def by_record(self) -> bool:
        """Whether the function takes a single record instead of a frame. ``schema`` is then the
        schema of its output.
        """
        return self.schema is not None

    @property
    def carries(self) -> bool:
        """Whether the library adds the anchors to the frame that the function returns."""
        return self.anchors == "carried" and self.keeps_anchor and not self.by_record

    @property
    def columns(self) -> "StructType | str | None":
        return self.schema

    @property
    def needs_anchor(self) -> bool:
        return self.by_record

    @property
    def keeps_anchor(self) -> bool:
        return self.acks != "untracked"

    def described(self) -> dict[str, Any]:
        return {"acks": self.acks, "joins": bool(self.references) or len(self.inputs) > 1}


def stage_step(
    function: "Callable[..., Any]", reads: str | Sequence[str], **options: Any
) -> StageStep:
    """Return the step of a stage. Raises DeclarationError for an option or a parameter that cannot
    work.

    ``options``: the options of ``Pipeline.stage``.
    """
    name = checked_name("stage", function.__name__)
    check_option(name, "acks", options["acks"], get_args(Acks))
    check_option(name, "emits", options["emits"], get_args(Emits))
    check_option(name, "anchors", options["anchors"], get_args(AnchorsOf))
    check_option(name, "filters", options["filters"], get_args(Filters))
    options["expected"] = _expected(name, options["expected"])
    inputs, references = parameters("stage", name, function, reads)
    return StageStep(name, function, inputs, references=references, **options)


def _expected(stage: str, losses: object) -> Mapping[str, str]:
    """Check the ``expected`` of a stage, and return it with each reason as the ledger stores it.

    ``losses``: the reason for each loss that is intended. A loss is the operation and the reason as
    ``ackledger failed`` prints them, without the line, such as ``inner join: no partner for shop``.
    Raises DeclarationError if it is not such a mapping.
    """
    what = f"stage {stage!r}: expected="
    if not isinstance(losses, Mapping):
        raise DeclarationError(
            f"{what}: found {type(losses).__name__}, expected a dict of losses, each with why it is"
            " meant, such as {'inner join: no partner for shop': 'closed shops'}"
        )
    for loss, why in losses.items():
        if not isinstance(loss, str) or ": " not in loss:
            raise DeclarationError(
                f"{what}: {loss!r} names no loss: expected the operation and the reason as"
                " 'ackledger failed' prints them, without the line, such as 'inner join: no partner"
                " for shop'"
            )
        if not isinstance(why, str) or not why:
            raise DeclarationError(f"{what}: {loss!r} has {why!r}: expected why it is meant")
    return MappingProxyType({loss: as_reason(why) for loss, why in losses.items()})


def record_step(
    function: "Callable[..., Any]",
    reads: str | Sequence[str],
    schema: "StructType | str",
    emits: str,
) -> StageStep:
    name = checked_name("stage", function.__name__)
    check_option(name, "emits", emits, get_args(Emits))
    if not inspect.isgeneratorfunction(function):
        raise DeclarationError(
            f"record stage {name!r}: expected a generator, a function that yields its outputs"
        )
    if len(inspect.signature(function).parameters) != 1:
        raise DeclarationError(
            f"record stage {name!r}: expected one parameter, the record; join references in a stage"
        )
    check_types(f"record stage {name!r}", schema)
    reading = (one_input("record stage", name, reads),)
    return StageStep(name, function, reading, "on_emit", (), cast(Emits, emits), schema)


def warn_of_aggregates(step: StageStep) -> None:
    """Warn of a stage with anchors by hand whose rows depend on which other rows there are. If a
    record is lost before such a stage, a total does not show it.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(step.function)))
    except (OSError, TypeError, SyntaxError):  # a function without a source that can be read
        return
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    named = {func.attr for func in calls if isinstance(func, ast.Attribute)} & _AGGREGATES
    if named:
        warnings.warn(
            f"stage {step.name!r} calls {', '.join(sorted(named))}: what a record that is lost, or"
            " replayed alone, leaves in a total or a window cannot be tracked. Leave out"
            ' anchors="by_hand", or declare it with @pipeline.combine or'
            ' anchors="merged_by_hand"',
            stacklevel=4,
        )
