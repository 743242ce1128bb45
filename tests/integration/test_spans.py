"""Spans: where roots share the rows of a run, a settlement decides just what it decides by root."""

import json
import random
import tempfile
import tracemalloc
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch import refining
from ledger.batch.outcome.alerts import still_open
from ledger.batch.recovery import finished
from ledger.batch.upkeep.retention import GcOptions, gc_once
from ledger.core.breaks import BreakFinder, hops
from ledger.core.declared_steps import DeclaredStep
from ledger.core.probes import listening
from ledger.core.states import BatchStatus
from ledger.databases import driver_errors
from ledger.deltas.kernel import Deltas
from ledger.deltas.root_files import LISTING
from ledger.deltas.spans import RootRange
from ledger.errors import LostFileError
from ledger.store.queries import batches
from ledger.store.queries import refining as queries
from tests.support.dying import Died, dies_at
from tests.support.ledgers import pipeline
from tests.support.posting import Delta
from tests.support.spanning import RootFolder

SPANS = [1, 4, 16, 4096]
DAY = timedelta(days=1)


def failures(ledger, roots, batch):
    """Of each root that failed in a batch, by its place among the roots, all that is kept of it
    but its ack value."""
    rows = ledger.rows(
        "SELECT root_id, step, cause, reason, producers, emitted_edges, acked_edges, own_failure,"
        " shared, missed_by FROM failed_root"
        " WHERE batch_id = :b ORDER BY root_id",
        b=batch.batch_id,
    )
    return [(row.root_id - roots.start, *tuple(row)[1:]) for row in rows]


def places(work):
    """The places that are reached while ``work`` is done."""
    reached = []
    with listening(lambda place, of: reached.append(place)):
        work()
    return reached


def root_folders(ledger):
    """The folders of root files that are there, and those that runs note."""
    there = [path for path in ledger.storage.rglob("run=*") if path.is_dir()]
    noted = ledger.rows("SELECT root_files FROM step_run WHERE root_files IS NOT NULL")
    return sorted(map(str, there)), sorted(row.root_files for row in noted)


def files_of(ledger, batch, step):
    """The folder of root files of a step's committed run."""
    row = ledger.row(
        "SELECT root_files FROM step_run WHERE batch_id = :b AND step = :s AND state = 'committed'",
        b=batch.batch_id,
        s=step,
    )
    return Path(row.root_files)


def two_sources():
    """Two sources that a stage reads, and a sink."""
    flow = Pipeline("two", message_timeout="10s")
    flow.source("source", FileSource("in.csv", schema="n INT"))
    flow.source("other", FileSource("in2.csv", schema="n INT"))

    @flow.stage(reads=["source", "other"])
    def middle(source, other):
        return source

    flow.sink("sink", ParquetSink("out"), reads="middle")
    return flow


def test_even_spans_settle_without_a_file(ledger):
    """All is acked: no root file is read, and none stays."""
    batch, _ = ledger.whole_batch(pipeline(), 10, span=4)
    rows = ledger.row("SELECT count(*), count(DISTINCT root_id) FROM ledger_delta")
    assert tuple(rows) == (9, 3)
    assert len(root_folders(ledger)[0]) == 3
    reached = places(lambda: ledger.settle(batch.batch_id))
    assert "refined" not in reached
    status = ledger.row("SELECT * FROM batch_status")
    assert (status.status, status.total, status.acked) == ("settled", 10, 10)
    assert root_folders(ledger) == ([], [])


def kept_bytes(ledger, batch):
    """By table the bytes of the rows that belong to a batch."""
    tables = ledger.rows(
        "SELECT c.table_name FROM information_schema.columns c JOIN information_schema.tables t"
        " USING (table_schema, table_name) WHERE c.column_name = 'batch_id'"
        " AND c.table_schema = current_schema() AND t.table_type = 'BASE TABLE'"
    )
    query = "SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM {} t WHERE t.batch_id = :b"
    sizes = {
        name: int(ledger.rows(query.format(name), b=batch.batch_id)[0][0]) for (name,) in tables
    }
    return {name: size for name, size in sizes.items() if size}


