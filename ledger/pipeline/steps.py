"""The steps of a pipeline, and how one is made of a declared function."""

import ast
import inspect
import re
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from ledger.core.stateful import StatefulSource, StatefulStage
from ledger.errors import DeclarationError, suggestion
from ledger.sinks.base import Sink
from ledger.sources.base import Source
from ledger.sources.registry import AnySource, source_of
from ledger.types.ddl import check_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Choice = TypeVar("Choice", bound=StrEnum)
Acks = Literal["on_emit", "on_read", "explicit"]
Emits = Literal["any", "one"]
Notice = Callable[[int, "DataFrame"], object]

_AGGREGATES = frozenset(
    {"groupBy", "groupby", "rollup", "cube", "agg", "distinct",
     "dropDuplicates", "drop_duplicates", "limit", "over"}
)  # fmt: skip
MOST_LETTERS = 63  # of a name
_NAME = re.compile(rf"[a-z][a-z0-9_]{{0,{MOST_LETTERS - 1}}}")


@dataclass(frozen=True)
class SourceStep:
    """A tracked source: each of its records, or of those for which ``track`` holds, is a root."""

    name: str
    source: Source
    on_ack: Notice | None = None
    on_fail: Notice | None = None
    track: str | None = None
    key: tuple[str, ...] = ()
    kind = "source"
    inputs: tuple[str, ...] = ()

    @property
    def hears_of_messages(self) -> bool:
        """Whether it is to be told what became of its messages."""
        return self.on_ack is not None or self.on_fail is not None

    @property
    def hooks(self) -> StatefulSource | None:
        """The object that keeps its position, if one does."""
        return self.source.hooks

    @property
    def wants_notice(self) -> bool:
        """Whether it is to be told anything of a batch: what became of its messages, or that it
        is committed.
        """
        return self.hears_of_messages or self.hooks is not None

    @property
    def layout(self) -> dict[str, Any]:
        """What the ledger keeps of it beside its name: how it can be read again, its key, and
        how its raw text is cut into records and fields.
        """
        made: dict[str, Any] = {"incremental": True} if self.incremental else {}
        if self.key:
            made |= {"key": list(self.key), "rereads": self.rereads}
        return made | dict(self.source.layout)

    @property
    def rereads(self) -> bool:
        """Whether single records of it are read again by their key."""
        return bool(self.key) and self.source.not_reread is None

    @property
    def incremental(self) -> bool:
        """Whether a batch takes what no other has taken, instead of an interval."""
        return self.source.incremental


@dataclass(frozen=True)
class StageStep:
    """A stage: a function of its tracked inputs' DataFrames, or of one record."""

    name: str
    function: "Callable[..., Any]"
    inputs: tuple[str, ...]
    acks: Acks
    references: tuple[str, ...]
    emits: Emits = "any"
    schema: "StructType | str | None" = None
    anchored: bool = True
    whole: bool = False
    unit: tuple[str, ...] = ()
    kind = "stage"

    @property
    def by_record(self) -> bool:
        """Whether the function takes one record instead of a frame; ``schema`` is then its
        output's.
        """
        return self.schema is not None


