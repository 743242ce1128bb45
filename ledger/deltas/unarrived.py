"""Input rows of a run that no row of its output comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ledger.deltas.portions import Output, Reading
from ledger.deltas.rows import Longs


@dataclass(frozen=True)
class UnarrivedRows:
    """Tracked input rows that no output row comes from: an entry for each root of such a row.

    ``position``: the row's position in its input, ascending.
    ``input``: the number of the input.
    """

    input: int
    root: Longs
    position: Longs

    def among(self, positions: Longs) -> "UnarrivedRows":
        """Return the entries whose position is one of ``positions``."""
        places = np.isin(self.position, positions)
        return UnarrivedRows(self.input, self.root[places], self.position[places])

    def without(self, positions: Longs) -> "UnarrivedRows":
        """Return the entries whose position is none of ``positions``."""
        places = ~np.isin(self.position, positions)
        return UnarrivedRows(self.input, self.root[places], self.position[places])


def unarrived_rows(readings: Sequence[Reading], output: Output) -> Iterator[UnarrivedRows]:
    """Yield, for each input, the rows that no output row comes from. Rows of ``output`` that are
    marked as failed or dropped count as output.

    ``readings``: the inputs of the run, in their order.

    Memory holds one byte for each input row, and the rows that are found.
    """
    arrived = [np.zeros(sum(file.rows for file in each.files), np.bool_) for each in readings]
    for file in output.files:
        for part in output.parts(file):
            rows = part.rows
            if rows.input is None:
                arrived[0][rows.parent] = True
            else:
                for number, flags in enumerate(arrived):
                    flags[rows.parent[rows.input == number]] = True
    for number, (reading, flags) in enumerate(zip(readings, arrived, strict=True)):
        roots, positions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for file in reading.files:
            for part in reading.parts(file):
                missing = ~flags[part.rows.position]
                roots.append(part.rows.root[missing])
                positions.append(part.rows.position[missing])
        yield UnarrivedRows(number, np.concatenate(roots), np.concatenate(positions))
