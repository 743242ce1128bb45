"""Steps as the ledger keeps them with each batch, also after their pipeline changes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class DeclaredStep:
    """A step as its pipeline declared it when a batch was opened. The table ``declared_step``
    documents the fields that are columns.

    ``joins``: whether a stage has several inputs, or references.
    ``layout``: how the raw text of a source is split into fields.
    ``awaits``: the sources that a step after the settlement waits for, until none of their records
    is failed. None: all sources.
    """

    name: str
    kind: str
    reads: tuple[str, ...] = ()
    acks: str | None = None
    joins: bool = False
    merges: bool = False
    after: bool = False
    stateful: bool = False
    partial: bool = False
    notice: bool = False
    incremental: bool = False
    rereads: bool = False
    in_place: bool = False
    dedup_window: int | None = None
    key: tuple[str, ...] | None = None
    awaits: tuple[str, ...] | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, declaration: Mapping[str, Any]) -> Self:
        """Decode a step from the ledger's JSON."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in declaration.items()
        }
        return cls(**values)

    def as_json(self) -> dict[str, Any]:
        """Encode the step as the ledger's JSON, without fields that are None, False or empty."""
        values = vars(self).items()
        return {k: v for k, v in values if v is not None and v is not False and v != {}}


def whole_stages(topology: Iterable[DeclaredStep]) -> set[str]:
    """Return the whole stages of a batch. A stage that reads another whole stage is left out,
    because the batch is replayed as a whole anyway.
    """
    merging = {step.name: step for step in topology if step.merges}
    return {name for name, step in merging.items() if merging.keys().isdisjoint(step.reads)}
