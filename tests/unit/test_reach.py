"""Who reaches a folder, and with which modes ours are made."""

import os
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from ledger.errors import ConfigurationError
from ledger.sinks.delta.files import TableFile, TableFolder
from ledger.spark.frames.staging import _close_staging
from ledger.storage.folders import make_private, private_output
from ledger.store import embedded
from ledger.store.embedded import Account, first_closed

STRANGER = Account("stranger", 2**20, frozenset({2**20}))


def mode(path):
    """The permission bits of a path."""
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def open_folder():
    """A folder that every user can pass."""
    with tempfile.TemporaryDirectory(prefix="ackledger-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize(
    ("bits", "closed"),
    [(0o755, False), (0o711, False), (0o700, True), (0o770, True), (0o744, True)],
)
def test_the_first_closed_folder_is_found(open_folder, bits, closed):
    """The outermost folder that another user cannot pass is named, by its mode; later ones are
    not asked.
    """
    (open_folder / "a" / "b").mkdir(parents=True)
    (open_folder / "a").chmod(bits)
    result = first_closed(open_folder / "a" / "b" / "not-yet", STRANGER)
    assert result == ((open_folder / "a").resolve() if closed else None)


def test_a_link_is_passed_from_both_sides(open_folder):
    """A link does not open the closed folder that it lies in, nor the one that it leads to."""
    for name in ("open", "closed"):
        (open_folder / name).mkdir()
        (open_folder / name / "file").touch(0o755)
    (open_folder / "closed" / "link").symlink_to(open_folder / "open")
    (open_folder / "open" / "link").symlink_to(open_folder / "closed")
    (open_folder / "closed").chmod(0o700)
    closed = (open_folder / "closed").resolve()
    for link in ("closed/link", "open/link"):
        result = first_closed(open_folder / link / "file", STRANGER)
        assert result is not None
        assert result.resolve() == closed
    assert first_closed(open_folder / "open" / "file", STRANGER) is None


def test_groups_and_owners_pass(open_folder):
    """A group of the user passes by the group's bit, the owner by its own, whatever others may."""
    open_folder.chmod(0o710)
    status = open_folder.stat()
    assert first_closed(open_folder, Account("one", 2**20, {status.st_gid})) is None
    assert first_closed(open_folder, Account("own", status.st_uid, set())) is None
    assert first_closed(open_folder, STRANGER) == open_folder.resolve()


def test_only_new_folders_are_made_private(open_folder):
    """What is missing is made for its user alone; what is there keeps its mode."""
    (open_folder / "mine").mkdir()
    (open_folder / "mine").chmod(0o755)
    make_private(open_folder / "mine" / "new" / "deep")
    make_private(open_folder / "mine" / "home", group_may_pass=True)
    modes = [
        mode(open_folder / name) for name in ("mine", "mine/new", "mine/new/deep", "mine/home")
    ]
    assert modes == [0o755, 0o700, 0o700, 0o710]


def test_what_a_run_writes_is_private(open_folder):
    """Files and folders that a run wrote, however it made them, are for their user alone
    afterwards.
    """
    folder = open_folder / "storage" / "flights" / "parse" / "batch=1" / "run=2"
    with private_output(str(folder)):
        assert mode(open_folder / "storage" / "flights") == 0o700
        folder.mkdir(parents=True, mode=0o777)
        (folder / "part.parquet").write_text("")
        (folder / "part.parquet").chmod(0o644)
    places = list((open_folder / "storage").rglob("*"))
    assert {mode(path) for path in places if path.is_dir()} == {0o700}
    assert {mode(path) for path in places if path.is_file()} == {0o600}
    assert mode(open_folder) == 0o755