@dataclass(frozen=True)
class SinkStep:
    """A sink, fed by one stage or source."""

    name: str
    sink: Sink
    reads: str
    kind = "sink"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The step that it reads."""
        return (self.reads,)


@dataclass(frozen=True)
class CombineStep:
    """A function of all acked rows of a batch and its replays; tracking ends at what it reads."""

    name: str
    function: "Callable[..., Any]"
    inputs: tuple[str, ...]
    references: tuple[str, ...]
    partial: bool = False
    kind = "combine"


@dataclass(frozen=True)
class StateStep:
    """A state over batches: a function of the state and a batch's acked rows, or an object that
    keeps it.
    """

    name: str
    inputs: tuple[str, ...]
    function: "Callable[..., Any] | None" = None
    references: tuple[str, ...] = ()
    hooks: StatefulStage | None = None
    kind = "stateful"


Step = SourceStep | StageStep | SinkStep | CombineStep | StateStep


def checked_name(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{kind} name {name!r}: expected a lower-case letter, then letters, digits or '_'"
        )
    return name


def one_of(pipeline: str, choices: type[Choice], given: str) -> Choice:
    """The choice of that name. Raises DeclarationError, naming the pipeline, if there is none."""
    try:
        return choices(given)
    except ValueError as exc:
        argument = re.sub(r"(?<!^)(?=[A-Z])", "_", choices.__name__).lower()
        raise DeclarationError(
            f"pipeline {pipeline!r}:"
            f" {argument}={given!r}{suggestion(given, [choice.value for choice in choices])}"
        ) from exc


def one_input(kind: str, name: str, reads: str | Sequence[str]) -> str:
    if isinstance(reads, str):
        return reads
    raise DeclarationError(
        f"{kind} {name!r} reads {', '.join(reads)}: expected one input. Unite them in a stage that"
        " reads several"
    )


def _inputs(kind: str, name: str, reads: str | Sequence[str]) -> tuple[str, ...]:
    inputs = (reads,) if isinstance(reads, str) else tuple(reads)
    if not inputs or len(set(inputs)) != len(inputs):
        raise DeclarationError(
            f"{kind} {name!r} reads {', '.join(inputs) or 'nothing'}: expected one input or"
            " several, none twice"
        )
    return inputs


def source_step(
    name: str,
    source: AnySource,
    on_ack: Notice | None,
    on_fail: Notice | None,
    track: str | None,
    key: str | Sequence[str] = (),
) -> SourceStep:
    found = source_of(f"source {name!r}", source)
    columns = (key,) if isinstance(key, str) else tuple(key)
    if len(set(columns)) != len(columns):
        raise DeclarationError(f"source {name!r}: key names {', '.join(columns)}: none twice")
    return SourceStep(checked_name("source", name), found, on_ack, on_fail, track, columns)


def stage_step(
    function: "Callable[..., Any]", reads: str | Sequence[str], acks: str, emits: str
) -> StageStep:
    name = checked_name("stage", function.__name__)
    _one_of(name, "acks", acks, get_args(Acks))
    _one_of(name, "emits", emits, get_args(Emits))
    if acks == "on_read" and emits == "one":
        raise DeclarationError(
            f'stage {name!r}: emits="one" compares outputs with inputs, which acks="on_read" does'
            " not look at"
        )
    inputs, references = _parameters("stage", name, function, reads)
    return StageStep(name, function, inputs, acks, references, emits)  # type: ignore[arg-type]


def combine_step(
    function: "Callable[..., Any]", reads: str | Sequence[str], partial: bool
) -> CombineStep:
    name = checked_name("combine", function.__name__)
    inputs, references = _parameters("combine", name, function, reads)
    return CombineStep(name, function, inputs, references, partial)


def state_step(function: "Callable[..., Any]", reads: str | Sequence[str]) -> StateStep:
    name = checked_name("stateful", function.__name__)
    frames = ("the state so far", one_input("stateful", name, reads))
    references = _references("stateful", name, function, frames)
    return StateStep(name, frames[1:], function, references)


def hooks_step(name: str, hooks: StatefulStage, reads: str | Sequence[str]) -> StateStep:
    if not isinstance(hooks, StatefulStage):
        raise DeclarationError(
            f"stateful {name!r}: expected an object of a subclass of StatefulStage, found"
            f" {type(hooks).__name__}"
        )
    inputs = (one_input("stateful", name, reads),)
    return StateStep(checked_name("stateful", name), inputs, hooks=hooks)


def _parameters(
    kind: str, name: str, function: "Callable[..., Any]", reads: str | Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The inputs of a function of frames, and the references that it names."""
    inputs = _inputs(kind, name, reads)
    return inputs, _references(kind, name, function, inputs)


def _references(
    kind: str, name: str, function: "Callable[..., Any]", inputs: tuple[str, ...]
) -> tuple[str, ...]:
    """The references that a function of ``inputs``, a frame each, names."""
    parameters = inspect.signature(function).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    references = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    frames = len(inputs)
    if len(positional) != frames or len(positional) + len(references) != len(parameters):
        expected = "one positional parameter" if frames == 1 else f"{frames} positional parameters"
        raise DeclarationError(
            f"{kind} {name!r}: expected {expected}, a frame for each input ({', '.join(inputs)}),"
            f" and references as keyword-only ones; found ({', '.join(map(str, parameters))})"
        )
    return references


def warn_of_aggregates(step: StageStep) -> None:
    """Warn of a tracked stage whose rows depend on which others are there: a record lost before
    it leaves no trace in a total.
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
            " replayed alone, leaves in a total or a window cannot be tracked. Declare it with"
            " @pipeline.combine, or with whole=True",
            stacklevel=4,
        )


def unanchored(step: StageStep) -> StageStep:
    if step.acks != "on_emit" or step.emits != "any":
        raise DeclarationError(
            f"stage {step.name!r}: anchored=False acks what it reads, so acks and emits say nothing"
            " there"
        )
    return replace(step, anchored=False)


def whole(step: StageStep, unit: str | Sequence[str]) -> StageStep:
    columns = (unit,) if isinstance(unit, str) else tuple(unit)
    if len(set(columns)) != len(columns):
        raise DeclarationError(f"stage {step.name!r}: unit names {', '.join(columns)}: none twice")
    return replace(step, whole=True, unit=columns)


def record_step(
    function: "Callable[..., Any]",
    reads: str | Sequence[str],
    schema: "StructType | str",
    emits: str,
) -> StageStep:
    name = checked_name("stage", function.__name__)
    _one_of(name, "emits", emits, get_args(Emits))
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


def _one_of(stage: str, option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise DeclarationError(f"stage {stage!r}: {option}={value!r}{suggestion(value, known)}")
