"""The crash matrix: a process is killed at every arrow of a batch's life, and the next one goes on.

Each case begins where the one before the crash ended, kills a real process of its own, looks at
what readers see, and lets Airflow's retry, or the sweeper and then a retry, and at last a replay
go on.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

import pytest

from ledger.core.states import Outcome
from ledger.store.queries.batches import Batch
from tests.support import orders
from tests.support.children import Children
from tests.support.crash_lab import ORIGINAL, Lab
from tests.support.crashing import BATCH as BATCH_FORM
from tests.support.crashing import (
    HALF_POSTED,
    HALF_POSTED_BY_DRIVER,
    IN_A_RECORD,
    opened,
    run_whole,
)
from tests.support.crashing import STAGE as STAGE_FORM
from tests.support.stop_lab import standing

FIRST, ALL = orders.expected(fixed=False), orders.expected(fixed=True)
NOTHING: orders.Rows = Counter()


@dataclass(frozen=True)
class Case:
    """A crash. ``stop``: what was done before; ``place``, ``of``, ``nth``: where the process
    dies, see ``Order``. ``spark``: whether the process has a session. ``swept``: the sweeper
    comes before the retry; ``whole``: the retry runs all steps again.
    """

    name: str
    stop: str
    place: str
    of: str = ""
    nth: int = 1
    spark: bool = True
    swept: bool = False
    whole: bool = False
    mode: str = "append"

    @property
    def to_the_end(self) -> bool:
        """Whether what failed is replayed, too: where the retry ends in another state than
        without a crash it may matter, elsewhere that state is compared and once is enough.
        """
        return self.of_replay or self.swept or self.mode == "upsert"

    @property
    def of_replay(self) -> bool:
        return self.stop.startswith("replay ") or self.stop == "notified"


def dry(*arguments, **options):
    """A case whose process needs no Spark, as Airflow's tasks open, settle and publish."""
    return Case(*arguments, spark=False, **options)


STAGED = [("lake", "priced"), ("report", "lake"), ("table", "report")]

CASES = [
    dry("opening", "nothing", "opening batch"),
    dry("opened", "nothing", "before run"),
    dry("opened, swept", "nothing", "before run", swept=True),
    dry("emit opened, swept", "opened", "run opened", swept=True),
    Case("snapshot written", "opened", "files written"),
    Case("init posted", "opened", "deltas posted"),
    Case("emit in its commit", "opened", "committing run"),
    Case("emit committed", "opened", "run committed"),
    Case("stage output written", "orders", "files written"),
    Case("deltas posted by half", "orders", HALF_POSTED),
    Case("deltas posted by half in the driver", "orders", HALF_POSTED_BY_DRIVER),
    Case("deltas posted", "orders", "deltas posted"),
    Case("deltas posted, swept", "orders", "deltas posted", swept=True),
    Case("stage in its commit", "orders", "committing run"),
    Case("stage committed", "orders", "run committed"),
    Case("in a record", "boxes", IN_A_RECORD),
    Case("record stage committed, run whole", "boxes", "run committed", whole=True),
    *(Case(f"{sink} staged", stop, "files written") for sink, stop in STAGED),
    Case("report staged, swept", "lake", "files written", swept=True),
    Case("lake's acks posted", "priced", "deltas posted"),
    *(Case(f"{sink} committed", stop, "run committed", sink) for sink, stop in STAGED[:2]),
    Case("table committed, swept", "report", "run committed", "table", swept=True),
    dry("refined", "table", "refined"),
    dry("refined, swept", "table", "refined", swept=True),
    dry("in the settlement", "table", "settling"),
    dry("root files to be removed", "table", "root files pending"),
    dry("root files removed by half", "table", "root files removed", nth=2),
    dry("settled", "table", "settled"),
    dry("settled, swept", "table", "settled", swept=True),
    Case("lake's kept rows written", "settled", "files written"),
    Case("report's rows being noted", "settled", "withholding", "report"),
    Case("two of three withheld", "settled", "sink withheld", nth=2, swept=True),
    Case("withheld", "settled", "withheld"),
    dry("before lake is published", "withheld", "publishing", "lake"),
    dry("lake renamed", "withheld", "folder renamed"),
    dry("lake shown", "withheld", "published", "lake"),
    dry("lake shown, swept", "withheld", "published", "lake", swept=True),
    dry("lake being noted", "withheld", "recording publication", "lake"),
    dry("before report is published", "withheld", "publishing", "report"),
    dry("report in its transaction", "withheld", "writing table"),
    dry("report shown", "withheld", "published", "report"),
    dry("report upserted", "withheld", "published", "report", mode="upsert"),
    dry("before table is published", "withheld", "publishing", "table"),
    dry("table made", "withheld", "table created"),
    dry("table's files listed", "withheld", "files listed"),
    dry("table shown", "withheld", "published", "table"),
    dry("published", "withheld", "batch published"),
    Case("source notified of acks only", "published", "acks notified"),
    Case("source notified, swept", "published", "source notified", swept=True),
    Case("source notified and noted", "published", "notice recorded"),
    dry("replay being opened", "notified", "claiming messages"),
    dry("replay opened", "notified", "before run"),
    dry("replay opened, swept", "notified", "before run", swept=True),
    Case("replay emitted", "replay opened", "deltas posted"),
    Case("replay stage posted, swept", "replay orders", "deltas posted", swept=True),
    Case("replay table committed", "replay report", "run committed", "table"),
    dry("replay refined", "replay table", "refined"),
    dry("replay in the settlement", "replay table", "settling"),
    dry("replay settled", "replay table", "settled"),
    dry("replay lake shown", "replay withheld", "published", "lake"),
    dry("replay report shown", "replay withheld", "published", "report"),
    dry("replay table shown", "replay withheld", "published", "table"),
    dry("before the combine", "replay withheld", "batch published", swept=True),
    dry("combine opened", "replay published", "run opened", "totals"),
    Case("combine written", "replay published", "files written"),
    Case("combine committed", "replay published", "run committed", "totals"),
    Case("combine committed, swept", "replay published", "run committed", "totals", swept=True),
    Case("combined sink staged", "replay published", "files written", nth=2),
    Case("combined sink decided", "replay published", "deciding publication", "daily"),
    Case("combined sink committed", "replay published", "run committed", "daily"),
    Case("before daily is published", "replay published", "publishing", "daily"),
    Case("daily shown", "replay published", "published", "daily"),
    Case("source notified of the replay", "replay combined", "source notified"),
]