def test_a_shared_storage_stays_its_groups(open_folder):
    """Below a folder that a group shares, what a run makes and what it wrote is for that group, and
    for no other user.
    """
    storage = open_folder / "storage"
    storage.mkdir()
    storage.chmod(0o2770)
    folder = storage / "flights" / "parse" / "batch=1" / "run=2"
    with private_output(str(folder)):
        assert mode(storage / "flights") == 0o2770
        folder.mkdir(parents=True, mode=0o777)
        (folder / "part.parquet").write_text("")
    (storage / "out").mkdir()
    (storage / "out").chmod(0o2775)  # as a umask of 002 makes it
    _close_staging(storage / "out" / "_staging" / "batch=1" / "run=2")
    places = list((storage / "flights").rglob("*"))
    assert {mode(path) for path in places if path.is_dir()} == {0o2770}
    assert {mode(path) for path in places if path.is_file()} == {0o660}
    assert mode(storage / "out" / "_staging") == 0o2770
    assert {path.stat().st_gid for path in storage.rglob("*")} == {storage.stat().st_gid}


@pytest.mark.parametrize("root", [0o755, 0o2755, 0o2775, 0o2770])
def test_published_files_of_a_table_are_opened(open_folder, root):
    """A user who may read a Delta table may read what was staged in its folder, once it is
    published: also where a group shares it.
    """
    table = open_folder / "table"
    table.mkdir()
    table.chmod(root)
    own = TableFolder(str(table), ())
    make_private(Path(own.staging(1, 2)))
    assert mode(table / "_ackledger") & 0o007 == 0
    own.let_read([TableFile("_ackledger/batch-1/run-2/part.parquet", 1, 1, {})])
    assert {mode(path) for path in table.rglob("*")} == {root}


@pytest.mark.parametrize("below", ["run=2", "kept-2-1f"])
def test_what_is_staged_is_private(open_folder, below):
    """The folder in which a ParquetSink stages is closed when it is made, also where files without
    withheld rows are the first in it.
    """
    _close_staging(open_folder / "out" / "_staging" / "batch=1" / below)
    assert mode(open_folder / "out" / "_staging") == 0o700
    assert mode(open_folder) == 0o755


@pytest.fixture
def by_root(monkeypatch, open_folder):
    """A process of root's, whose server would be a stranger's, and the wheel that it would use."""
    programs = open_folder / "programs"
    programs.mkdir(mode=0o755)
    (programs / "postgres").touch(0o755)

    class Wheel:
        """What the server's module has of interest."""

        POSTGRES_VERSIONS: ClassVar = {18: programs}
        TARGET_POSTGRES_VERSION = 18
        ensure_prefix_permissions = ensure_folder_permissions = os.chmod

        @staticmethod
        def pgdata_version(folder):
            """No server has made the folder."""

        @staticmethod
        def get_server(folder, **options):
            """A handle that only knows its folder."""
            return SimpleNamespace(pgdata=folder)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getegid", os.getgid)
    monkeypatch.setattr(embedded, "account_of_server", lambda: STRANGER)
    monkeypatch.setattr(embedded, "import_module", lambda _name: Wheel)
    return Wheel


def test_root_changes_no_permission_of_others(by_root, open_folder):
    """By root the wheel's two functions that open folders to everybody do nothing."""
    home = open_folder / "home"
    home.mkdir(mode=0o711)
    with embedded._server(home) as server:
        assert server.pgdata == home / "postgres"
        for name in ("ensure_prefix_permissions", "ensure_folder_permissions"):
            getattr(by_root, name)(home, 0o777)
    assert (mode(open_folder), mode(home), mode(home / "postgres")) == (0o755, 0o711, 0o700)


def test_root_needs_a_way_for_the_server(by_root, open_folder):
    """Where the server's user cannot pass to its data, the error says to root which folder, and
    what to do; no folder for the data is made.
    """
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    message = r"home is closed to it: choose an ACKLEDGER_HOME that user stranger can reach"
    with pytest.raises(ConfigurationError, match=message), embedded._server(home):
        raise AssertionError("it was let through")
    assert not embedded.reachable(home)
    assert not (home / "postgres").exists()
    assert mode(home) == 0o700


def test_another_user_is_asked_nothing(by_root, open_folder, monkeypatch):
    """A server that its own user starts needs no way for another, and the wheel stays as it is."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    open_folder.chmod(0o700)
    with embedded._server(open_folder / "home"):
        assert by_root.ensure_prefix_permissions is os.chmod
