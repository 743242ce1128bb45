"""A random walk over the ledger's life, with plain sets of pending edges as its oracle.

The machine drives one batch, and then its replays, through opening, posting, crashing, committing,
sweeping, expiring, publishing, accepting and removing files in any order that Hypothesis finds. The
oracle knows which edges each run emitted and acked; whatever the ledger decides must be what the
sets say. It knows which runs something may read again: their files must be there.
"""

import os
import random
import shutil
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from ledger.batch.manual_actions import restart
from ledger.batch.step_runs import Attempt, OpenedRun, note_folder
from ledger.batch.upkeep.retention import gc_once
from ledger.core.states import BatchStatus
from ledger.deltas.root_files import LISTING
from ledger.deltas.spans import RootRange
from ledger.errors import FencedError, InputError, IntegrityError, NotReadyError
from ledger.store.queries import batches
from tests.support.ledgers import Ledger, pipeline
from tests.support.posting import Delta

STEPS = ("source", "middle", "sink", "second")
READS = {"middle": "source", "sink": "middle", "second": "middle"}
CONSUMERS = {"source": ("middle",), "middle": ("sink", "second"), "sink": (), "second": ()}
MAX_REPLAYS = 1
OWN, SHARED, LATE = "own", "shared", "late"
FATES = st.lists(
    st.sampled_from(["ok", "ok", "ok", "lost", "twice", "fail"]), min_size=3, max_size=3
)


@dataclass
class Modelled:
    """A run as the oracle knows it. Edges are (root, consumer) -> ids, acked ones may repeat;
    ``order``: of its attempt."""

    opened: OpenedRun
    reads: "Modelled | None"
    order: int = 0
    emitted: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    acked: dict[int, list[int]] = field(default_factory=dict)
    fails: set[int] = field(default_factory=set)
    roots: range = range(0)
    span: int = 1
    deltas: list[Delta] | None = None
    torn: bool = False
    state: str = "running"
    folder: Path | None = None


def task(order):
    """An attempt of Airflow; the greater its order, the newer it is."""
    return Attempt(UUID(int=order), 1, order)