# One of each kind, each in one of the forms; ``make test-all`` has every arrow in both.
OFTEN = frozenset(
    name.replace(" ", "-")
    for name in (
        "deltas posted by half-stage",
        "deltas posted by half in the driver-batch",
        "in a record-batch",
        "table committed, swept-stage",
        "refined-stage",
        "in the settlement-batch",
        "two of three withheld-stage",
        "report in its transaction-batch",
        "source notified and noted-stage",
        "combine committed-batch",
    )
)


SPARE = 2


@pytest.fixture(scope="module")
def lab(children, spark, server_home) -> Iterator[Lab]:
    """The batch's life, kept at every stop."""
    with standing(Lab, spark, server_home) as crash_lab:
        yield crash_lab


@pytest.mark.parametrize("form", [STAGE_FORM, BATCH_FORM])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_killed_process_is_gone_on_from(lab, children, case, form):
    """Killed there, a batch is published whole or not at all; run again, every record is
    published once or quarantined.
    """
    lab.go_to(case.stop)
    _kill(lab, children, case, form)
    _check_whole(lab, case)
    if case.swept:
        _sweep(lab)
    if not case.of_replay:
        _retry(lab, orders.Variant(mode=case.mode), form, whole=case.whole)
        if not case.swept:
            _check_first(lab)
    if case.to_the_end:
        _replay(lab, case.mode, form)
        _check_end(lab)


def test_nothing_outlives_the_killed(children):
    """A JVM ends when its driver was killed; no test had to kill one."""
    assert children.left_by_abandoned == []


def _kill(lab: Lab, children: Children, case: Case, form: str) -> None:
    lab.leave()
    if case.of_replay:
        orders.write(lab.folder, fixed=True)
    variant = orders.Variant(fixed=case.of_replay, mode=case.mode)
    child = children.take(spark=case.spark)
    try:
        order = lab.order(
            case.place,
            of=case.of,
            nth=case.nth,
            replay_of=ORIGINAL if case.of_replay else None,
            variant=variant,
            form=form,
        )
        child.carry_out(order)
        lab.wait_for_rollback()
    finally:
        children.end(child)


def _check_whole(lab: Lab, case: Case) -> None:
    """A reader sees what was published before, or that and all acked rows of the batch."""
    for sink in orders.SINKS:
        assert lab.shown(sink) in ((FIRST, ALL) if case.of_replay else (NOTHING, FIRST)), sink
    assert lab.shown("daily") in (NOTHING, orders.totals(ALL))


