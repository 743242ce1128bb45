"""Input rows of a run that no row of its output comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ledger.deltas.portions import Output, Reading
from ledger.deltas.rows import Longs


@dataclass(frozen=True)
class UnarrivedRows:
    """Tracked rows of one input that no output row comes from: an entry for each root of a row.

    ``position``: of the row in the input, ascending. ``input``: the number of the input.
    """

    input: int
    root: Longs
    position: Longs

    def among(self, positions: Longs) -> "UnarrivedRows":
        """Return those at some positions."""
        places = np.isin(self.position, positions)
        return UnarrivedRows(self.input, self.root[places], self.position[places])


def unarrived_rows(readings: Sequence[Reading], output: Output) -> Iterator[UnarrivedRows]:
    """Yield the rows of each input that no row of the output comes from, marked rows included.

    ``readings``: the inputs of the run, in their order. In memory are a byte for each row of an
    input, and the rows that are found.
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
