"""Marks that a stage returns beside its output: records dropped on purpose, acked, or failed.

A stage of frames returns marks beside its output; a record stage yields ``dropped(reason)`` or
raises ``FailedRecord``.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

from ledger.core.text import as_reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FailedRecord(Exception):  # noqa: N818  an outcome of a record, no error of the program
    """Raise this in a record stage to fail the record with this reason. Its outputs are
    discarded.
    """


@dataclass(frozen=True)
class Drop:
    """Result of a record stage: ack the record without an output, for this reason."""

    reason: str


@dataclass(frozen=True)
class Mark:
    """Rows of ``frame`` that are marked as dropped, acked or failed, with a reason.

    ``is_own``: whether the reason is the library's, and so has no value of a record.
    """

    kind: Literal["dropped", "acked", "failed"]
    frame: "DataFrame"
    reason: str
    is_own: bool = False


@overload
def dropped(what: str) -> Drop: ...


@overload
def dropped(what: "DataFrame", reason: str) -> Mark: ...


def dropped(what: "DataFrame | str", reason: str | None = None) -> Drop | Mark:
    """Mark rows as intentionally dropped: they are acked, and counted by stage and reason.

    ``dropped(frame, reason)`` is returned beside a stage's output, ``dropped(reason)`` is
    yielded by a record stage. Keep reasons few: they are codes, not messages.
    """
    if isinstance(what, str):
        if reason is not None:
            raise TypeError(f"dropped({what!r}, {reason!r}): expected a frame and a reason")
        return Drop(_require_reason("dropped", what))  # cut once no value of the record is in it
    return Mark("dropped", what, as_reason(_require_reason("dropped", reason)))


def acked(frame: "DataFrame") -> Mark:
    """Mark inputs as processed; returned beside the output of a stage with ``acks="explicit"``."""
    return Mark("acked", frame, "")


def failed(frame: "DataFrame", reason: str) -> Mark:
    """Mark inputs as failed with ``reason``; returned beside a stage's output."""
    return Mark("failed", frame, as_reason(_require_reason("failed", reason)))


def _require_reason(what: str, reason: str | None) -> str:
    if not isinstance(reason, str) or not reason:
        raise TypeError(f"{what}(...): expected a reason, found {reason!r}")
    return reason
