"""Where records share rows of the ledger: what is posted by span, what is in files by root."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.core.probes import listening
from ledger.deltas import spans
from ledger.deltas.kernel import Deltas, merge_deltas
from ledger.deltas.root_files import LISTING, read_listing, read_roots
from ledger.deltas.spans import Spans
from ledger.errors import IntegrityError
from ledger.sources.files import text
from ledger.spark.folding import ahead, runners
from ledger.store.queries import runs
from tests.support import folds
from tests.support.folds import COUNT, pairs, scattered, thrice, turned, unordered, write_numbers

WAYS = ["driver", "threads", "executors", "exchange"]
by_each_way = pytest.mark.parametrize("folded_by", WAYS, indirect=True)
chain = partial(folds.chain, guarantee="at_least_once")


def two(tmp_path, more=COUNT):
    """Two sources, the second of so many records, -> stage -> sink."""
    write_numbers(tmp_path, more, name="more.csv")
    pipeline = Pipeline("two", guarantee="at_least_once")
    pipeline.source("numbers", FileSource("in*.csv", schema="n INT"))
    pipeline.source("more", FileSource("more.csv", schema="n INT"))

    @pipeline.stage(reads=["numbers", "more"])
    def both(numbers, more):
        return numbers.unionByName(more)

    pipeline.sink("out", ParquetSink("out"), reads="both")
    return pipeline


@pytest.fixture(autouse=True)
def numbers(tmp_path):
    """A file of numbers; what writes another in its place."""
    write_numbers(tmp_path)
    return partial(write_numbers, tmp_path)


def posted(run, step):
    """What the ledger has of the committed run of a step, one row a span."""
    rows = run.ledger.rows(
        "SELECT root_id, delta, acked, d.emitted_edges, d.acked_edges FROM ledger_delta d"
        " JOIN step_run USING (step_run_id) WHERE step = :s AND state = 'committed'",
        s=step,
    )
    return merge_deltas([Deltas(*np.array([tuple(row) for row in rows], np.int64).T)])


def files_of(run, step):
    """Those of the committed run of a step that count."""
    query = "SELECT root_files FROM step_run WHERE step = :s AND state = 'committed'"
    folder = run.ledger.row(query, s=step).root_files
    files = read_listing(folder)
    names = {LISTING, *(Path(file.path).name for file in files)}
    paths = [*Path(folder).iterdir()]
    assert {path.name for path in paths} == names
    assert not [path for path in (*paths, Path(folder)) if path.stat().st_mode & 0o077]
    return files


def by_root(run, step):
    """What the committed run of a step adds to each root."""
    parts = list(read_roots(files_of(run, step)))
    return merge_deltas(parts)


def same(some, other):
    """Whether both have the same deltas."""
    return all(map(np.array_equal, some.columns, other.columns))


@by_each_way
@pytest.mark.parametrize("span", [4, 32])
@pytest.mark.parametrize(
    ("stage", "options"),
    [(thrice, {}), (turned, {}), (unordered, {}), (scattered, {}), (pairs, {})],
    ids=["in order", "in stretches", "unordered", "scattered", "of two records"],
)
def test_the_ledger_has_by_span_what_files_have_by_root(
    runner, folded_by, stage, options, span, monkeypatch
):
    """XOR and sums, whichever way a fold takes; over all runs each root is 0."""
    monkeypatch.setattr(runners, "PART_BYTES", 8 * COUNT)  # exchanged into more parts than files
    monkeypatch.setattr(spans, "MOST_SPANS", -(-COUNT // span))
    run = runner(chain(stage, **options))
    batch = run.open()
    run.steps(batch)
    ranges = run.ledger.transact(runs.emits, batch.batch_id)
    assert [(some.roots, some.span, some.first_root % span) for some in ranges] == [
        (COUNT, span, 0)
    ]
    steps = [step.name for step in run.job.pipeline.steps()]
    roots = {step: by_root(run, step) for step in steps}
    for step in steps:
        assert len(roots[step].root) == COUNT
        assert same(posted(run, step), Spans(ranges).to_spans(roots[step])), step
        assert len(posted(run, step).root) == -(-COUNT // span)
        row = run.ledger.row("SELECT * FROM step_run WHERE step = :s", s=step)
        assert row.emitted_edges == roots[step].emitted_edges.sum()
        assert row.acked_edges == roots[step].acked_edges.sum()
    assert not merge_deltas([*roots.values()]).delta.any()


@by_each_way
def test_a_fold_that_is_not_proved_leaves_nothing_that_counts(runner, folded_by, monkeypatch):
    """The files of what the sink has read once more are those of its run."""
    monkeypatch.setattr(spans, "MOST_SPANS", 5)
    run = runner(chain(thrice))
    batch = run.open()
    run.step(batch, "numbers")
    run.step(batch, "thrice")
    folds.prove_nothing(monkeypatch)
    run.step(batch, "out")
    folder = run.ledger.row("SELECT root_files FROM step_run WHERE step = 'out'").root_files
    files = read_listing(folder)
    roots = merge_deltas(list(read_roots(files)))
    ranges = run.ledger.transact(runs.emits, batch.batch_id)
    assert (len(roots.root), roots.acked_edges.sum()) == (COUNT, 3 * COUNT)
    assert same(posted(run, "out"), Spans(ranges).to_spans(roots))


@by_each_way
def test_a_run_that_is_refused_has_no_files_that_count(runner, folded_by, monkeypatch):
    """They are listed once all else of the fold is done; the folder is noted before."""
    monkeypatch.setattr(spans, "MOST_SPANS", 5)
    run = runner(chain(thrice, acks="on_read"))
    batch = run.open()
    run.step(batch, "numbers")
    with run.job.database.owner.begin() as connection:
        connection.exec_driver_sql("UPDATE step_run SET emitted_edges = emitted_edges + 1")
    with pytest.raises(IntegrityError, match="rows read by thrice"):
        run.step(batch, "thrice")
    folder = Path(run.ledger.row("SELECT root_files FROM step_run WHERE step_run_id = 2")[0])
    assert not (folder / LISTING).exists()


@by_each_way
def test_a_replay_has_its_messages_by_root(runner, folded_by, tmp_path, monkeypatch):
    """And what fails: neither is by span."""
    (tmp_path / "in.csv").write_text("n\n" + "x\n" * 6 + "1\n")
    run = runner(chain(thrice))
    settlement = run.settled(run.open())
    assert settlement.failed == 6
    monkeypatch.setattr(spans, "MOST_SPANS", 2)
    replaying = runner(chain(thrice))
    replay = replaying.open_replay(settlement.batch_id)
    replaying.step(replay, "numbers")
    first = replaying.ledger.transact(runs.emits, replay.batch_id)[0].first_root
    query = "SELECT root_id FROM {} WHERE batch_id = :b ORDER BY 1"
    for table in ("replay_root", "root_fail"):
        rows = replaying.ledger.rows(query.format(table), b=replay.batch_id)
        assert [row.root_id for row in rows] == [*range(first, first + 6)], table
    messages = replaying.ledger.rows("SELECT DISTINCT message_id FROM replay_root")
    assert len(messages) == 6


@pytest.mark.parametrize("folded_by", ["threads", "executors"], indirect=True)
def test_a_span_that_is_posted_in_parts_settles(runner, folded_by, tmp_path, monkeypatch):
    """Files of a source share a span, whose rows are posted apart: it is one span all the same."""
    monkeypatch.setattr(ahead, "MOST_ROWS", 1)
    monkeypatch.setattr(runners, "MOST_DELTAS", 1)  # the driver merges no deltas of several windows
    monkeypatch.setattr(text, "HERE", 0)  # each file is read by a task, and leaves one
    half = "".join(f"{n}\n" for n in range(COUNT // 2))
    for name in ("in.csv", "in2.csv"):
        (tmp_path / name).write_text(f"n\n{half}")
    monkeypatch.setattr(spans, "MOST_SPANS", 5)
    run = runner(chain(thrice))
    batch = run.open()
    run.steps(batch)
    rows = run.ledger.row("SELECT delta_rows FROM step_run WHERE step = 'numbers'").delta_rows
    assert rows > COUNT // 4
    assert run.ledger.settle(batch.batch_id).failed == 0


def test_few_records_each_have_a_row(runner, tmp_path):
    """Nothing is written by root."""
    run = runner(chain(thrice))
    batch = run.open()
    run.steps(batch)
    (some,) = run.ledger.transact(runs.emits, batch.batch_id)
    assert some.span == 1
    rows = run.ledger.rows("SELECT DISTINCT root_files FROM step_run")
    assert [row.root_files for row in rows] == [None]
    assert not list(tmp_path.rglob("_roots"))
    assert len(posted(run, "thrice").root) == COUNT


def test_many_records_share_rows(runner, numbers):
    """As few as leave at most 65,536 rows of each run; these go with the commit."""
    numbers(70_000)
    run = runner(chain(unordered))
    batch = run.open()
    places = []
    with listening(lambda place, of: places.append(place)):
        run.steps(batch)
    assert "posting deltas" not in places
    (some,) = run.ledger.transact(runs.emits, batch.batch_id)
    assert (some.roots, some.span) == (70_000, 2)
    for step in ("numbers", "unordered", "out"):
        row = run.ledger.row("SELECT * FROM step_run WHERE step = :s", s=step)
        assert row.delta_rows == len(posted(run, step).root) == 35_000
    assert same(posted(run, "out"), Spans([some]).to_spans(by_root(run, "out")))


def test_sources_have_spans_of_their_own(runner, tmp_path, monkeypatch):
    """The rows of one are by root, those of the other by span, of whichever run."""
    monkeypatch.setattr(spans, "MOST_SPANS", 3)
    run = runner(two(tmp_path, 2))
    batch = run.open()
    run.steps(batch)
    rows = {step: len(posted(run, step).root) for step in ("numbers", "more", "both", "out")}
    assert rows == {"numbers": 3, "more": 2, "both": 5, "out": 5}
    ranges = run.ledger.transact(runs.emits, batch.batch_id)
    assert same(posted(run, "both"), Spans(ranges).to_spans(by_root(run, "both")))
    assert len(by_root(run, "both").root) == COUNT + 2


@pytest.mark.parametrize(("few", "ahead"), [(COUNT, False), (COUNT - 1, True)])
def test_the_commit_takes_some_rows_for_each_source(runner, tmp_path, few, ahead):
    """More of them go ahead of it."""
    run = runner(two(tmp_path), few_rows=few)
    places = []
    with listening(lambda place, of: places.append((place, of))):
        run.steps(run.open())
    of_steps = {of for place, of in places if place == "posting deltas"}
    assert of_steps == ({"numbers", "more", "both", "out"} if ahead else set())


def test_what_is_not_tracked_has_no_spans(runner, monkeypatch):
    """No row of the ledger is shared where there is none."""
    monkeypatch.setattr(spans, "MOST_SPANS", 5)
    pipeline = chain(thrice)
    pipeline.tracking = False
    run = runner(pipeline)
    batch = run.open()
    run.steps(batch)
    (some,) = run.ledger.transact(runs.emits, batch.batch_id)
    assert some.span == 1
