"""In which thread stored files are read."""

import io
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.errors import LostFileError
from ledger.storage import parquet

COLUMNS = [f"c{number}" for number in range(8)]


class Told(io.FileIO):
    """A file that keeps which threads have read from it."""

    def __init__(self, path):
        super().__init__(path)
        self.threads = set()

    def read(self, size=-1):
        self.threads.add(threading.get_ident())
        return super().read(size)


@pytest.fixture
def told(tmp_path):
    """A file of two row groups, opened."""
    path = tmp_path / "rows.parquet"
    table = pa.table({name: range(100) for name in COLUMNS})
    pq.write_table(table, path, row_group_size=50)
    with Told(path) as stream:
        yield stream


@pytest.mark.parametrize(
    ("ask", "rows"),
    [
        (lambda stored: parquet.read(stored, COLUMNS), 100),
        (lambda stored: parquet.read_row_group(stored, 1), 50),
        (lambda stored: parquet.read_row_group(stored, 1, COLUMNS[:3]), 50),
        (lambda stored: pa.Table.from_batches(parquet.iter_batches(stored, 30, COLUMNS)), 100),
    ],
)
def test_files_are_read_in_the_thread_that_asks(told, ask, rows):
    """None of Arrow's threads is left to hold the file, which could abort a process at its end."""
    assert len(ask(parquet.opened(told))) == rows
    assert told.threads == {threading.get_ident()}


@pytest.mark.parametrize("place", ["page", "footer", "end"])
def test_a_file_that_was_changed_is_named(tmp_path, place):
    """Bytes of a stored file that were changed since it was written, and a file that is gone, are
    an error that names the file and says what to do."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": range(1000)}), path, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little")
    data[{"page": 2000, "footer": len(data) - 4 - footer, "end": len(data) - 2}[place]] ^= 0xFF
    path.write_bytes(data)
    says = rf"file {path} was changed or lost since it was written: .*Run the step"
    with pytest.raises(LostFileError, match=says), parquet.stored_file(str(path)) as stored:
        parquet.read(stored, ["n"])
    path.unlink()
    with pytest.raises(LostFileError, match=says), parquet.stored_file(str(path)):
        pass
