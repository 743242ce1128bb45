"""Files of a run with what it adds to each root; the ledger has only the sums of each span.

The fold writes them before the run commits. They are read where a span is not balanced or one of
its roots failed, and are not needed once the batch is decided.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from ledger.deltas.kernel import Deltas
from ledger.deltas.stored import longs_of
from ledger.deltas.table_writer import TableWriter
from ledger.errors import LostFileError
from ledger.storage import stores
from ledger.storage.folders import RUN_AGAIN
from ledger.storage.parquet import read_row_group, stored_file

LISTING = "files.json"  # of a run's files, those that count

_SCHEMA = pa.schema(
    (name, pa.int64()) for name in ("root", "emitted", "acked", "emitted_edges", "acked_edges")
)


@dataclass(frozen=True)
class RootFile:
    """One file of deltas by root. ``first_root``, ``last_root``: the least and the greatest root in
    it.
    """

    path: str
    rows: int
    first_root: int
    last_root: int


class RootWriter(TableWriter):
    """Writes a file of deltas, part by part. Different parts may have deltas of the same root."""

    def __init__(self, path: str):
        super().__init__(
            path,
            _SCHEMA,
            use_dictionary=["emitted_edges", "acked_edges"],
            column_encoding={
                "root": "DELTA_BINARY_PACKED", "emitted": "PLAIN", "acked": "PLAIN"
            },
        )  # fmt: skip
        self._rows = 0
        self._least: list[int] = []
        self._greatest: list[int] = []

    def add(self, deltas: Deltas) -> None:
        """Write the deltas of one fold."""
        if not len(deltas.root):
            return
        emitted, edges = deltas.delta ^ deltas.acked, (deltas.emitted_edges, deltas.acked_edges)
        self.write([deltas.root, emitted, deltas.acked, *edges])
        self._rows += len(deltas.root)
        self._least.append(int(deltas.root.min()))
        self._greatest.append(int(deltas.root.max()))

    def close(self) -> RootFile | None:
        """Finish the file. Return None, and leave no file, if no delta was added."""
        path = self.finish()
        if path is None:
            return None
        return RootFile(path, self._rows, min(self._least), max(self._greatest))


def write_listing(folder: str, files: Sequence[RootFile]) -> None:
    """Record which files of a run's folder count. Files that an earlier fold of the run left do not
    count.
    """
    stores.write(f"{folder}/{LISTING}", json.dumps([asdict(file) for file in files]).encode())


def read_listing(folder: str, advice: str = RUN_AGAIN) -> list[RootFile]:
    """Return the files of a run that count. Raises LostFileError, with ``advice``, if the listing
    is gone.
    """
    try:
        return [RootFile(**file) for file in json.loads(stores.read(f"{folder}/{LISTING}"))]
    except FileNotFoundError as exc:
        raise LostFileError(f"file {folder}/{LISTING} is gone. {advice}") from exc


def read_roots(
    files: Sequence[RootFile],
    wanted: Callable[[int, int], bool] = lambda least, greatest: True,
    advice: str = RUN_AGAIN,
) -> Iterator[Deltas]:
    """Yield the deltas of a run by root, part by part. ``wanted``: called with the least and the
    greatest root of a part, says whether to read it.

    Raises LostFileError, with ``advice``, if a file is gone or damaged.
    """
    for file in files:
        if not wanted(file.first_root, file.last_root):
            continue
        with stored_file(file.path, advice) as stored:
            for group in range(stored.metadata.num_row_groups):
                statistics = stored.metadata.row_group(group).column(0).statistics
                if wanted(int(statistics.min), int(statistics.max)):
                    yield _deltas(read_row_group(stored, group))


def _deltas(table: pa.Table) -> Deltas:
    root, emitted, acked, emitted_edges, acked_edges = map(longs_of, table.select(_SCHEMA.names))
    return Deltas(root, emitted ^ acked, acked, emitted_edges, acked_edges)