def test_a_clean_batch_leaves_nothing_of_its_roots(ledger):
    """Once it is settled and swept the ledger has a row for the batch, its source and each run: no
    more of 20,000 roots than of 20."""
    small, _ = ledger.whole_batch(pipeline("small"), 20, span=1)
    large, _ = ledger.whole_batch(pipeline("large"), 20_000, span=4096)
    assert {"ledger_delta"} <= kept_bytes(ledger, large).keys()
    for batch in (small, large):
        ledger.settle(batch.batch_id)
    ledger.sweep()
    left = [kept_bytes(ledger, batch) for batch in (small, large)]
    expected = {"batch", "batch_source", "publication", "step_run"}
    assert left[1].keys() == left[0].keys() == expected
    assert sum(left[1].values()) - sum(left[0].values()) < 64
    assert sum(left[1].values()) < 500 * len(expected - {"batch"})  # of three steps


@pytest.mark.parametrize("span", SPANS)
def test_the_hop_is_named(ledger, span):
    """Of a span that is not even just the roots that were lost fail, where they were."""
    batch, roots = ledger.whole_batch(
        pipeline(), 10, lose_middle=[1], lose_sink=[2, 4, 9], span=span
    )
    settlement = ledger.settle(batch.batch_id)
    assert (settlement.roots, settlement.failed) == (10, 4)
    rows = ledger.rows("SELECT root_id, step, cause, residue FROM failed_root ORDER BY root_id")
    assert [tuple(row) for row in rows] == [
        (roots[1], "middle", "lost", roots[1] + 1000),
        (roots[2], "sink", "lost", roots[2] + 2000),
        (roots[4], "sink", "lost", roots[4] + 2000),
        (roots[9], "sink", "lost", roots[9] + 2000),
    ]


def driven(ledger, seed, span, run_id):
    """A batch with a fan-out in which roots are lost, repeated, mistaken and failed at random."""
    draw = random.Random(seed)
    flow = pipeline(f"chain{span}", fan_out=True, guarantee=draw.choice(GUARANTEES))
    batch = ledger.open(flow, run_id)
    first = ledger.transact(batches.reserve_roots, 40, span)
    roots = range(first, first + 40)
    edges = {root: [draw.getrandbits(63) for _ in range(3)] for root in roots}
    source, emitted = ledger.start(batch.batch_id, "source"), RootRange(first, 40, span)
    rows = [Delta(root, emitted=edges[root][0], emitted_edges=1) for root in roots]
    ledger.post(source, rows, emitted=emitted)
    ledger.commit(source, rows, emitted=emitted)
    middle = []
    for root in roots:
        fate = draw.choice(["ok"] * 8 + ["lost", "fails"])
        if fate == "fails":
            middle.append(Delta(root, edges[root][0], 0, 1, 0, draw.choice(["bad", "worse"])))
        elif fate == "ok":
            middle.append(Delta(root, edges[root][0], edges[root][1] ^ edges[root][2], 1, 2))
    ledger.finish(ledger.start(batch.batch_id, "middle"), middle)
    arrived = [delta.root for delta in middle if delta.reason is None]
    for place, name in enumerate(("sink", "second"), 1):
        deltas = []
        for root in arrived:
            fate = draw.choice(["ok"] * 12 + ["lost", "thrice", "other", "fails", "shared"])
            if fate == "lost":
                continue
            edge = draw.getrandbits(63) if fate == "other" else edges[root][place]
            reason = "refused" if fate in ("fails", "shared") else None
            count = 3 if fate == "thrice" else 1
            deltas.append(Delta(root, edge, 0, count, 0, reason, fate == "shared"))
        ledger.finish(ledger.start(batch.batch_id, name), deltas)
    return batch, roots


GUARANTEES = ("exactly_once", "at_least_once")


@pytest.mark.parametrize("seed", range(8))
def test_spans_decide_as_roots_do(ledger, seed, monkeypatch):
    """Of the same random batch the same records fail, where and why, and the same sinks are ready
    to publish, whatever the span, and in however many parts single roots are looked at."""
    decided = {}
    if seed % 2:
        monkeypatch.setattr(refining, "MOST_ROWS", 16)
        monkeypatch.setattr(refining, "MOST_BYTES", 1)
    for span in SPANS:
        batch, roots = driven(ledger, seed, span, f"run{span}")
        settlement = ledger.settle(batch.batch_id)
        assert settlement.status is BatchStatus.SETTLED
        ready = ledger.rows(
            "SELECT sink, ready FROM publication WHERE batch_id = :b ORDER BY 1", b=batch.batch_id
        )
        decided[span] = failures(ledger, roots, batch), [tuple(row) for row in ready]
    assert decided[1][0]
    assert all(outcome == decided[1] for outcome in decided.values())