class LedgerLife(RuleBasedStateMachine):
    """One batch and its replays; ``ledger`` is set on the class by the test."""

    ledger: Ledger
    folder: Path

    def __init__(self):
        super().__init__()
        self.ledger.empty()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.random = random.Random(7)
        self.status = "open"
        self.newest: dict[str, Modelled] = {}
        self.committed: dict[str, Modelled] = {}
        self.everything: list[Modelled] = []
        self.messages: dict[int, str] = {}  # message -> status
        self.message_of: dict[int, int] = {}  # root -> message
        self.failed_replays: Counter[int] = Counter()
        self.count = 3
        self.replay_number = 0
        self.begun = self.late = self.since = 0
        self.writing: list[Modelled] = []  # every run of every batch
        self.snapshot: Modelled | None = None  # of the original, once it is settled
        self.quarantined = False  # whether the replay takes these
        self.before: dict[int, tuple[str, int]] = {}  # message -> its status and failed replays
        self.accepted: set[int] = set()
        self.published = self.copied = self.expired = False
        self.released = False  # whether a person let the batch settle above the limit
        self.restarted = 0  # attempts that began before may open no run of the batch
        self.own_failed: set[int] = set()  # messages that failed through their own fault before
        self.given_up: set[int] = set()  # messages that the next replay of a whole batch leaves out

    @initialize(
        max_replays=st.integers(0, MAX_REPLAYS),
        limit=st.sampled_from([None, None, 0.5]),
        span=st.sampled_from([1, 2, 4096]),
        whole=st.booleans(),
    )
    def begin(self, max_replays, limit, span, whole):
        """The batch is opened, of a pipeline that allows so many failed replays of a record, and
        such a share of new failures, and whose batches are replayed as a whole or not. So many
        roots share a row.
        """
        self.whole = whole
        self.max_replays, self.limit, self.span = max_replays, limit, span
        self.pipeline = pipeline(
            fan_out=True, max_replays=max_replays, keep="1d", hold_above=limit, whole=whole
        )
        self.original = self.batch = self.ledger.open(self.pipeline)

    # -- steps of a run ------------------------------------------------------------------------

    @precondition(lambda self: self.status == "open")
    @rule(step=st.sampled_from(STEPS))
    def open_a_run(self, step):
        """A new attempt of a step: fences the running one."""
        self.begun += 1000
        self._open(step, self.begun)

    @precondition(lambda self: self.status == "open")
    @rule(step=st.sampled_from(STEPS), began=st.integers(0, 99))
    def a_late_attempt_opens(self, step, began):
        """An attempt that began earlier comes late: a newer one that lives, or has done the step,
        keeps it out."""
        self.late += 1
        earlier = (self.begun - self.since) // 1000 + 1  # in this life of the batch
        order = self.since + began % earlier * 1000 + self.late
        newer = [run for run in self.everything if run.opened.step == step and run.order > order]
        is_fenced = any(run.state in ("running", "committed", "superseded") for run in newer)
        if is_fenced or order < self.restarted:
            with pytest.raises(FencedError, match=r"newer attempt|was restarted"):
                self.ledger.open_run(self.batch.batch_id, step, task(order))
            return
        self._open(step, order)

    @precondition(lambda self: self.status == "open")
    @rule(fates=FATES)
    def run_what_is_missing(self, fates):
        """A driver does all steps that are not committed, one after the other, as most do."""
        for step in STEPS:
            if step not in self.committed:
                self._run(step, fates)

    def _run(self, step, fates):
        """A driver does a step, whose input is there."""
        self.begun += 1000
        self._open(step, self.begun)
        run = self.newest[step]
        self._imagine(run, fates)
        self.ledger.post(run.opened, run.deltas, emitted=_emitted(run))
        self.ledger.commit(run.opened, run.deltas, emitted=_emitted(run))
        self._committed(run)

    def _open(self, step, order):
        reads, batch_id = READS.get(step), self.batch.batch_id
        if reads is not None and reads not in self.committed:
            with pytest.raises(NotReadyError):
                self.ledger.open_run(batch_id, step, task(order))
            return
        run = self.ledger.open_run(batch_id, step, task(order))
        for older in self.everything:
            if older.opened.step == step and older.state == "running":
                older.state = "fenced"
        read = self.committed.get(reads) if reads else None
        self.newest[step] = Modelled(run, read, order)
        self.everything.append(self.newest[step])
        self._write(self.newest[step])

    def _write(self, run):
        """The run writes its files, where it has noted."""
        run.folder = self.folder / f"batch={run.opened.batch.batch_id}" / f"run={run.opened.run_id}"
        note_folder(self.ledger.database, run.opened, str(run.folder))
        run.folder.mkdir(parents=True)
        (run.folder / "part.parquet").write_text("rows")
        self.writing.append(run)

    @rule(
        pick=st.integers(0, 99),
        fates=FATES,
        split=st.booleans(),
        backwards=st.booleans(),
        torn=st.sampled_from([None, None, "missing", "twice"]),
    )
    def post(self, pick, fates, split, backwards, torn):
        """Any run not posted yet posts its deltas, in any order, perhaps some of them twice,
        perhaps not all. A zombie posts nothing.
        """
        waiting = [run for run in self.everything if run.deltas is None]
        if not waiting or self.status != "open":
            return
        run = waiting[pick % len(waiting)]
        self._imagine(run, fates)
        halves = [
            [delta for delta in run.deltas if delta.root // run.span % 2 == half]
            for half in range(2)
        ]
        parts = halves if split else [run.deltas]
        if backwards:
            parts.reverse()
        if torn is not None:
            last = parts.pop()
            parts += [last, last] if torn == "twice" else []
            run.torn = bool(last)
        refused = nullcontext() if run.state == "running" else pytest.raises(FencedError)
        for deltas in parts:
            with refused:
                self.ledger.post(run.opened, deltas, emitted=_emitted(run))

    @rule(pick=st.integers(0, 99))
    def commit_a_run(self, pick):
        """Any posted run tries to commit; a zombie, or one whose input was superseded, is
        fenced.
        """
        posted = [
            run for run in self.everything if run.deltas is not None and run.state != "failed"
        ]
        if not posted:
            return
        run = posted[pick % len(posted)]
        emitted = _emitted(run)
        allowed = (
            self.status == "open"
            and run.state == "running"
            and (run.reads is None or run.reads.state == "committed")
        )
        if allowed and run.torn:
            with pytest.raises(IntegrityError):
                self.ledger.commit(run.opened, run.deltas, emitted=emitted)
            return
        if run.state == "committed" or allowed:
            self.ledger.commit(run.opened, run.deltas, emitted=emitted)
        else:
            with pytest.raises(FencedError):
                self.ledger.commit(run.opened, run.deltas, emitted=emitted)
        if allowed:
            self._committed(run)

    def _committed(self, run):
        self._supersede(run.opened.step)
        run.state = "committed"
        self.committed[run.opened.step] = run

    @rule(pick=st.integers(0, 99))
    def crash(self, pick):
        """A running run dies and says so; without saying, it simply never acts again."""
        alive = [run for run in self.everything if run.state == "running"]
        if alive and self.status == "open":
            run = alive[pick % len(alive)]
            self.ledger.fail(run.opened, "crashed")
            run.state = "failed"

    # -- decisions -----------------------------------------------------------------------------

    @precondition(lambda self: self.status == "open")
    @rule(late=st.booleans(), two=st.booleans())
    def sweep(self, late, two):
        """A sweep, or two at once, now or a day later, decides just what the sets allow."""
        now = self.ledger.now() + timedelta(days=1 if late else 0)
        self._decided(self._settle(now, 2 if two else 1), late)

    def _decided(self, settlement, late):
        """What a settlement has decided, now or a day later, is just what the sets allow."""
        missing = [step for step in STEPS if step not in self.committed]
        alive = not late and any(run.state == "running" for run in self.newest.values())
        died = [
            step
            for step in missing
            if step in self.newest and self.newest[step].state != "superseded"
        ]
        if not missing and not alive:
            self._judged(settlement)
        elif not late or not died:
            assert settlement.status is BatchStatus.OPEN
        elif "source" in missing or (self.whole and self.batch.kind == "replay"):
            assert settlement.status is BatchStatus.ABANDONED
            self._abandoned()
        else:
            self._judged(settlement)

    def _judged(self, settlement):
        """The batch is settled; or on hold, and then nothing is decided, and the preview has the
        records that fail.
        """
        if not self._over_limit():
            assert settlement.status is BatchStatus.SETTLED
            self._settled()
            return
        assert settlement.status is BatchStatus.HELD
        roots = {row.root_id for row in self.ledger.rows("SELECT root_id FROM hold_sample")}
        assert roots == {root for root, _ in self._failures()}
        self.status = "held"

    @precondition(lambda self: self.status == "held")
    @rule()
    def release_it(self):
        """A person lets the batch settle as it is, unless a step of it runs, or may run, again."""
        self.status, self.released = "open", True
        self._decided(self.ledger.release(self.batch.batch_id), late=False)

    @precondition(lambda self: self.status == "held")
    @rule(step=st.sampled_from(STEPS), fates=FATES)
    def fix_it(self, step, fates):
        """A step of the batch runs again, which opens it."""
        if READS.get(step) is None or READS[step] in self.committed:
            self.status, self.newest = "open", {}
            self._run(step, fates)

    @precondition(lambda self: self.status in ("open", "held"))
    @rule()
    def restart(self):
        """A person restarts the batch, unless a step of it runs: nothing that was done counts."""
        self.ledger.change(f"ALTER SEQUENCE attempt_number RESTART WITH {self.begun + 1}")
        if any(run.state == "running" for run in self.everything):
            with pytest.raises(NotReadyError, match="is running"):
                restart(self.ledger.database, self.batch.batch_id)
            return
        restart(self.ledger.database, self.batch.batch_id)
        for step in STEPS:
            self._supersede(step)
        self.status, self.released, self.restarted = "restarted", False, self.begun + 1

    @precondition(lambda self: self.status == "restarted")
    @rule(fates=FATES)
    def run_it_again(self, fates):
        """No sweep and no release settles a restarted batch; its next run opens it."""
        assert self.ledger.settle(self.batch.batch_id).status is BatchStatus.HELD
        with pytest.raises(NotReadyError, match="was restarted"):
            self.ledger.release(self.batch.batch_id)
        self.status, self.newest = "open", {}
        self._run("source", fates)

    @precondition(lambda self: self.status == "settled" and "failed" in self.messages.values())
    @rule()
    def replay(self):
        """A replay claims every failed message, and becomes the batch that is driven."""
        self.released = False
        self.replay_number += 1
        self.batch = self.ledger.replay(
            self.pipeline, self.original.batch_id, f"r{self.replay_number}"
        )
        claimed = self.ledger.claimed_messages(self.batch.batch_id)
        assert set(claimed) == {m for m, status in self.messages.items() if status == "failed"}
        self.quarantined = False
        self._claimed(claimed)

    @precondition(lambda self: self.status == "settled" and "quarantined" in self.messages.values())
    @rule()
    def replay_quarantined(self):
        """A replay takes up the quarantined ones with a new budget, unless their files are gone:
        then it is refused, and says how to read them again."""
        messages = self._taken("quarantined")
        self.replay_number += 1
        run_id, original = f"r{self.replay_number}", self.original.batch_id
        if self.expired:
            with pytest.raises(InputError, match=r"removed by retention .* --reprocess"):
                self.ledger.replay(self.pipeline, original, run_id, quarantined=True, accepted=True)
            return
        self.batch = self.ledger.replay(
            self.pipeline, original, run_id, quarantined=True, accepted=True
        )
        self.quarantined, self.released = True, False
        self._claimed(messages)

    def _taken(self, status):
        """The messages that a replay of those with this status claims; of a whole batch it also
        claims all that are failed."""
        taken = {status, "failed"} if self.whole else {status}
        return {m for m, status in self.messages.items() if status in taken}

    def _claimed(self, messages):
        assert self.snapshot.folder.exists()  # what the replay reads
        assert set(self.ledger.claimed_messages(self.batch.batch_id)) == set(messages)
        for message in messages:
            was = self.messages[message]
            given_up = message in self.given_up
            self.before[message] = was, self.failed_replays[message], given_up
            self.messages[message] = "replaying"
            if was == "quarantined":
                self.failed_replays[message] = 0
                self.given_up.discard(message)
        self._fresh(len(self._emitted_messages()))

    def _emitted_messages(self):
        """The messages that the source of an open replay emits: those that are claimed, or, of a
        whole batch, all but those that are quarantined or given up."""
        if not self.whole:
            return sorted(m for m, status in self.messages.items() if status == "replaying")
        quarantined = {m for m, status in self.messages.items() if status == "quarantined"}
        return [m for m in self.snapshot.roots if m not in quarantined | self.given_up]

    # -- what follows a settlement, and retention ----------------------------------------------

    @precondition(lambda self: self.status == "settled")
    @rule()
    def publish(self):
        """What is decided is published."""
        self.ledger.deliver()
        self.published = True

    @rule()
    def keep_content(self):
        """What failed records contain is copied from the snapshot, which must be there."""
        assert self.copied or not self.messages or self.snapshot.folder.exists()
        with self.ledger.database.writer.begin() as connection:
            connection.execute(
                text("""
                INSERT INTO failed_payload (message_id, batch_id, root_id, content, parsed)
                SELECT message_id, original_batch_id, message_id, '', false FROM failed_message
                ON CONFLICT DO NOTHING
                """)
            )
        self.copied = True

    @precondition(lambda self: "quarantined" in self.messages.values())
    @rule()
    def accept(self):
        """A person accepts what is quarantined."""
        self.ledger.accept(self.original.batch_id)
        self.accepted |= {m for m, status in self.messages.items() if status == "quarantined"}

    @rule()
    def gc(self):
        """Retention comes days later: it removes what nothing can need any more, and no more."""
        now = self.ledger.now() + timedelta(days=3)
        collected = gc_once(self.ledger.database, now=now)
        free = (
            self.original_settled
            and self.status in ("settled", "abandoned")
            and not {"failed", "replaying"} & set(self.messages.values())
            and all(
                message in self.accepted
                for message, status in self.messages.items()
                if status == "quarantined"
            )
            and (self.published and (self.copied or not self.messages))
        )
        assert collected.expired == ((self.original.batch_id,) if free and not self.expired else ())
        assert not collected.errors
        self.expired |= free
        for run in self.writing:
            live = run.state in ("running", "committed") and not self.expired
            assert run.folder.exists() == live
        assert all(
            not folder.name.startswith("batch=") or any(folder.iterdir())
            for folder in self.folder.glob("*")
        )
        again = gc_once(self.ledger.database, now=now)
        assert (again.expired, again.total.files) == ((), 0)

    @property
    def original_settled(self):
        return self.snapshot is not None

    @precondition(lambda self: self.status == "abandoned")
    @rule()
    def open_again(self):
        """Clearing the first task of an abandoned batch opens the same batch again."""
        if self.batch.kind == "original":
            again = self.ledger.open(self.pipeline)
        else:
            again = self.ledger.replay(
                self.pipeline, self.original.batch_id, f"r{self.replay_number}"
            )
            self._claimed(self._taken("quarantined" if self.quarantined else "failed"))
        assert (again.batch_id, again.status) == (self.batch.batch_id, BatchStatus.OPEN)
        self._fresh(self.count)

    # -- the end -------------------------------------------------------------------------------

    def teardown(self):
        """In the end all is run and replayed, whatever retention took before: nothing is failed,
        and what stays in quarantine is what a person accepted before its files went.
        """
        if sys.exc_info()[0] is not None:
            return  # a history that has gone wrong is reported, not its end
        if self.status == "abandoned":
            LedgerLife.open_again(self)
        self._go_on()
        for again in (LedgerLife.replay, LedgerLife.replay_quarantined):
            wanted = "failed" if again is LedgerLife.replay else "quarantined"
            if wanted in self.messages.values() and not (self.expired and wanted == "quarantined"):
                again(self)
                self._go_on()
        left = {m for m, status in self.messages.items() if status != "recovered"}
        assert left <= (self.accepted if self.expired else set())
        self.messages_are_as_the_oracle_has_them()

    def _go_on(self):
        """All goes well: what is missing is run, and the batch settled."""
        while self.status in ("open", "held", "restarted"):
            if self.status == "restarted":
                LedgerLife.run_it_again(self, ["ok"] * 3)
                continue
            if self.status == "held":
                LedgerLife.release_it(self)
                continue
            LedgerLife.run_what_is_missing(self, ["ok"] * 3)
            LedgerLife.sweep(self, late=True, two=False)

    # -- invariants ----------------------------------------------------------------------------

    @invariant()
    def counts_are_disjoint(self):
        """In every batch total = acked + failed + quarantined + pending, and open means pending."""
        for row in self.ledger.rows("SELECT * FROM batch_status"):
            assert row.total == row.acked + row.failed + row.quarantined + row.pending
            assert row.pending == (0 if row.status == "settled" else row.total)

    @invariant()
    def a_preview_is_of_a_batch_on_hold(self):
        """There is one as long as the batch is on hold, and no other."""
        batches = self.ledger.rows("SELECT DISTINCT batch_id FROM hold_failure")
        assert [row.batch_id for row in batches] == [self.batch.batch_id] * (self.status == "held")

    @invariant()
    def messages_are_as_the_oracle_has_them(self):
        """Every message has the oracle's status, and is claimed by an open replay or by none."""
        rows = self.ledger.rows("SELECT message_id, status, replay_batch_id FROM failed_message")
        assert {row.message_id: row.status for row in rows} == self.messages
        for row in rows:
            assert (row.status == "replaying") <= (row.replay_batch_id == self.batch.batch_id)

    @invariant()
    def running_values_are_the_sets(self):
        """The running ack value of every root, or span, is the XOR of its pending edges."""
        if self.status != "open" or "source" not in self.committed:
            return
        edges = {
            row.root_id: row.open_edges for row in self.ledger.rows("SELECT * FROM pending_root")
        }
        roots = self.committed["source"].roots
        for first in range(roots.start, roots.stop, self.span):
            emitted, acked = Counter(), Counter()
            for root in range(first, min(first + self.span, roots.stop)):
                of_root = self._edges(root)
                emitted += of_root[0]
                acked += of_root[1]
            assert edges.get(first, 0) == emitted.total() - acked.total()
            assert (first in edges) == (emitted != acked)

    @invariant()
    def root_files_are_there_as_long_as_they_are_needed(self):
        """Those of the runs that count, until the batch is decided; then none of them."""
        rows = self.ledger.rows(
            "SELECT r.root_files, b.status FROM step_run r JOIN batch b USING (batch_id)"
            " WHERE r.state = 'committed' AND r.root_files IS NOT NULL"
        )
        assert all(row.status in ("open", "held") for row in rows)
        assert all((Path(row.root_files) / LISTING).exists() for row in rows)

    def _settle(self, now, sweepers):
        """What the sweepers decided; of two that decide, one does, and the other finds it done."""
        with ThreadPoolExecutor(sweepers) as pool:
            settlements = list(
                pool.map(
                    lambda _: self.ledger.settle(self.batch.batch_id, now=now),
                    range(sweepers),
                )
            )
        assert sum(settlement.decided for settlement in settlements) <= 1
        assert len({settlement.status for settlement in settlements}) == 1
        return settlements[0]

    # -- the oracle ----------------------------------------------------------------------------

    def _imagine(self, run, fates):
        """What the run does to each root: the sets, and the deltas that say so."""
        step, consumers = run.opened.step, CONSUMERS[run.opened.step]
        if step == "source":
            first = self.ledger.transact(batches.reserve_roots, self.count, self.span)
            run.roots = range(first, first + self.count)
            self._map_messages(run)
        else:
            source = run
            while source.reads is not None:
                source = source.reads
            run.roots = source.roots
        run.span, run.deltas = self.span, []
        for root, fate in zip(run.roots, fates, strict=False):
            self._imagine_root(run, root, fate, consumers)

    def _imagine_root(self, run, root, fate, consumers):
        incoming = [] if run.reads is None else run.reads.emitted.get((root, run.opened.step), [])
        if run.reads is not None and (not incoming or fate == "lost"):
            return
        acked = incoming * 3 if fate == "twice" else list(incoming)
        failed = fate == "fail"
        out = [] if failed else [(name, self.random.getrandbits(63)) for name in consumers]
        for name, edge in out:
            run.emitted[root, name] = [edge]
        run.acked[root] = acked
        if failed:
            run.fails.add(root)
        run.deltas.append(
            Delta(
                root,
                _xor(acked),
                _xor([edge for _, edge in out]),
                len(acked),
                len(out),
                "bad" if failed else None,
            )
        )

    def _map_messages(self, run):
        if self.batch.kind == "original":
            self.message_of.update({root: root for root in run.roots})
            return
        emitted = self._emitted_messages()
        with self.ledger.database.writer.begin() as connection:
            for root, message in zip(run.roots, emitted, strict=True):
                self.message_of[root] = message
                connection.execute(
                    text("INSERT INTO replay_root VALUES (:b, :r, :root, :m)"),
                    {"b": self.batch.batch_id, "r": run.opened.run_id, "root": root, "m": message},
                )

    def _edges(self, root):
        """Multisets of edges emitted and acked for a root by the committed runs."""
        emitted, acked = Counter(), Counter()
        for run in self.committed.values():
            for (owner, _), edges in run.emitted.items():
                if owner == root:
                    emitted.update(edges)
            acked.update(run.acked.get(root, []))
        return emitted, acked

    def _failures(self):
        """The roots that fail, each with whose failure it is: its own, one that may be for want of
        another record, or that of a step that never committed."""
        expired = len(self.committed) < len(STEPS)
        for root in self.committed["source"].roots:
            emitted, acked = self._edges(root)
            explicit = any(root in run.fails for run in self.committed.values())
            if explicit or emitted != acked:
                late = expired and self._broke_where_nothing_committed(root)
                lost = LATE if late else SHARED if self.whole else OWN
                yield root, OWN if explicit else lost

    def _over_limit(self):
        """Whether more records than the limit allows of the original's fail for the first time."""
        if self.limit is None or self.released:
            return False
        failed = {self.message_of[root] for root, whose in self._failures() if whose == OWN}
        original = self.snapshot or self.committed["source"]
        return len(failed - self.own_failed) > self.limit * len(original.roots)

    def _settled(self):
        failures = dict(self._failures())
        for root in self.committed["source"].roots:
            message = self.message_of[root]
            if root in failures:
                self._failed(message, failures[root], root in self.committed["source"].fails)
            elif message in self.messages:
                self.messages[message] = "recovered"
        for message, status in self.messages.items():
            if status == "replaying":  # a replay of the whole batch has left it out
                assert message in self.given_up
                self.messages[message] = "quarantined"
        self.own_failed |= {self.message_of[root] for root, who in failures.items() if who == OWN}
        self._close("settled")

    def _broke_where_nothing_committed(self, root):
        """Whether the first hop that broke, in order, has a consumer that never committed."""
        for producer in STEPS:
            run = self.committed.get(producer)
            if run is None:
                continue
            out = {name: run.emitted.get((root, name), []) for name in CONSUMERS[producer]}
            took = {
                name: self.committed[name].acked.get(root, []) if name in self.committed else []
                for name in out
            }
            if any(Counter(out[name]) != Counter(took[name]) for name in out):
                uneven = [name for name in out if len(out[name]) != len(took[name])]
                if uneven:  # one that did commit is to blame
                    return all(name not in self.committed for name in uneven)
                return any(name not in self.committed for name in out)
        return False

    def _failed(self, message, whose, unparsed):
        if message in self.messages:
            self.failed_replays[message] += whose != LATE
        else:
            self.copied = False
        self.accepted.discard(message)  # another attempt of it has failed
        budget = self.max_replays + (2 if whose == SHARED else 0)
        spent = whose != LATE and self.failed_replays[message] >= budget
        leaves_out = spent and self.whole and not unparsed
        self.messages[message] = "quarantined" if spent and not leaves_out else "failed"
        self.given_up.discard(message)
        if spent and self.whole:
            self.given_up.add(message)

    def _abandoned(self):
        for message, status in self.messages.items():
            if status == "replaying":
                status, self.failed_replays[message], given_up = self.before[message]
                self.messages[message] = status
                if given_up:
                    self.given_up.add(message)
        for run in self.committed.values():
            run.state = "superseded"
        self._close("abandoned")

    def _close(self, status):
        self.status = status
        if status == "settled":
            self.published = False
            self.snapshot = self.snapshot or self.committed["source"]
        for run in self.everything:
            if run.state == "running":
                run.state = "fenced"

    def _fresh(self, count):
        self.status, self.count, self.since = "open", count, self.begun
        self.restarted = 0
        self.newest, self.committed, self.everything = {}, {}, []

    def _supersede(self, step):
        old = self.committed.pop(step, None)
        if old is None:
            return
        old.state = "superseded"
        for reader, reads in READS.items():
            if reads == step and reader in self.committed and self.committed[reader].reads is old:
                self._supersede(reader)


class LedgerHistory(LedgerLife):
    """As ``LedgerLife``, in longer strokes, so that it comes to replays of replays, and to files
    that are removed between them.
    """

    open_a_run = a_late_attempt_opens = post = commit_a_run = crash = run_what_is_missing = None
    publish = keep_content = accept = None

    @precondition(lambda self: self.status == "open")
    @rule(
        fates=st.lists(st.sampled_from(["lost", "ok", "fail"]), min_size=3, max_size=3),
        dies=st.sampled_from([None, *STEPS]),
    )
    def run_and_settle(self, fates, dies):
        """A driver does what is missing, maybe after one that died, and settles the batch."""
        LedgerLife.run_what_is_missing(self, fates)
        if dies is not None:
            self.begun += 1000
            self._open(dies, self.begun)
            LedgerLife.crash(self, 0)
        LedgerLife.sweep(self, late=False, two=False)

    @precondition(lambda self: self.status == "settled")
    @rule(content=st.booleans(), accepts=st.booleans())
    def follow_up(self, content, accepts):
        """What follows a settlement, in whole or in part."""
        LedgerLife.publish(self)
        if content:
            LedgerLife.keep_content(self)
        if accepts and "quarantined" in self.messages.values():
            LedgerLife.accept(self)


def _emitted(run):
    """What a source's run says that it emitted."""
    of_source = run.opened.step == "source"
    return RootRange(run.roots.start, len(run.roots), run.span) if of_source else None


def _xor(edges):
    value = 0
    for edge in edges:
        value ^= edge
    return value


@pytest.mark.parametrize("machine", [LedgerLife, LedgerHistory])
def test_ledger_agrees_with_plain_sets(ledger, tmp_path, machine):
    """Over random lives, with crashes, zombies, lost and repeated posts, and with files removed at
    any time, the ledger decides as plain sets of edges do, and has what a replay reads.
    """
    machine.ledger, machine.folder = ledger, tmp_path / "storage"
    examples = int(os.environ.get("ACKLEDGER_EXAMPLES", "20"))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