def _sweep(lab: Lab) -> None:
    """The sweeper decides the batch or asks for a run that goes on; one for which nothing ever
    ran waits long.
    """
    newest = lab.ledger.row("SELECT max(batch_id) AS id FROM batch").id
    for late in ("1 hour", "8 days"):
        swept = lab.ledger.sweep(now=_later(lab, late))
        assert swept.errors == {}
        decided = {settlement.batch_id for settlement in swept.settlements if settlement.decided}
        if newest in decided | {batch.batch_id for batch in swept.overdue}:
            return
    raise AssertionError(swept)


def _retry(
    lab: Lab, variant: orders.Variant, form: str, *, whole: bool = False, **which: int
) -> None:
    """The same run again, in this process. It goes on: a step that was committed keeps its run,
    unless all steps are to run again.
    """
    job = lab.job(variant)
    batch = opened(job, **which)
    before = _committed(lab, batch)
    run_whole(job, batch, form, whole=whole)
    if form == BATCH_FORM or not whole:
        assert before <= _committed(lab, batch)


def _committed(lab: Lab, batch: Batch) -> set[int]:
    query = "SELECT step_run_id FROM step_run WHERE batch_id = :batch AND state = 'committed'"
    return {row.step_run_id for row in lab.ledger.rows(query, batch=batch.batch_id)}


def _replay(lab: Lab, mode: str, form: str) -> None:
    """What failed again, with reference and stage fixed, until nothing is failed; the first of
    it may have died before.
    """
    orders.write(lab.folder, fixed=True)
    original = _original(lab)
    for number in (1, 2):
        variant = orders.Variant(fixed=True, mode=mode)
        _retry(lab, variant, form, replay_of=original, number=number)
        if lab.ledger.summary(original).roots.failed == 0:
            return


def _original(lab: Lab) -> int:
    rows = lab.ledger.rows("SELECT batch_id FROM batch WHERE kind = 'original'")
    assert len(rows) == 1
    return int(rows[0].batch_id)


def _check_first(lab: Lab) -> None:
    """After the retry sinks and ledger are as without the crash: what failed waits for its
    replay.
    """
    for sink in orders.SINKS:
        assert lab.shown(sink) == FIRST, sink
    assert lab.shown("daily") == NOTHING
    summary = lab.ledger.summary(_original(lab))
    assert (summary.roots.acked, summary.roots.failed, summary.roots.pending) == (190, 10, 0)
    _check_nothing_pending(lab)


def _check_end(lab: Lab) -> None:
    """After the replay sinks equal the oracle, and no batch is incomplete."""
    for sink in orders.SINKS:
        assert lab.shown(sink) == ALL, sink
    assert lab.shown("daily") == orders.totals(ALL)
    summary = lab.ledger.summary(_original(lab))
    counts = (
        summary.roots.total,
        summary.roots.acked,
        summary.roots.quarantined,
        summary.roots.pending,
    )
    assert (counts, summary.outcome) == ((200, 197, 3, 0), Outcome.QUARANTINED)
    for row in lab.ledger.rows("SELECT batch_id FROM batch"):
        assert lab.ledger.summary(row.batch_id).outcome is not Outcome.INCOMPLETE
    _check_nothing_pending(lab)
    acked = [notices[0] for (_, kind), notices in lab.notices().items() if kind == "acked"]
    assert Counter(chain(*acked)) == Counter(set(range(orders.COUNT)) - orders.UNREADABLE)


def _check_nothing_pending(lab: Lab) -> None:
    """The ledger knows of nothing open, running or unpublished; two notices of a kind are
    the same.
    """
    ledger = lab.ledger
    assert {row.status for row in ledger.rows("SELECT status FROM batch")} == {"settled"}
    assert {row.state for row in ledger.rows("SELECT state FROM sink_publication")} == {"published"}
    assert not ledger.rows("SELECT * FROM pending_root")
    assert not ledger.rows("SELECT * FROM step_run WHERE state = 'running'")
    swept = ledger.sweep(now=_later(lab))
    assert (swept.settlements, swept.overdue, swept.errors) == ((), (), {})
    assert all(notice == notices[0] for notices in lab.notices().values() for notice in notices)


def _later(lab: Lab, late: str = "1 hour") -> datetime:
    return lab.ledger.row(f"SELECT now() + interval '{late}' AS later").later
