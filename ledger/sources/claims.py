"""What batches claim of sources: files, each once, ranges of a cursor, and whole intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from ledger.sources import listing
from ledger.sources.base import Scope, Taken
from ledger.sources.cursor import Value, from_text, next_range, to_text
from ledger.sources.listing import FoundFile
from ledger.store.queries import claims as queries


@dataclass(frozen=True)
class NewFiles:
    """Files that no batch had claimed, the oldest first, each with the most records that it may
    hold (None: not counted)."""

    pipeline: str
    source: str
    files: tuple[tuple[FoundFile, int | None], ...] = ()

    def take(self, connection: Connection, pipeline_id: int, room: int | None) -> Taken:
        """As many files as have room for all their records, at least one."""
        counts = dict(self.files)
        new = _unclaimed(connection, self.pipeline, self.source, list(counts))
        if room is None:
            return Taken(tuple(new))
        files: list[FoundFile] = []
        records = 0
        for file in new:
            count = counts[file]
            if files and (count is None or records + count > room):
                break
            records += count or 0
            files.append(file)
        return Taken(tuple(files), records=records)


@dataclass(frozen=True)
class NewRows:
    """Rows of a cursor, complete up to ``bound`` (None: there are none).

    ``reach(after, upto, most)``: the cursor's value up to which at most ``most`` rows go, of those
    with ``after`` < cursor <= ``upto``; None: there are none.
    """

    source: str
    bound: Value | None
    reach: Callable[[Value | None, Value | None, int | None], Value | None]

    def take(self, connection: Connection, pipeline_id: int, room: int | None) -> Taken:
        """The first range that no batch has claimed."""
        claims = [
            (
                None if row.claimed_after is None else from_text(row.claimed_after),
                from_text(row.claimed_upto),
            )
            for row in queries.cursor_claims(connection, pipeline_id, self.source)
        ]
        after, end = next_range(claims)
        upto = self.reach(after, self.bound if end is None else end, room)
        if upto is None:  # nothing is left in the gap: close it
            upto = end
        if upto is None:
            return Taken()
        return Taken(after=None if after is None else to_text(after), upto=to_text(upto))


@dataclass(frozen=True)
class Whole:
    """All of an interval. ``records``: the most that it may hold; None: not known."""

    records: int | None

    def take(self, connection: Connection, pipeline_id: int, room: int | None) -> Taken:
        """The interval is never cut."""
        return Taken(records=self.records)


def new_files(scope: Scope, path: str, count: Callable[[FoundFile], int]) -> NewFiles:
    """The files below the glob ``path`` that no batch has claimed as they are now.

    ``count``: the most records that a file may hold; asked where a batch has a limit.
    """
    files = listing.list_files(path)
    unknown = scope.database.transact(
        partial(_unclaimed, pipeline=scope.pipeline, source=scope.source, files=files)
    )
    new = listing.with_digests(unknown)
    return NewFiles(scope.pipeline, scope.source, _counted(new, count, scope.most))


def count_records(
    files: Sequence[FoundFile], count: Callable[[FoundFile], int], most: int | None
) -> int:
    """The most records that files may hold together, counted no further than the file with which
    they exceed ``most``.
    """
    return sum(records or 0 for _, records in _counted(files, count, most))


def _unclaimed(
    connection: Connection, pipeline: str, source: str, files: Sequence[FoundFile]
) -> list[FoundFile]:
    """The files that no batch has claimed as they are now, the oldest first."""
    claimed = queries.claimed_files(connection, pipeline, source, [file.path for file in files])
    seen = {(row.path, row.bytes, row.modified_at) for row in claimed}
    newest = {
        row.path: row.digest for row in claimed
    }  # content that comes back is new, touched or not
    new = [
        file
        for file in files
        if (file.path, file.bytes, file.modified_at) not in seen
        and (file.digest is None or file.digest != newest.get(file.path))
    ]
    return sorted(new, key=lambda file: (file.modified_at, file.path))


def _counted(
    files: Sequence[FoundFile], count: Callable[[FoundFile], int], most: int | None
) -> tuple[tuple[FoundFile, int | None], ...]:
    """The files with the most records that each may hold; those past ``most`` are not looked at."""
    counted: list[tuple[FoundFile, int | None]] = []
    total = 0
    for file in files:
        records = count(file) if most is not None and total <= most else None
        total += records or 0
        counted.append((file, records))
    return tuple(counted)
