"""Users of this machine that stand for machines of their own: each runs its own processes."""

import grp
import os
import pwd
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

GROUP = "ackledger-spark"  # to which the storage belongs
UMASK = 0o002  # what one writes the group may remove
STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Account:
    """A user by ``name``, or this process's own; ``folder``: what it has for itself."""

    name: str | None
    folder: Path

    def own(self, path: Path) -> None:
        """Make a path this user's, with all that is in it."""
        if self.name is not None:
            entry = pwd.getpwnam(self.name)
            for place in (path, *path.rglob("*")):
                os.chown(place, entry.pw_uid, entry.pw_gid, follow_symlinks=False)

    @property
    def prefix(self) -> list[str]:
        """What a command begins with that is to be run as this user, whichever user starts it."""
        if self.name is None:
            return []
        return ["setpriv", f"--reuid={self.name}", f"--regid={GROUP}", "--clear-groups"]


@contextmanager
def accounts(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Account]]:
    """A user for each name, with a folder of its own below ``folder``; users that were not there
    before are removed at the end. Without root all of them are this process's user.
    """
    root = os.geteuid() == 0
    users = {name: Account(f"ackledger-{name}" if root else None, folder / name) for name in names}
    absent = [] if not root else _missing([str(user.name) for user in users.values()])
    group = root and not _has_group()
    if group:
        _run("groupadd", "--system", GROUP)
    try:
        for name in absent:
            home = folder / name.removeprefix("ackledger-")
            options = ["--system", "--no-create-home", "--gid", GROUP, "--shell", "/bin/false"]
            _run("useradd", *options, "--home-dir", str(home), name)
        for user in users.values():
            user.folder.mkdir(mode=0o700)
            user.own(user.folder)
        yield users
    finally:
        for name in absent:
            clear_temporary(pwd.getpwnam(name).pw_uid)
            _run("userdel", name)
        if group and _has_group():
            _run("groupdel", GROUP)


def clear_temporary(owner: int) -> None:
    """Remove what a user's killed JVMs could not: libraries and counters, in /tmp, whatever
    java.io.tmpdir says.
    """
    for path in Path("/tmp").iterdir():
        with suppress(FileNotFoundError):
            status = path.lstat()
            if status.st_uid == owner:
                shutil.rmtree(path) if stat.S_ISDIR(status.st_mode) else path.unlink()


def share(folder: Path) -> None:
    """Make a folder that all of the group may write to, as an administrator shares one."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, -1, grp.getgrnam(GROUP).gr_gid)
    folder.chmod(0o2775)


class Process:
    """A process of a user, the leader of a session in which all that it starts stays. It has this
    ``environment`` and nothing else.
    """

    def __init__(
        self, user: Account, command: Sequence[str], environment: Mapping[str, str], log: str
    ):
        self._user, self._command = user, [*user.prefix, *command]
        self._environment, self.log = dict(environment), user.folder / f"{log}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, as the first time or again."""
        with self.log.open("ab") as stream:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._user.folder,
                umask=UMASK,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def family(self) -> list[psutil.Process]:
        """It and what it has started."""
        processes = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if self._process and os.getsid(process.pid) == self._process.pid:
                    processes.append(process)
        return processes

    def kill(self) -> int:
        """What the loss of a machine is: it and all that it has started die at once; how many."""
        family = self.family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        return len(family)

    def stop(self) -> None:
        """End it in good order, and kill what still runs after a while."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        deadline = time.monotonic() + STOP_SECONDS
        while self.family() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.kill()


def _missing(names: Sequence[str]) -> list[str]:
    present = {entry.pw_name for entry in pwd.getpwall()}
    return [name for name in names if name not in present]


def _has_group() -> bool:
    return GROUP in {entry.gr_name for entry in grp.getgrall()}


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
