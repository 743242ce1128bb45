"""The report of an audit, as data and as text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.auditing.losses import Loss, OutputResult, SourceResult
from ledger.auditing.remarks import IGNORED, MERGED, SEVERAL_ROWS, Remark
from ledger.auditing.sources import ID, Sources
from ledger.errors import InputError

MAX_EXAMPLE = 90  # characters
_REMARKS = {
    SEVERAL_ROWS: "SEVERAL ROWS FROM ONE RECORD: keys of the other side are doubled",
    MERGED: "MERGED: the kept row of the key has other values",
    IGNORED: "IGNORED: an aggregate skipped these records",
}
# Reports with frames over their copies, which have to stay until Python ends.
_with_frames: list["AuditReport"] = []


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit: each source, and losses and remarks with the most records first.

    Remarks are about records that arrived. They are no losses.

    The copies of the inputs are removed with the report, or when Python ends once ``lost`` or
    ``lost_of`` has returned a frame over them.
    """

    results: Sequence[SourceResult]
    losses: Sequence[Loss]
    _sources: Sources
    outputs: Sequence[OutputResult] = ()
    remarks: Sequence[Remark] = ()

    @property
    def lost(self) -> DataFrame:
        """The lost records that were not dropped on purpose: their columns, ``source``,
        ``operation``, ``place`` and ``reason``; ``lost_source`` and so on if a source has such a
        column. A column that has several types in several sources is a string. A record that two
        operations lost has two rows.
        """
        return self._frame(self._loud())

    def lost_of(self, name: str) -> DataFrame:
        """Return the lost records of one source, as ``lost`` does."""
        names = [result.source.name for result in self.results]
        if name not in names:
            raise InputError(f"no source {name!r}: expected one of {', '.join(names)}")
        return self._frame([loss for loss in self._loud() if loss.source.name == name])

    @property
    def lost_records(self) -> int:
        """The number of records that are lost and were not dropped on purpose."""
        return sum(len(result.lost) for result in self.results)

    def _loud(self) -> list[Loss]:
        return [loss for loss in self.losses if not loss.is_intended and not loss.has_arrived]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the report as text for a terminal."""
        rows: list[tuple[str, ...]] = [("source", "in", "arrived", "lost", "intended", "")]
        for result in self.results:
            name, counts = result.source.name, f"{result.source.records:,}"
            if result.unknown:
                rows.append((name, counts, "?", "?", "?", result.unknown))
                continue
            others = (result.arrived, len(result.lost), len(result.intended))
            rows.append((name, counts, *(f"{count:,}" for count in others), result.note))
        lines = _aligned(rows, right={1, 2, 3, 4})
        lost = [loss for loss in self.losses if not loss.has_arrived]
        for title, losses in (
            ("LOST: these records reach no output", self._loud()),
            (
                "INTENDED: dropped on purpose",
                [loss for loss in lost if loss.is_intended and not loss.note],
            ),
            ("NOT EXPECTED: records that need no row of their own", [x for x in lost if x.note]),
            (
                "BY OUTPUT: these records reach another output",
                [loss for loss in self.losses if loss.has_arrived and not loss.is_intended],
            ),
        ):
            if losses:
                lines += ["", title, *_aligned([self._line(loss) for loss in losses], right={3})]
        for kind, title in _REMARKS.items():
            rows = [self._line(remark) for remark in self.remarks if remark.kind == kind]
            if rows:
                lines += ["", title, *_aligned(rows, right={3})]
        for result in self.results:
            if len(result.unplaced):
                lines += ["", self._unplaced(result)]
        return lines

    def _unplaced(self, result: SourceResult) -> str:
        return (
            f"{len(result.unplaced):,} lost records of {result.source.name} arrived when the "
            "result was computed again: it depends on random values, or on a limit without an order"
        )

    def _line(self, loss: Loss | Remark) -> tuple[str, ...]:
        return (
            loss.operation,
            loss.place,
            loss.text,
            f"{loss.records:,}",
            f"{loss.source.name}: {self.example(loss)}",
        )

    def example(self, loss: Loss | Remark) -> str:
        """Return the first of the records as text, with the columns of the reason first."""
        wanted = self._sources.frame_of(loss.ids[:1])
        row = loss.source.rows(wanted).drop(ID).first()
        values = list(zip(loss.source.columns, row or (), strict=False))
        words = set(re.findall(r"\w+", re.sub(r"'[^']*'", "", loss.text)))
        values.sort(key=lambda pair: pair[0] not in words)
        text = ", ".join(f"{name}={'NULL' if v is None else v}" for name, v in values)
        return text if len(text) <= MAX_EXAMPLE else f"{text[: MAX_EXAMPLE - 3]}..."

    def _frame(self, losses: Sequence[Loss]) -> DataFrame:
        if not losses:
            raise InputError("no record is lost, so there is no frame of lost records")
        sources = {loss.source.number: loss.source for loss in losses}
        types: dict[str, set[str]] = {}
        for source in sources.values():
            kinds = [field.dataType.simpleString() for field in source.copy.schema]
            for column, kind in zip(source.columns, kinds, strict=False):
                types.setdefault(column.lower(), set()).add(kind)
        as_text = {column for column, kinds in types.items() if len(kinds) > 1}
        frames = [self._rows(loss, set(types), as_text) for loss in losses]
        _with_frames.append(self)
        return reduce(lambda rows, more: rows.unionByName(more, allowMissingColumns=True), frames)

    def _rows(self, loss: Loss, taken: set[str], as_text: set[str]) -> DataFrame:
        rows = loss.source.rows(self._sources.frame_of(loss.ids)).drop(ID)
        columns = [
            F.col(f"`{name.replace('`', '``')}`").cast("string").alias(name)
            if name.lower() in as_text
            else F.col(f"`{name.replace('`', '``')}`")
            for name in loss.source.columns
        ]
        named = {"source": loss.source.name, "operation": loss.operation}
        named |= {"place": loss.place, "reason": loss.text}
        own = [F.lit(value).alias(_free(name, taken)) for name, value in named.items()]
        return rows.select(*columns, *own)


def _free(name: str, taken: set[str]) -> str:
    """A name that no column has."""
    while name in taken:
        name = f"lost_{name}"
    return name


def _aligned(rows: Sequence[Sequence[str]], right: set[int]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