def test_a_fail_in_an_even_span(ledger):
    """A fail wins over zero: the span is even, and its roots are looked at all the same."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 8, span=4)
    ledger.run_middle(batch, roots, fail={roots[1]: "no plane"})
    ledger.run_sink(batch, [root for root in roots if root != roots[1]])
    assert ledger.rows("SELECT * FROM pending_root") == []
    assert "refined" in places(lambda: ledger.settle(batch.batch_id))
    assert ledger.rows("SELECT root_id, step, reason, residue FROM failed_root") == [
        (roots[1], "middle", "no plane", 0)
    ]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("place", [0, 1])
def test_a_sink_that_acked_a_row_of_a_failed_root_is_not_untouched(ledger, shared, place):
    """One sink fails a root of an even span, by itself or with others, and the other has acked its
    row: rows are to be left out of what both staged. A sink that has got none is ready."""
    flow = pipeline(fan_out=True)
    batch = ledger.open(flow)
    roots = ledger.emit(batch, 4, span=4)
    ledger.run_middle(batch, roots, edges=2)
    ledger.run_sink(batch, roots)
    deltas = [Delta(root, acked=root + 3000, acked_edges=1) for root in roots]
    failing = roots[place]
    deltas[place] = Delta(failing, failing + 3000, 0, 1, 0, "refused", shared)
    ledger.finish(ledger.start(batch.batch_id, "second"), deltas)
    assert ledger.settle(batch.batch_id).failed == 1
    ready = ledger.rows("SELECT sink, ready FROM publication ORDER BY sink")
    assert ready == [("second", False), ("sink", False)]


def test_a_sink_without_a_row_of_a_failed_root_is_untouched(ledger):
    """Its row of the span is of the other roots, the first of them among them."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 4, span=4)
    ledger.run_middle(batch, roots, fail={roots[0]: "no plane"})
    ledger.run_sink(batch, roots[1:])
    ledger.settle(batch.batch_id)
    assert ledger.rows("SELECT sink, ready FROM publication") == [("sink", True)]


@pytest.mark.parametrize("span", [1, 4])
def test_a_lost_record_of_a_span_has_its_operation(ledger, span):
    """The operation that a run named counts for the root that it lost, not for one that failed
    otherwise, and not for its span; the names of a run that was superseded count for none.
    """
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 4, span=span)
    for reason, lost in (("of an earlier run", roots), ("no partner", roots[1:3])):
        ledger.run_middle(batch, roots, lose=roots[1:2], fail={roots[2]: "bad"})
        ledger.change(
            "INSERT INTO step_run_loss SELECT step_run_id, 1, 'inner join', 'a.py:1', :r, 1"
            " FROM step_run WHERE step = 'middle' AND state = 'committed'", r=reason,
        )  # fmt: skip
        for root in lost:
            ledger.change(
                "INSERT INTO lost_root SELECT :b, step_run_id, :root, 1 FROM step_run"
                " WHERE step = 'middle' AND state = 'committed'", b=batch.batch_id, root=root,
            )  # fmt: skip
    ledger.run_sink(batch, [roots[0], roots[3]], lose=roots[3:])
    ledger.settle(batch.batch_id)
    rows = ledger.rows("SELECT root_id, reason, operation, place FROM failed_root ORDER BY 1")
    assert [tuple(row) for row in rows] == [
        (roots[1], "no partner", "inner join", "a.py:1"),
        (roots[2], "bad", None, None),
        (roots[3], None, None, None),
    ]
    assert ledger.rows("SELECT FROM lost_root") == []
    (row,) = ledger.rows("SELECT step, operation, reason, records FROM step_losses")
    assert tuple(row) == ("middle", "inner join", "no partner", 1)


