"""Retention: removes the files that nothing needs any more.

A batch and its replays expire together, as a family, in two phases. First a transaction marks the
family as expired. It holds the locks of every driver that would open something that reads the
files: the pipeline's, which every opening takes, and the original's. Then the files are removed,
and the ledger notes that. If a process dies in between, the next one finishes it.

Root files are removed whatever a pipeline keeps, because nothing needs them once their batch is
decided. Files of runs that will never count are removed a day after the last change of their batch,
because their drivers may write until then.
docs/decisions/026-retention.md lists who needs which files, and until when.
"""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection

from ledger.batch.root_files import note_removed, remove
from ledger.core.declarations import SHORTEST_KEEP_SECONDS
from ledger.core.probes import reached
from ledger.pipeline import steps
from ledger.storage import stores
from ledger.storage.folders import (
    Size,
    beside,
    reachable,
    remove_run_folder,
    require_own_folder,
    require_reachable,
    size_of,
)
from ledger.store.connection import Database
from ledger.store.queries import batches, pipelines, retention, runs
from ledger.store.queries.retention import NeededFamily, RunWithFiles, RunWithRootFiles

_AT_ONCE = 500  # families that are looked at in one statement
_WRITTEN = {step.kind: step.files for step in steps.KINDS}
_DEAD, _FILTERS, _ROOT_FILES = "dead attempts", "filters", "root files"
KINDS = (*_WRITTEN.values(), _DEAD, _FILTERS, _ROOT_FILES)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GcOptions:
    """Options of ``gc_once``.

    ``pipeline``: only this pipeline.
    ``families``: only the families of these originals.
    ``keep_seconds``: replaces ``keep`` of each pipeline, also of those that keep their files
    permanently.
    ``dry_run``: only report what would be removed.
    ``most``: the greatest number of families to expire; the next call goes on.
    ``looks``: the greatest number of families to look at, from a random one on, so that each has
    its turn.
    """

    pipeline: str | None = None
    families: tuple[int, ...] | None = None
    keep_seconds: float | None = None
    dry_run: bool = False
    most: int | None = None
    looks: int | None = None

    @property
    def scope(self) -> tuple[str | None, tuple[int, ...] | None, float | None]:
        """The pipeline, the families and the time to keep, as arguments of queries."""
        return self.pipeline, self.families, self.keep_seconds


@dataclass(frozen=True)
class Collected:
    """Result of ``gc_once``.

    ``expired``: the originals of families that expired in this call.
    ``removed``: files and bytes by kind, including the rest of families that expired earlier.
    ``needed``: old families that something still needs.
    ``errors``: why a batch's files could not be removed, by batch; the next call tries again.
    ``dry_run``: whether nothing was changed.
    """

    dry_run: bool
    expired: tuple[int, ...]
    removed: dict[str, Size]
    needed: tuple[NeededFamily, ...]
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def total(self) -> Size:
        """Files and bytes of all kinds."""
        return sum(self.removed.values(), Size())


