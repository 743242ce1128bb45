"""Paths that another user of this machine can reach, by the modes of the folders above them."""

import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


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