def test_one_lost_and_another_acked_too_often(ledger):
    """In a span, too: counts of edges add up, and the XOR does not, for edges are hashes."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 4, span=4)
    ledger.run_middle(batch, roots)
    often = Delta(roots[1], acked=(roots[1] + 2000) ^ 77, acked_edges=2)
    rest = [Delta(root, acked=root + 2000, acked_edges=1) for root in roots[2:]]
    ledger.finish(ledger.start(batch.batch_id, "sink"), [often, *rest])
    assert ledger.row("SELECT open_edges, roots FROM pending_root") == (0, 4)
    ledger.settle(batch.batch_id)
    assert [row[:3] for row in failures(ledger, roots, batch)] == [
        (0, "sink", "lost"),
        (1, "sink", "doubled"),
    ]


def test_only_equal_edges_hide_each_other(ledger):
    """What a span cannot see: an edge that one root lost is the very one that another acked too
    often. Edges are hashes of 64 bits, so that happens by no accident; nor is it seen of two edges
    of one root."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 2, {}, span=2)
    middle = [Delta(root, root + 1000, 7, 1, 1) for root in roots]
    ledger.finish(ledger.start(batch.batch_id, "middle"), middle)
    sink = [Delta(roots[0], acked=7 ^ 7, acked_edges=2)]
    ledger.finish(ledger.start(batch.batch_id, "sink"), sink)
    assert ledger.rows("SELECT * FROM pending_root") == []
    assert ledger.settle(batch.batch_id).failed == 0


@pytest.mark.parametrize("spans", [(1, 4), (4, 1), (4, 16)])
def test_each_source_has_its_own_span(ledger, spans):
    """Rows of single roots and of spans meet in one batch: each is judged as what it is."""
    batch = ledger.open(two_sources())
    first = ledger.emit(batch, 6, span=spans[0])
    second = ledger.emit(batch, 6, span=spans[1], source="other")
    noted = ledger.row("SELECT count(root_files) FROM step_run")[0]
    assert noted == sum(span > 1 for span in spans)
    ledger.run_middle(batch, [*first, *second], lose=[first[1], second[2]])
    arrived = [root for root in (*first, *second) if root not in (first[1], second[2])]
    ledger.run_sink(batch, arrived, lose=[first[4], second[0]])
    assert ledger.settle(batch.batch_id).failed == 4
    rows = ledger.rows("SELECT m.root_id, f.step, m.source FROM failed_message m"
                       " JOIN failed_root f USING (root_id) ORDER BY 1")  # fmt: skip
    assert rows == sorted(
        [
            (first[1], "middle", "source"),
            (first[4], "sink", "source"),
            (second[0], "sink", "other"),
            (second[2], "middle", "other"),
        ]
    )


