"""Batches whose ledger has spans of roots, made by hand."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ledger.deltas.kernel import Deltas
from ledger.deltas.root_files import RootFile, RootWriter, write_listing
from ledger.deltas.spans import RootRange, Spans
from tests.support.posting import Delta, signed

MOST_SPANS = (1 << 16, 4, 1)  # of sources of some ten records: one each, a few, one for all


def deltas_of(rows: Iterable[Delta]) -> Deltas:
    """The same, as the kernel has them."""
    columns = [
        (
            row.root,
            signed(row.acked ^ row.emitted),
            signed(row.acked),
            row.emitted_edges,
            row.acked_edges,
        )
        for row in rows
    ]
    return Deltas(*np.array(columns, np.int64).reshape(-1, 5).T)


def by_span(ranges: Sequence[RootRange], rows: Iterable[Delta]) -> list[Delta]:
    """What a run posts of the deltas of its roots: one for each span."""
    whole = Spans(ranges).to_spans(deltas_of(rows))
    columns = (whole.root, whole.acked, whole.delta ^ whole.acked)
    edges = (whole.acked_edges, whole.emitted_edges)
    return [
        Delta(*values)
        for values in zip(*(column.tolist() for column in (*columns, *edges)), strict=True)
    ]


class RootFolder:
    """The root files of a run, as a fold writes them: a file for each part, at last the listing."""

    def __init__(self, path: str):
        self.path = path
        self.files: list[RootFile] = []
        self.has_ended = False
        Path(path).mkdir(parents=True, exist_ok=True)

    def add(self, deltas: Deltas) -> None:
        """Write a file of deltas by root."""
        with RootWriter(f"{self.path}/part-{len(self.files)}.parquet") as writer:
            writer.add(deltas)
            file = writer.close()
        if file is not None:
            self.files.append(file)

    def end(self) -> None:
        """Say which files count, once."""
        if not self.has_ended:
            write_listing(self.path, self.files)
            self.has_ended = True
