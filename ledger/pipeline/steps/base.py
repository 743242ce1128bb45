"""Parts that the declarations of all kinds of steps have in common."""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ledger.errors import DeclarationError, suggestion

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PARAMS = "params"  # the parameter of a function that gets those of the run
MOST_LETTERS = 63  # of a name
_NAME = re.compile(rf"[a-z][a-z0-9_]{{0,{MOST_LETTERS - 1}}}")


class Step:
    """A step of a pipeline. Each kind of step is a frozen dataclass that overrides what differs."""

    kind: ClassVar[str]
    """Its name in the ledger."""
    in_words: ClassVar[str]
    """With its article, for a message."""
    files: ClassVar[str]
    """What ``ackledger gc`` calls the files that its runs wrote."""

    is_source: ClassVar[bool] = False
    """Whether it reads records from outside the pipeline."""
    is_published: ClassVar[bool] = False
    """Whether its rows are published, and no step reads them."""
    ends_tracking: ClassVar[bool] = False
    """Whether it reads what is acked, once its batch is settled."""
    is_state: ClassVar[bool] = False
    """Whether it runs in the order of the batches."""
    reads_family: ClassVar[bool] = False
    """Whether it reads all batches of a family, instead of the committed runs of its own."""

    references: tuple[str, ...] = ()

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """Unique in the pipeline."""

        @property
        def inputs(self) -> tuple[str, ...]:
            """The steps that it reads."""

    @property
    def columns(self) -> "StructType | str | None":
        """Declared columns of the output; None: the step's function decides."""
        return None

    @property
    def keeps_anchor(self) -> bool:
        """Whether the output is tracked if the input is."""
        return not self.ends_tracking

    @property
    def carries(self) -> bool:
        """Whether the library adds the anchors to the frame that the step's function returns."""
        return False

    @property
    def needs_anchor(self) -> bool:
        """Whether all rows that the step reads must be tracked."""
        return self.ends_tracking

    @property
    def is_kept_elsewhere(self) -> bool:
        """Whether users get the result elsewhere, without a sink."""
        return self.is_published

    def described(self) -> dict[str, Any]:
        """Return the fields of ``DeclaredStep`` that only this kind of step has."""
        return {}


def checked_name(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{kind} name {name!r}: expected a lower-case letter, then letters, digits or '_'"
        )
    return name


def check_option(stage: str, option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DeclarationError(f"stage {stage!r}: {option}={value!r}{suggestion(value, choices)}")


def one_input(kind: str, name: str, reads: str | Sequence[str]) -> str:
    if isinstance(reads, str):
        return reads
    raise DeclarationError(
        f"{kind} {name!r} reads {', '.join(reads)}: expected one input. Unite them in a stage that"
        " reads several"
    )


def named_once(what: str, names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns of an option. Raises DeclarationError if a column is named twice."""
    columns = (names,) if isinstance(names, str) else tuple(names)
    if len(set(columns)) != len(columns):
        raise DeclarationError(f"{what} names {', '.join(columns)}: none twice")
    return columns


def parameters(
    kind: str, name: str, function: "Callable[..., Any]", reads: str | Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the inputs of a function of frames, and the references that its parameters name."""
    inputs = (reads,) if isinstance(reads, str) else tuple(reads)
    if not inputs or len(set(inputs)) != len(inputs):
        raise DeclarationError(
            f"{kind} {name!r} reads {', '.join(inputs) or 'nothing'}: expected one input or"
            " several, none twice"
        )
    return inputs, named_references(kind, name, function, inputs)


def named_references(
    kind: str, name: str, function: "Callable[..., Any]", inputs: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the references that a function names as keyword-only parameters, without ``params``.
    The function takes one positional frame for each of ``inputs``.
    """
    declared = inspect.signature(function).parameters.values()
    positional = [p for p in declared if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    references = tuple(p.name for p in declared if p.kind is p.KEYWORD_ONLY)
    frames = len(inputs)
    if len(positional) != frames or len(positional) + len(references) != len(declared):
        expected = "one positional parameter" if frames == 1 else f"{frames} positional parameters"
        raise DeclarationError(
            f"{kind} {name!r}: expected {expected}, a frame for each input ({', '.join(inputs)}),"
            f" and references, or {PARAMS}, as keyword-only ones; found"
            f" ({', '.join(map(str, declared))})"
        )
    return tuple(reference for reference in references if reference != PARAMS)
