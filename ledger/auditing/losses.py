"""Losses of an audit, and what they mean for each source."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ledger.auditing.ids import Ids
from ledger.auditing.sources import AuditSource

NOT_REPEATABLE = "may differ when computed again"


@dataclass(frozen=True)
class Loss:
    """Records of one source that one operation lost for one reason.

    Attributes:
        is_intended: no row of these records is expected.
        note: why no record of the source is expected to arrive; empty: each is expected.
        is_repeatable: the operation loses the same records each time it is computed.
        ids: the ids of the records.
        outputs: the outputs that the records did not reach.
        has_arrived: the records reached another output.
    """

    source: AuditSource
    operation: str
    place: str
    reason: str
    is_intended: bool
    ids: Ids
    note: str = ""
    is_repeatable: bool = True
    outputs: tuple[str, ...] = ()
    has_arrived: bool = False

    @property
    def records(self) -> int:
        """The number of records."""
        return len(self.ids)

    @property
    def text(self) -> str:
        """The reason, and whether it may be another one the next time."""
        return self.reason if self.is_repeatable else f"{self.reason} ({NOT_REPEATABLE})"


@dataclass(frozen=True)
class SourceResult:
    """The records of a source that are lost and those that were dropped on purpose. All others
    arrived.

    Attributes:
        unplaced: lost records of which no operation is known.
        note: why no record of the source is expected to arrive; empty: each is expected.
        unknown: why it is not known which records have arrived; empty: it is known.
    """

    source: AuditSource
    lost: Ids
    intended: Ids
    unplaced: Ids
    note: str = ""
    unknown: str = ""

    @classmethod
    def of(
        cls,
        source: AuditSource,
        missing: Ids,
        losses: Iterable["Loss"],
        note: str,
        unknown: str = "",
    ) -> "SourceResult":
        """Sort the missing records of a source by the losses that name them."""
        own = [loss for loss in losses if loss.source is source]
        loud = union_ids(loss.ids for loss in own if not loss.is_intended)
        intended = np.setdiff1d(union_ids(loss.ids for loss in own if loss.is_intended), loud)
        if note:
            return cls(source, loud[:0], missing, loud[:0], note, unknown)
        unplaced = np.setdiff1d(missing, union_ids([loud, intended]))
        return cls(source, union_ids([loud, unplaced]), intended, unplaced, note, unknown)

    @property
    def arrived(self) -> int:
        """The number of records that have a row in the output."""
        return self.source.records - len(self.lost) - len(self.intended)


@dataclass(frozen=True)
class OutputResult:
    """An output of a job. ``why``: the reason why its rows are not followed; empty: they are.
    ``is_final``: no other output reads it.
    """

    name: str
    place: str
    why: str
    is_final: bool


def union_ids(ids: Iterable[Ids]) -> Ids:
    """Return the distinct ids of several arrays."""
    arrays = list(ids)
    return np.unique(np.concatenate(arrays)) if arrays else np.empty(0, dtype=np.int64)