def gc_once(
    database: Database,
    options: GcOptions | None = None,
    *,
    now: datetime | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Collected:
    """Remove what nothing needs any more at ``now`` (default: the database's clock). Any number of
    calls may run at once.

    ``on_progress``: called with the current work, the number of things done, and the number of all.
    """
    rules = options or GcOptions()
    instant = now or database.transact(batches.database_now)
    report = on_progress or (lambda what, done, of: None)
    free, needs = _find_free(database, rules, instant, report)
    work = _Removal(database, rules.dry_run)
    if rules.dry_run:
        of_free = database.transact(lambda c: retention.batches_of(c, free))
    else:
        free = _expire_all(database, free, rules, instant, report)
        of_free = []
    expired = database.transact(lambda c: retention.expired_batches(c, rules.pipeline))
    todo = sorted({*expired, *of_free})
    for number, batch_id in enumerate(todo):
        report("removing files", number, len(todo))
        work.remove_batch(batch_id)
    before = instant - timedelta(seconds=SHORTEST_KEEP_SECONDS)
    dead = database.transact(lambda c: retention.dead_runs(c, *rules.scope, before))
    work.remove_dead([run for run in dead if run.batch_id not in todo])
    rest = database.transact(
        lambda c: retention.unneeded_root_files(c, rules.pipeline, rules.families, before)
    )
    work.remove_root_files(rest)
    return Collected(rules.dry_run, tuple(free), work.removed, tuple(needs), work.errors)


def _find_free(
    database: Database,
    options: GcOptions,
    instant: datetime,
    report: Callable[[str, int, int], None],
) -> tuple[list[int], list[NeededFamily]]:
    """Look at families that are old enough. Return those that nothing needs, up to ``most``, and
    those that something needs.
    """
    free: list[int] = []
    needs: list[NeededFamily] = []
    keep = options.keep_seconds
    candidates = database.transact(lambda c: retention.candidates(c, *options.scope, instant))
    if options.looks is not None and options.looks < len(candidates):
        start = random.randrange(len(candidates))
        candidates = sorted((candidates[start:] + candidates[:start])[: options.looks])
    for first in range(0, len(candidates), _AT_ONCE):
        if options.most is not None and len(free) >= options.most:
            break
        report("looking at batches", first, len(candidates))
        some = candidates[first : first + _AT_ONCE]
        look = partial(retention.needs, families=some, keep=keep, now=instant)
        needed = database.transact(look)
        needs += needed
        free += sorted(set(some) - {family.batch_id for family in needed})
    return free[: options.most], needs


def _expire_all(
    database: Database,
    families: Sequence[int],
    options: GcOptions,
    instant: datetime,
    report: Callable[[str, int, int], None],
) -> list[int]:
    """Mark families as expired, each in its own transaction, unless something needs their files by
    now. Return those that are expired. A family that another process has locked waits for the next
    call.
    """

    def expire(connection: Connection, family_id: int) -> bool:
        # Under the locks of processes that might want the files.
        pipelines.lock(connection, batches.get_batch(connection, family_id).pipeline)
        if batches.lock_batch(connection, family_id, skip_locked=True) is None:
            return False
        if retention.needs(connection, [family_id], options.keep_seconds, instant):
            return False
        retention.expire(connection, family_id)
        reached("expiring files")
        return True

    done = []
    for number, family_id in enumerate(families):
        report("expiring batches", number, len(families))
        if database.transact(partial(expire, family_id=family_id)):
            done.append(family_id)
    reached("files expired")
    return done


class _Removal:
    """Deletes files, or only counts them in a dry run. An error with one batch does not stop the
    others.
    """

    def __init__(self, database: Database, dry_run: bool):
        self._database, self._dry_run = database, dry_run
        self.removed: dict[str, Size] = dict.fromkeys(KINDS, Size())
        self.errors: dict[int, str] = {}

    def remove_batch(self, batch_id: int) -> None:
        """Remove all files of a batch that has expired, and its filters."""
        rows = self._database.transact(lambda c: retention.runs_with_files(c, batch_id))
        done = [run.step_run_id for run in rows if self._remove(run, expired=True)]
        filters = self._database.transact(lambda c: retention.size_of_filters(c, batch_id))
        self.removed[_FILTERS] += filters
        if self._dry_run:
            return

        def note(connection: Connection) -> None:
            runs.set_files_removed(connection, done)
            if len(done) == len(rows):
                retention.set_removed(connection, batch_id)

        self._database.transact(note)

    def remove_dead(self, rows: Sequence[RunWithFiles]) -> None:
        """Remove the files of runs that will never count."""
        done = [run.step_run_id for run in rows if self._remove(run, expired=False)]
        if done and not self._dry_run:
            self._database.transact(lambda c: runs.set_files_removed(c, done))

    def remove_root_files(self, rows: Sequence[RunWithRootFiles]) -> None:
        """Remove the root files that a settlement left on another machine, or that a process left
        when it died. Skip runs whose storage this machine cannot reach. Log errors and keep them in
        ``errors``. Unless it is a dry run, note in the ledger that the files are gone.
        """
        done = []
        for run in rows:
            if not reachable(run.root_files):
                continue
            try:
                self.removed[_ROOT_FILES] += remove(run, dry_run=self._dry_run)
                done.append(run)
            except Exception as exc:  # of whichever file system
                _log.warning("%s of run %s stay: %s", run.root_files, run.step_run_id, exc)
                self.errors[run.batch_id] = f"{run.root_files}: {exc}"
        if not self._dry_run:
            note_removed(self._database, done)

    def _remove(self, run: RunWithFiles, *, expired: bool) -> bool:
        """Delete the files of a run, unless they are part of a table that readers read. Return
        whether nothing remains to be deleted. ``expired``: also delete files that were staged
        beside them since.
        """
        if run.folder is None or run.left_to_table:
            return True
        try:
            require_own_folder(run.folder, run.step_run_id)
            if run.wrote:
                require_reachable(run.folder)
            elif not reachable(run.folder):  # it may never have been made, or is not mounted here
                return False
            beside_it = f"kept-{run.step_run_id}-"
            others = beside(run.folder, beside_it) if expired and not run.in_place else []
            size = sum(map(size_of, [run.folder, *others]), Size())
            if not self._dry_run:
                for folder in others:
                    stores.remove_folder(folder)
                remove_run_folder(run.folder, run.step_run_id)
        except Exception as exc:  # of whichever file system
            _log.warning("files of run %s in %s stay: %s", run.step_run_id, run.folder, exc)
            self.errors[run.batch_id] = f"{run.folder}: {exc}"
            return False
        self.removed[_DEAD if run.dead else _WRITTEN[run.kind]] += size
        if not self._dry_run:
            reached("folder removed", run.folder)
        return True
