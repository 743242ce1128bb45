"""Claims of files: how many there is room for, and how many records an interval has."""

from collections.abc import Callable, Iterable

from ledger.sources import listing
from ledger.sources.base import Claim, Scope
from ledger.sources.listing import FoundFile


def new_files(scope: Scope, room: int | None, count: Callable[[FoundFile], int]) -> Claim:
    """The files below ``scope.path`` that no batch has claimed as they are now: as many as have
    room for all their records, at least one.

    ``count``: the most records that a file may hold; asked only if there is a ``room``.
    """
    files: list[FoundFile] = []
    records = 0
    unseen = scope.unclaimed(listing.list_files(scope.path))
    for file in scope.unclaimed(listing.with_digests(unseen)):
        if room is not None:
            most = count(file)
            if files and records + most > room:
                break
            records += most
        files.append(file)
    return scope.claim(files=tuple(files), records=None if room is None else records)


def count_records(files: Iterable[FoundFile], count: Callable[[FoundFile], int], room: int) -> int:
    """The most records that files may hold together, counted no further than the file with which
    they exceed ``room``.
    """
    records = 0
    for file in files:
        records += count(file)
        if records > room:
            break
    return records
