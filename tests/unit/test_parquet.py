"""In which thread stored files are read, and how a file that cannot be read is reported."""

import errno
import io
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.errors import ConfigurationError, LostFileError, UnavailableError
from ledger.storage import parquet, stores

COLUMNS = [f"c{number}" for number in range(8)]


class ReadingThreads(io.FileIO):
    """A file that keeps which threads have read from it."""

    def __init__(self, path):
        super().__init__(path)
        self.threads = set()

    def read(self, size=-1):
        self.threads.add(threading.get_ident())
        return super().read(size)


@pytest.fixture
def watched_file(tmp_path):
    """A file of two row groups, opened."""
    path = tmp_path / "rows.parquet"
    table = pa.table({name: range(100) for name in COLUMNS})
    pq.write_table(table, path, row_group_size=50)
    with ReadingThreads(path) as stream:
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
def test_files_are_read_in_the_thread_that_asks(watched_file, ask, rows):
    """None of Arrow's threads still holds the file, which could abort a process at its end."""
    assert len(ask(parquet.opened(watched_file))) == rows
    assert watched_file.threads == {threading.get_ident()}


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


class Stored:
    """A storage with one file, whose bytes are read until it ``raises``."""

    def __init__(self, path):
        self._path = path
        self.raises = None

    def open(self, path):
        return _Failing(self._path, self)


class _Failing(io.FileIO):
    def __init__(self, path, storage):
        super().__init__(path)
        self._storage = storage

    def read(self, size=-1):
        if self._storage.raises:
            raise self._storage.raises
        return super().read(size)


@pytest.fixture
def storage(tmp_path, monkeypatch):
    """A storage with one file of 1,000 rows, whatever its path."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": range(1000)}), path)
    stored = Stored(path)
    monkeypatch.setattr(stores, "opened", stored.open)
    return stored


READS = {
    "read": lambda stored: parquet.read(stored, ["n"]),
    "read_row_group": lambda stored: parquet.read_row_group(stored, 0),
    "iter_batches": lambda stored: list(parquet.iter_batches(stored, 10, ["n"])),
}
RAISED = {
    "gone": (FileNotFoundError(errno.ENOENT, "gone"), LostFileError, "rows was changed or lost"),
    "a folder": (IsADirectoryError(errno.EISDIR, "a folder"), LostFileError, "a folder. Run the"),
    "no Parquet": (OSError("no magic"), LostFileError, "found: no magic"),
    "damaged": (pa.ArrowInvalid("two\nlines"), LostFileError, "found: two lines"),
    "refused": (PermissionError(errno.EACCES, "no"), ConfigurationError, "rows could not be read"),
    "away": (TimeoutError(errno.ETIMEDOUT, "away"), UnavailableError, "rows could not be read"),
    "no memory": (pa.ArrowMemoryError("malloc of size 9"), MemoryError, "malloc of size 9"),
}


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("way", [*READS, "open"])
def test_what_reading_a_file_raises(storage, way, raised):
    """Whichever way a stored file is read, one that is lost, that may not be read or whose storage
    does not answer is reported as that; that memory is short is not blamed on the file."""
    exc, kind, says = RAISED[raised]
    with pytest.raises(kind, match=says):  # noqa: PT012 - opening fails, too
        storage.raises = exc if way == "open" else None
        with parquet.stored_file("rows") as stored:
            storage.raises = exc
            READS[way](stored)


@pytest.mark.parametrize("raised", RAISED)
def test_what_a_caller_raises_is_not_blamed_on_the_file(storage, raised):
    """An error of the work that is done while a stored file is open stays as it is, between two
    batches of its rows, too."""
    exc = RAISED[raised][0]

    def work(rows):
        raise exc

    with pytest.raises(type(exc)) as caught, parquet.stored_file("rows") as stored:
        list(map(work, parquet.iter_batches(stored, 10, ["n"])))
    assert caught.value is exc