@pytest.mark.parametrize("foreign", [3, 7])
def test_rows_of_unknown_roots_hold_the_batch(ledger, foreign):
    """Of a root behind the range, in its last span or beyond: it stands for itself."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 2, span=4)
    ledger.run_middle(batch, [*roots, roots[0] + foreign])
    ledger.run_sink(batch, roots)
    settlement = ledger.settle(batch.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert "never read" in settlement.reason
    assert ledger.row("SELECT count(*) FROM failed_root")[0] == 0


@pytest.mark.parametrize("count", [0, 2])
def test_rows_of_unknown_roots_hold_a_batch_without_spans(ledger, count):
    """So do those of a batch whose source had no record."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, count)
    ledger.run_middle(batch, [*roots, 70_000])
    ledger.run_sink(batch, roots)
    settlement = ledger.settle(batch.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert "never read" in settlement.reason


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("DELETE FROM ledger_delta WHERE root_id = {span} AND acked_edges = 0", "source"),
        ("DELETE FROM ledger_delta WHERE root_id = {span} AND emitted_edges = 0", "sink"),
        (
            "UPDATE ledger_delta SET delta = 1 WHERE root_id = {span} AND acked_edges = 0",
            "source",
        ),
        ("UPDATE batch_source SET roots = roots + 4", "source"),
        ("UPDATE batch_source SET first_root = first_root + 4", "source"),
    ],
)
def test_damaged_spans_hold_the_batch(ledger, damage, named):
    """A source has a row for each span of its range, from the first to the last."""
    batch, roots = ledger.whole_batch(pipeline(), 10, span=4)
    ledger.change(damage.format(span=roots[4]))
    settlement = ledger.settle(batch.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert f"of {named} recorded" in settlement.reason


def test_a_batch_without_records_settles(ledger):
    """Its source has no span, whatever its span is."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 0, span=4)
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots)
    assert ledger.settle(batch.batch_id).status is BatchStatus.SETTLED


def test_a_replay_has_spans_of_its_own(ledger):
    """Roots of a replay share rows, and each is an attempt of its own message."""
    flow = pipeline(max_replays=1)
    batch, roots = ledger.whole_batch(flow, 10, lose_sink=[0, 1, 5, 9], span=4)
    ledger.settle(batch.batch_id)
    replay = ledger.replay(flow, batch.batch_id)
    again = ledger.emit_replay(replay, span=2)
    ledger.run_middle(replay, again, lose=[again[1]])
    ledger.run_sink(replay, [root for root in again if root != again[1]])
    assert ledger.settle(replay.batch_id).failed == 1
    rows = ledger.rows("SELECT message_id, status, root_id FROM failed_message ORDER BY 1")
    assert rows == [
        (roots[0], "recovered", roots[0]),
        (roots[1], "quarantined", again[1]),
        (roots[5], "recovered", roots[5]),
        (roots[9], "recovered", roots[9]),
    ]


def test_the_records_that_failed_wait(ledger):
    """With a backoff just those that failed have a time before which no replay takes them."""
    batch, roots = ledger.whole_batch(pipeline(replay_backoff="1h"), 10, lose_sink=[1, 6], span=4)
    ledger.settle(batch.batch_id)
    rows = ledger.rows("SELECT message_id, not_before > now() FROM failed_message ORDER BY 1")
    assert rows == [(roots[1], True), (roots[6], True)]


def test_what_is_pending_is_shown_by_span(ledger):
    """The view says of how many roots a row is."""
    batch = ledger.open(two_sources())
    first = ledger.emit(batch, 6, span=4)
    second = ledger.emit(batch, 2, source="other")
    rows = ledger.rows("SELECT root_id, open_edges, roots FROM pending_root ORDER BY 1")
    assert rows == [
        (first[0], 4, 4),
        (first[4], 2, 2),
        (second[0], 1, 1),
        (second[1], 1, 1),
    ]


# -- root files that are not as they were written ---------------------------------------------


def _change(folder):
    """Another edge in a file, which stays a whole one."""
    path = folder / "part-0.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0]["acked"] = (rows[0]["acked"] or 0) ^ 1
    pq.write_table(type(table).from_pylist(rows, table.schema), path)


def _lose_row(folder):
    """A row less."""
    path = folder / "part-0.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)


def _cut(folder):
    """Half of a file."""
    path = folder / "part-0.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [_change, _lose_row])
@pytest.mark.parametrize("step", ["source", "middle", "sink"])
def test_files_that_disagree_hold_the_batch(ledger, damage, step):
    """They can be read, and do not add up to what the ledger has by span: nothing is decided. The
    step runs again, and all is well."""
    batch, roots = ledger.whole_batch(pipeline(), 10, lose_sink=[1], span=4)
    folder = files_of(ledger, batch, step)
    damage(folder)
    settlement = ledger.settle(batch.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert f"of {step} posted other sums than its files in " in settlement.reason
    assert f"1 span differ, the one from root {roots[0]} on by" in settlement.reason
    assert str(folder) in settlement.reason
    if step == "sink":
        ledger.run_sink(batch, roots, [roots[1]])
        assert ledger.settle(batch.batch_id).failed == 1


@pytest.mark.parametrize(
    "damage",
    [
        _cut,
        lambda folder: (folder / "part-0.parquet").unlink(),
        lambda folder: (folder / LISTING).unlink(),
        lambda folder: (folder / LISTING).write_text("[{"),
        lambda folder: (folder / LISTING).write_text(json.dumps([{"path": "x"}])),
    ],
)
def test_files_that_are_lost_are_asked_for_again(ledger, damage):
    """Files that cannot be read hold nothing: the batch stays open, and the message says which step
    to run again."""
    batch, roots = ledger.whole_batch(pipeline(), 10, lose_sink=[1], span=4)
    damage(files_of(ledger, batch, "middle"))
    with pytest.raises(LostFileError, match=r"Run middle again: batch .* is open"):
        ledger.settle(batch.batch_id)
    assert "middle" in ledger.sweep().errors[batch.batch_id]
    assert ledger.row("SELECT status FROM batch").status == "open"
    assert finished(ledger.database, pipeline(), batch.batch_id) == {"source", "sink"}
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots, [roots[1]])
    assert ledger.settle(batch.batch_id).failed == 1


def test_a_settlement_without_the_storage_leaves_the_batch_open(ledger):
    """A sweeper on a machine that does not see it says what is needed, and raises nothing."""
    batch, _ = ledger.whole_batch(pipeline(), 10, lose_sink=[1], span=4)
    away = ledger.storage.rename(ledger.storage.parent / "away")
    swept = ledger.sweep()
    (settlement,) = swept.settlements
    assert settlement.status is BatchStatus.OPEN
    assert settlement.reason.startswith("needs refinement, and this machine cannot read")
    assert settlement.reason.endswith(f"ackledger settle {batch.batch_id}")
    assert swept.errors == {}
    assert ledger.row("SELECT status FROM batch").status == "open"
    facts = still_open(ledger.database, batch.batch_id)
    assert "needs refinement. Settle it on a machine that sees its storage: ackledger settle" in (
        facts.because
    )
    away.rename(ledger.storage)
    assert ledger.settle(batch.batch_id).failed == 1


@pytest.mark.parametrize("limit", ["IN_MEMORY", "MOST_BYTES"])
def test_a_temporary_file_that_cannot_be_written_is_tried_again(ledger, monkeypatch, limit):
    """The sweep goes on with other batches at once, and says what to do about this one."""
    batch, _ = ledger.whole_batch(pipeline(), 10, lose_sink=[1], span=4)
    no_pause = driver_errors.RETRYING.copy(sleep=lambda _: pytest.fail("the database is there"))
    monkeypatch.setattr(driver_errors, "RETRYING", no_pause)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    monkeypatch.setattr(refining, limit, 1)
    assert "set TMPDIR" in ledger.sweep().errors[batch.batch_id]
    assert ledger.row("SELECT status FROM batch").status == "open"


def test_a_run_that_noted_no_files_is_run_again(ledger):
    """Without them nothing is known of its roots."""
    batch, _ = ledger.whole_batch(pipeline(), 10, lose_sink=[1], span=4)
    ledger.change("UPDATE step_run SET root_files = NULL WHERE step = 'sink'")
    with pytest.raises(LostFileError, match="noted no folder"):
        ledger.settle(batch.batch_id)


@pytest.mark.parametrize("span", [1, 4])
def test_a_failed_root_has_rows(ledger, monkeypatch, span):
    """A refinement without the rows of a failed root decides nothing: whether a sink acked a row of
    it would not be known."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 8, span=span)
    ledger.run_middle(batch, roots, fail={roots[1]: "no plane"})
    ledger.run_sink(batch, [root for root in roots if root != roots[1]])
    nothing = np.empty(0, np.int64)
    monkeypatch.setattr(queries, "failed_roots", lambda *_: nothing)
    settlement = ledger.settle(batch.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert "1 record failed explicitly, and nothing that its runs posted" in settlement.reason


@pytest.mark.parametrize("span", [1, 4])
def test_a_root_that_failed_and_has_no_rows(ledger, span):
    """A run's word of a root that nothing was posted of, of this batch or of none, holds it."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 7, span=span)
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots)
    ledger.change(
        """
        INSERT INTO root_fail (batch_id, step_run_id, root_id, reason, shared)
        SELECT batch_id, step_run_id, :root, 'no plane', false FROM step_run WHERE step = 'middle'
        """,
        root=roots[-1] + 1,
    )
    settlement = ledger.settle(batch.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert "1 record failed explicitly, and nothing that its runs posted" in settlement.reason


# -- races and deaths -------------------------------------------------------------------------


def test_runs_that_changed_meanwhile_are_refined_again(ledger):
    """What was read of a run that was superseded since counts no more."""
    batch, roots = ledger.whole_batch(pipeline(), 10, lose_sink=[1], span=4)
    times = []

    def run_again(place, of):
        if place == "refined":
            times.append(place)
            if len(times) == 1:
                ledger.run_sink(batch, roots, [roots[7]])

    with listening(run_again):
        assert ledger.settle(batch.batch_id).failed == 1
    assert len(times) == 2
    assert ledger.row("SELECT root_id FROM failed_root")[0] == roots[7]


def test_two_that_refine_decide_once(ledger):
    """The one that comes second finds the batch decided, be it that its files are gone by then."""
    batch, _ = ledger.whole_batch(pipeline(), 10, lose_sink=[1], span=4)
    others = []

    def settle_first(place, of):
        if place == "refined" and not others:
            others.append(None)
            others[0] = ledger.settle(batch.batch_id)

    with listening(settle_first):
        second = ledger.settle(batch.batch_id)
    assert (others[0].decided, others[0].failed) == (True, 1)
    assert (second.decided, second.failed) == (False, 1)


def test_files_that_another_settlement_removed_are_not_missed(ledger, monkeypatch):
    """A reader whose files go under its hands looks whether the batch was decided."""
    batch, _ = ledger.whole_batch(pipeline(), 10, lose_sink=[1], span=4)
    read, others = refining.read_listing, []

    def settle_first(folder, advice):
        if not others:
            others.append(None)
            others[0] = ledger.settle(batch.batch_id)
        return read(folder, advice)

    monkeypatch.setattr(refining, "read_listing", settle_first)
    assert not ledger.settle(batch.batch_id).decided
    assert others[0].failed == 1


@pytest.mark.parametrize("place", ["refined", "settling", "root files pending"])
def test_a_death_in_a_settlement_costs_nothing(ledger, place):
    """A process that dies between refining, deciding and removing is followed by another; what it
    left of root files gc removes."""
    batch, roots = ledger.whole_batch(pipeline(), 10, lose_sink=[1], span=4)
    with dies_at(place), pytest.raises(Died):
        ledger.settle(batch.batch_id)
    assert len(root_folders(ledger)[0]) == 3
    settlement = ledger.settle(batch.batch_id)
    assert (settlement.status, settlement.failed) == (BatchStatus.SETTLED, 1)
    assert [row[:3] for row in failures(ledger, roots, batch)] == [(1, "sink", "lost")]
    removed = gc_once(ledger.database).removed["root files"]
    assert removed.files == (6 if place == "root files pending" else 0)
    assert root_folders(ledger) == ([], [])


# -- root files are removed -------------------------------------------------------------------


def test_a_batch_on_hold_keeps_its_root_files(ledger):
    """Its settlement is yet to come: a release reads them again."""
    flow = pipeline(hold_above=0.01)
    batch, _ = ledger.whole_batch(flow, 10, lose_sink=[1], span=4)
    assert ledger.settle(batch.batch_id).status is BatchStatus.HELD
    assert len(root_folders(ledger)[0]) == 3
    assert gc_once(ledger.database, now=ledger.now() + 30 * DAY).removed["root files"].files == 0
    assert ledger.release(batch.batch_id).failed == 1
    assert root_folders(ledger) == ([], [])


def test_an_abandoned_batch_loses_its_root_files(ledger):
    """Those of runs that had committed at once, of one that may still write a day later, by gc."""
    batch = ledger.open(two_sources())
    ledger.emit(batch, 6, span=4)
    run = ledger.start(batch.batch_id, "other")
    ledger.folder_of(run).end()
    ledger.age(batch.batch_id, 71)
    assert ledger.settle(batch.batch_id).status is BatchStatus.ABANDONED
    there, noted = root_folders(ledger)
    assert there == noted == [ledger.folders[run.run_id].path]
    assert gc_once(ledger.database).removed["root files"].files == 0
    later = ledger.now() + 2 * DAY
    assert (
        gc_once(ledger.database, GcOptions(dry_run=True), now=later).removed["root files"].files
        == 1
    )
    assert root_folders(ledger)[0] == there
    assert gc_once(ledger.database, now=later).removed["root files"].files == 1
    assert root_folders(ledger) == ([], [])


def test_a_person_abandons_a_batch_with_root_files(ledger):
    """What a superseded run left goes, too."""
    batch = ledger.open(pipeline())
    ledger.emit(batch, 6, span=4)
    ledger.change("UPDATE step_run SET state = 'superseded'")
    assert ledger.abandon(batch.batch_id)
    assert root_folders(ledger) == ([], [])


def test_gc_removes_those_of_runs_that_never_count(ledger):
    """A step that ran again: the files of the run before are of no use, be the batch decided or
    not."""
    batch, roots = ledger.whole_batch(pipeline(), 10, span=4)
    ledger.run_sink(batch, roots)
    assert len(root_folders(ledger)[0]) == 4
    assert gc_once(ledger.database).removed["root files"].files == 2
    assert len(root_folders(ledger)[0]) == 3
    assert ledger.settle(batch.batch_id).failed == 0


# -- memory -----------------------------------------------------------------------------------


def test_an_expired_batch_is_refined_part_by_part(ledger, monkeypatch):
    """A step is missing, so nearly every span is uneven: what is in memory at once has a bound, the
    files of each run are read once, and all roots fail."""
    monkeypatch.setattr(refining, "MOST_ROWS", 32)
    parts, reads = [], []
    part_of, read = queries.posted, refining.read_roots
    monkeypatch.setattr(refining, "read_roots", lambda *asked: reads.append(asked) or read(*asked))
    monkeypatch.setattr(
        queries, "posted", lambda *asked: parts.append(len(asked[-1])) or part_of(*asked)
    )
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 50, span=4)
    ledger.run_middle(batch, roots)
    ledger.start(batch.batch_id, "sink")
    ledger.age(batch.batch_id, 71)
    assert ledger.settle(batch.batch_id).failed == 50
    assert (parts, len(reads)) == ([4, 4, 4, 1], 2)
    rows = ledger.rows("SELECT DISTINCT step, cause, own_failure FROM failed_root")
    assert rows == [("sink", "late", False)]


STEPS = [
    DeclaredStep("step0", "source", ()),
    DeclaredStep("step1", "stage", ("step0",)),
    DeclaredStep("step2", "sink", ("step1",)),
]


def peak(monkeypatch, tmp_path, roots):
    """The most memory that a refinement of so many roots takes, all of which are uneven."""
    span, runs = 64, 3
    first = np.arange(0, roots, span, dtype=np.int64)
    root = np.arange(roots, dtype=np.int64)
    listed = []
    for number in range(runs):
        folder = RootFolder(str(tmp_path / f"{roots}" / "a" / "b" / f"run={number}"))
        for start in range(0, roots, 1 << 14):
            some = root[start : start + (1 << 14)]
            folder.add(Deltas(some, some, some, some * 0, some * 0 + 1))
        folder.end()
        listed.append(queries.CommittedRun(number, f"step{number}", folder.path))

    def posted(connection, batch_id, run_ids, spans):
        rows = np.asarray(spans)[:, None] + np.arange(span)
        rows = np.where(rows < roots, rows, 0)
        xor = np.bitwise_xor.reduce(rows, axis=1)
        counts = np.minimum(span, roots - np.asarray(spans))
        of_run = Deltas(np.asarray(spans), xor, xor, counts * 0, counts)
        return dict.fromkeys(range(runs), of_run)

    monkeypatch.setattr(queries, "posted", posted)
    monkeypatch.setattr(queries, "failed_roots", lambda *_: np.empty(0, np.int64))
    ranges, finder = (RootRange(0, roots, span),), BreakFinder(hops(STEPS))
    asked = refining.UnbalancedSpans(1, tuple(listed), ranges, first, finder)
    tracemalloc.start()
    try:
        with refining.refine(lambda work: work(None), asked) as refinement:
            assert refinement.rows == roots
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_roots(monkeypatch, tmp_path):
    """Eight times as many roots, all uneven, take what a part of them takes."""
    monkeypatch.setattr(refining, "MOST_ROWS", 1 << 15)
    monkeypatch.setattr(refining, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(refining, "IN_MEMORY", 1 << 20)
    few, many = (peak(monkeypatch, tmp_path, roots) for roots in (1 << 16, 1 << 19))
    assert many < 1.5 * few


def test_reserved_spans_overlap_no_others(ledger):
    """The first root of a range is a multiple of its span."""
    first = ledger.transact(batches.reserve_roots, 5, 8192)
    assert first % 8192 == 0
    assert ledger.transact(batches.reserve_roots, 5) == first + 8192
