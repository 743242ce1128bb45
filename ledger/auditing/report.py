"""The report of an audit."""

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.auditing import ids as record_ids
from ledger.auditing.data import (
    VERSION,
    graph_data,
    loss_data,
    output_data,
    remark_data,
    source_data,
)
from ledger.auditing.expected import ExpectedLoss, read_expected, write_expected
from ledger.auditing.graph import JobGraph
from ledger.auditing.html import save
from ledger.auditing.ids import Ids
from ledger.auditing.losses import (
    LOST,
    Loss,
    OutputResult,
    SourceResult,
    by_keys,
    matched,
)
from ledger.auditing.remarks import Remark
from ledger.auditing.sources import ID, Sources
from ledger.auditing.text import WIDTH, lines
from ledger.errors import InputError
from ledger.types.spark import quoted

MAX_EXAMPLES = 3  # records of a loss
# Reports with frames over their copies, which have to stay until Python ends.
_with_frames: list["AuditReport"] = []


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit: each source, and losses and remarks with the most records first.

    Remarks are about records that arrived. They are no losses.

    ``not_found``: expected losses that are none. ``notes``: what else was noticed, in sentences.
    ``failure``: how a script ended that did not end well; empty: it did.

    The copies of the inputs are removed with the report, or when Python ends once ``lost`` or
    ``lost_of`` has returned a frame over them.
    """

    results: Sequence[SourceResult]
    losses: Sequence[Loss]
    _sources: Sources | None
    outputs: Sequence[OutputResult] = ()
    remarks: Sequence[Remark] = ()
    title: str = ""
    graph: JobGraph = field(default_factory=JobGraph)
    not_found: Sequence[ExpectedLoss] = ()
    notes: Sequence[str] = ()
    failure: str = ""

    @property
    def lost(self) -> DataFrame:
        """The lost records that were neither dropped on purpose nor expected: their columns,
        ``source``, ``operation``, ``place`` and ``reason``; ``lost_source`` and so on if a source
        has such a column. A column that has several types in several sources is a string. A record
        that two operations lost has two rows.
        """
        return self._frame(self._loud())

    def lost_of(self, name: str) -> DataFrame:
        """Return the lost records of one source, as ``lost`` does. Raises InputError for an unknown
        source.
        """
        names = [result.source.name for result in self.results]
        if name not in names:
            raise InputError(f"no source {name!r}: expected one of {', '.join(names)}")
        return self._frame([loss for loss in self._loud() if loss.source.name == name])

    @property
    def lost_records(self) -> int:
        """The number of lost records that were neither dropped on purpose nor expected, of the
        sources of which it is known.
        """
        return sum(len(result.lost) for result in self.results if not result.unknown)

    def of_sources(self, names: Sequence[str]) -> "AuditReport":
        """Return the report on some of the sources; of all, if there is no name.

        Raises InputError if the job did not read one.
        """
        names_of_all = [result.source.name for result in self.results]
        for name in names:
            if name not in names_of_all:
                raise InputError(f"no source {name!r}: expected one of {', '.join(names_of_all)}")
        if not names:
            return self
        results = [result for result in self.results if result.source.name in names]
        losses = [loss for loss in self.losses if loss.source.name in names]
        remarks = [remark for remark in self.remarks if remark.source.name in names]
        graph = self.graph.of_sources(names)
        return replace(self, results=results, losses=losses, remarks=remarks, graph=graph)

    def _ids_frame(self, ids: Ids) -> DataFrame:
        assert self._sources is not None  # a report with losses has sources
        return self._sources.frame_of(ids)

    def _loud(self) -> list[Loss]:
        return [loss for loss in self.losses if loss.kind == LOST]

    def expecting(self, path: str | Path) -> "AuditReport":
        """Return the report with those losses marked as expected that a file of expected losses
        has.

        A loss with more records than its entry allows stays lost as a whole. Raises InputError for
        a file of another form.
        """
        noted, not_found = matched(self.losses, read_expected(path))
        losses = [noted(loss) for loss in self.losses]
        return replace(
            self,
            results=[result.with_losses(losses) for result in self.results],
            losses=losses,
            graph=self.graph.with_losses(noted),
            not_found=not_found,
        )

    def write_expected(self, path: str | Path) -> None:
        """Write all losses to a file of expected losses, with their numbers of records. Raises
        InputError if the file cannot be written.

        Entries of the file that the report was compared with keep their ``why``, and greater
        numbers. Entries that no loss has are left out.
        """
        entries = []
        for key, losses in by_keys(self.losses).items():
            records = len(record_ids.union(loss.ids for loss in losses))
            entry = losses[0].expected or ExpectedLoss(*key, at_most=records)
            entries.append(replace(entry, at_most=max(entry.at_most, records)))
        write_expected(path, entries)

    def as_dict(self, examples: int = MAX_EXAMPLES) -> dict[str, Any]:
        """Return the report as plain data, for JSON.

        ``examples``: the number of records of each loss that are shown, at most 3.
        """
        return {
            "version": VERSION,
            "title": self.title,
            "lost": self.lost_records,
            "sources": [source_data(result) for result in self.results],
            "losses": [
                loss_data(loss, self.examples(loss)[: max(examples, 0)]) for loss in self.losses
            ],
            "remarks": [
                remark_data(remark, self.examples(remark)[: max(examples, 0)])
                for remark in self.remarks
            ],
            "outputs": [output_data(output) for output in self.outputs],
            "notes": list(self.notes),
            "failure": self.failure,
            "not_found": [asdict(entry) for entry in self.not_found],
            "graph": graph_data(self.graph, self.losses),
        }

    def save_html(self, path: str | Path, examples: int = MAX_EXAMPLES) -> None:
        """Write the report to one HTML file, which loads nothing else. Raises InputError if the
        file cannot be written.

        ``examples``: as of ``as_dict``.
        """
        save(path, self.as_dict(examples))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, width: int | None = None) -> list[str]:
        """Return the report as text for a width; by default, that of the terminal, or 120."""
        if width is None:
            width = get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        return lines(self.as_dict(1), width)

    def examples(self, loss: Loss | Remark) -> list[dict[str, object]]:
        """Return the values of a loss's first records by column. The columns that the reason names
        come first.
        """
        words = set(re.findall(r"\w+", re.sub(r"'[^']*'", "", loss.text)))
        columns = sorted(enumerate(loss.source.columns), key=lambda pair: pair[1] not in words)
        values = [self._values.get(int(each)) for each in loss.ids[:MAX_EXAMPLES]]
        return [{name: row[at] for at, name in columns} for row in values if row is not None]

    @cached_property
    def _values(self) -> dict[int, tuple[object, ...]]:
        """Values of the records that are shown as examples, by their id."""
        wanted: dict[int, list[Loss | Remark]] = {}
        every: list[Loss | Remark] = [*self.losses, *self.remarks]
        for loss in every:
            wanted.setdefault(loss.source.number, []).append(loss)
        values = {}
        for losses in wanted.values():
            ids = record_ids.union(loss.ids[:MAX_EXAMPLES] for loss in losses)
            for record, *row in losses[0].source.rows(self._ids_frame(ids)).collect():
                values[int(record)] = tuple(row)
        return values

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
        rows = loss.source.rows(self._ids_frame(loss.ids)).drop(ID)
        columns = [
            F.col(quoted(name)).cast("string").alias(name)
            if name.lower() in as_text
            else F.col(quoted(name))
            for name in loss.source.columns
        ]
        named = {"source": loss.source.name, "operation": loss.operation}
        named |= {"place": loss.place, "reason": loss.text}
        own = [F.lit(value).alias(_free(name, taken)) for name, value in named.items()]
        return rows.select(*columns, *own)


def _free(name: str, taken: set[str]) -> str:
    """Return a name like ``name`` that is not in ``taken``."""
    while name in taken:
        name = f"lost_{name}"
    return name
