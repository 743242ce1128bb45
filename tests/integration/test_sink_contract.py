"""What every kind of sink promises, over all kinds and one that is not of the package."""

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable

from ledger import DeltaSink, ParquetSink, Pipeline, PostgresSink, Upsert
from ledger.errors import DeclarationError, FencedError, LostFileError, StageError
from ledger.settings import Settings
from ledger.sinks.base import Delivery, Publisher, Sink, SinkPlan, planned
from ledger.sinks.parquet.publisher import ParquetPublisher
from ledger.sinks.registry import KINDS
from ledger.storage.manifest import take_manifest
from ledger.store import embedded
from tests.support import sqlite_sink
from tests.support.sqlite_sink import SqliteSink

LEDGER = Path(__file__).parents[2] / "ledger"
SCHEMA = pa.schema([("id", pa.int64()), ("label", pa.string())])
START = datetime(2026, 1, 1, tzinfo=UTC)
Rows = list[tuple[int, str]]


class Died(BaseException):
    """A process that was killed: nothing of it may catch this."""


@dataclass
class Place:
    """A sink of one kind and what a reader sees of it.

    ``instant``: an object and its function by whose call readers come to see something. ``misfit``:
    what the sink takes no rows of. ``keeps_versions``: whether its own record distinguishes an
    older version from a newer one. ``copies_rows``: whether staged files may go once they are
    published. ``constrain``: lets the place refuse rows whose label is ``bad``.
    """

    sink: Sink
    rows: Callable[[], Rows]
    instant: tuple[object, str]
    misfit: pa.Schema
    settings: Settings
    keeps_versions: bool = True
    copies_rows: bool = True
    constrain: Callable[[], None] | None = None

    def publisher(self) -> Publisher:
        """A new one, as each process makes it."""
        return self.sink.publisher(self.settings, "shop", "out")

    def stage(self, batch_id, *labels, version=None, replaces=(), schema=SCHEMA) -> Delivery:
        """A delivery of a row for each label, in two files, as a step run leaves it."""
        publisher, version = self.publisher(), version or batch_id
        planned("the sink", publisher, schema)
        folder = Path(publisher.staging(batch_id, version))
        folder.mkdir(parents=True)
        rows = pa.table(
            [[batch_id * 100 + n for n in range(len(labels))], list(labels)], schema=SCHEMA
        )
        if publisher.keeps_tracking:
            rows = rows.append_column("_ackledger_root", rows["id"])
        for number, part in enumerate((rows[:1], rows[1:])):
            if len(part):
                pq.write_table(part, folder / f"part-{number}-{batch_id}-{version}.parquet")
        files = take_manifest(str(folder)).files
        start = START + timedelta(days=batch_id)
        end = start + timedelta(days=1)
        own = ("shop.out", batch_id, version, start, batch_id, str(folder), files, replaces, end)
        delivery = Delivery(*own, pipeline_since=START)
        publisher.plan(schema, delivery)
        return delivery

    @contextmanager
    def at_instant(self, act: Callable[[str], None]) -> Iterator[None]:
        """Call ``act`` before, and after, whatever readers come to see."""
        owner, name = self.instant
        function = getattr(owner, name)

        def watched(*arguments, **named):
            act("before")
            result = function(*arguments, **named)
            act("after")
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, watched)
            yield


def _parquet(settings: Settings, folder: Path, url: str) -> Place:
    def rows() -> Rows:
        files = (folder / "out").glob("ackledger_batch=*/**/*.parquet")
        return _sorted(pq.ParquetFile(file).read() for file in files)

    misfit = pa.schema([*SCHEMA, ("ackledger_batch", pa.string())])
    instant = (ParquetPublisher, "_rename")
    return Place(
        ParquetSink("out"), rows, instant, misfit, settings, keeps_versions=False, copies_rows=False
    )


def _delta(settings: Settings, folder: Path, url: str) -> Place:
    def rows() -> Rows:
        path = str(folder / "out")
        there = DeltaTable.is_deltatable(path)
        return _sorted([DeltaTable(path).to_pyarrow_table()] if there else [])

    misfit = pa.schema([("id", pa.string()), ("label", pa.string())])
    instant = (DeltaTable, "create_write_transaction")
    return Place(DeltaSink("out"), rows, instant, misfit, settings, copies_rows=False)


def _postgres(**options) -> Callable[[Settings, Path, str], Place]:
    def make(settings: Settings, folder: Path, url: str) -> Place:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)

        def do(*statements):
            with engine.begin() as connection:
                for statement in statements:
                    connection.exec_driver_sql(statement)

        def rows() -> Rows:
            if not sa.inspect(engine).has_table("out"):
                return []
            with engine.connect() as connection:
                cursor = connection.exec_driver_sql("SELECT id, label FROM out ORDER BY 1, 2")
                return [tuple(row) for row in cursor]

        do("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        misfit = pa.schema([("id", pa.string()), ("label", pa.string())])
        instant = (sa.engine.base.Transaction, "commit")

        def constrain():
            do("ALTER TABLE out ADD CHECK (label <> 'bad')")

        sink = PostgresSink(url, "out", **options)
        return Place(sink, rows, instant, misfit, settings, constrain=constrain)

    return make


def _sqlite(settings: Settings, folder: Path, url: str) -> Place:
    path = folder / "shop.db"

    def rows() -> Rows:
        with sqlite3.connect(path) as connection:
            if not connection.execute("PRAGMA table_info(out)").fetchall():
                return []
            return connection.execute("SELECT id, label FROM out ORDER BY 1, 2").fetchall()

    def constrain():
        with sqlite3.connect(path) as connection:
            connection.executescript(
                "ALTER TABLE out RENAME TO old;"
                "CREATE TABLE out (id INTEGER, label TEXT CHECK (label <> 'bad'), "
                "ackledger_batch INTEGER); INSERT INTO out SELECT * FROM old; DROP TABLE old"
            )

    misfit = pa.schema([("id", pa.string()), ("label", pa.string())])
    sink = SqliteSink("shop.db", "out")
    return Place(sink, rows, (sqlite_sink, "end"), misfit, settings, constrain=constrain)


def _sorted(tables) -> Rows:
    return sorted((row["id"], row["label"]) for table in tables for row in table.to_pylist())


PLACES = {
    "parquet": _parquet,
    "delta": _delta,
    "append": _postgres(),
    "upsert": _postgres(mode=Upsert("id")),
    "replace_interval": _postgres(mode="replace_interval"),
    "sqlite": _sqlite,
}


@pytest.fixture(scope="module")
def target(server_home):
    """A database that PostgreSQL sinks write to."""
    return embedded.ensure_database(embedded.start(server_home), "contract")


@pytest.fixture(params=PLACES)
def place(request, settings, tmp_path, target):
    """An empty place of each kind."""
    return PLACES[request.param](settings, tmp_path, target)


def test_every_kind_is_held_to_the_contract(settings, tmp_path, target):
    """A kind that the registry has is among those below."""
    kinds = {type(make(settings, tmp_path, target).sink) for make in PLACES.values()}
    assert kinds == {*KINDS, SqliteSink}


def test_a_kind_is_known_in_its_folder_alone():
    """Nothing else of the package names a kind: but its front door, and the lab, which moves every
    sink into folders of its own."""
    outside = [path for path in LEDGER.rglob("*.py") if "sinks" not in path.parts]
    kinds = re.compile(r"ledger\.sinks\.(delta|parquet|postgres)\b")
    naming = {path.name for path in outside if kinds.search(path.read_text())}
    assert naming == {"__init__.py", "lab.py"}


def test_a_declaration_has_all_members(place):
    """A pipeline takes the sink; two of one place are refused in the sink's own words."""
    pipeline = Pipeline("shop")
    pipeline.sink("out", place.sink, reads="rows")
    same = replace(place.sink)
    assert (same.identity, same.place) == (place.sink.identity, place.sink.place)


@pytest.mark.parametrize("sink", ["out", SqliteSink, object()])
def test_what_is_no_sink_is_refused(sink):
    """A path, a class, or an object that lacks members gets an error that says what a sink is."""
    with pytest.raises(DeclarationError, match=r"sink 'out': expected one of DeltaSink, .* found"):
        Pipeline("shop").sink("out", sink, reads="rows")


def test_staging_is_invisible(place):
    """No reader sees rows that are staged, and looked at."""
    delivery, publisher = place.stage(1, "a", "b"), place.publisher()
    assert publisher.plan(SCHEMA, delivery) == SinkPlan()
    assert place.rows() == []


def test_each_run_stages_in_a_folder_of_its_own(place):
    """No two runs of any batch share one."""
    publisher = place.publisher()
    folders = [publisher.staging(batch, version) for batch in (1, 2, 12) for version in (1, 2, 12)]
    assert len(set(folders)) == len(folders)


def test_publish_is_once(place):
    """The first call publishes the rows; the same again, by whichever process, is a no-op."""
    delivery = place.stage(1, "a", "b", "c")
    place.publisher().publish(delivery)
    rows = place.rows()
    assert [label for _, label in rows] == ["a", "b", "c"]
    for _ in range(2):
        place.publisher().publish(delivery)
        assert place.rows() == rows


def test_publish_again_needs_no_staged_file(place):
    """What is published is known by the sink's own record, after its staged files are gone."""
    delivery = place.stage(1, "a")
    place.publisher().publish(delivery)
    if place.copies_rows:
        for file in delivery.files:
            Path(file.path).unlink()
    place.publisher().publish(delivery)
    assert place.rows() == [(100, "a")]


def test_batches_in_any_order(place):
    """Batches of other intervals stand beside each other, whichever comes first."""
    for batch in (3, 1, 2):
        place.publisher().publish(place.stage(batch, "a", "b"))
    assert [row[0] for row in place.rows()] == [100, 101, 200, 201, 300, 301]


def test_an_empty_delivery_is_published(place):
    """No rows are a version, too: it takes the place of the one before."""
    older = place.stage(1, "a", version=1)
    place.publisher().publish(older)
    empty = place.stage(1, version=2)
    assert empty.files == ()
    for _ in range(2):
        place.publisher().publish(empty)
        assert place.rows() == []
    if place.keeps_versions:
        with pytest.raises(FencedError):
            place.publisher().publish(older)


def test_a_newer_version_supersedes(place):
    """A later run of a batch replaces the rows of the earlier one, more or fewer."""
    place.publisher().publish(place.stage(2, "other"))
    for version, labels in enumerate((["a", "b"], ["c"], ["d", "e", "f"]), 4):
        place.publisher().publish(place.stage(1, *labels, version=version))
        assert place.rows() == [
            *((100 + n, label) for n, label in enumerate(labels)),
            (200, "other"),
        ]


def test_a_newer_run_keeps_what_it_has_staged(place):
    """A publish of an older run of a batch leaves alone what a newer one has staged since."""
    older, newer = place.stage(1, "old", version=3), place.stage(1, "new", version=5)
    place.publisher().publish(older)
    assert place.rows() == [(100, "old")]
    place.publisher().publish(newer)
    assert place.rows() == [(100, "new")]


def test_an_older_version_is_refused(place):
    """An earlier run that is late changes nothing; a place that keeps versions says so."""
    older, newer = place.stage(1, "old", version=3), place.stage(1, "new", version=5)
    place.publisher().publish(newer)
    if place.keeps_versions:
        with pytest.raises(FencedError):
            place.publisher().publish(older)
    else:
        with pytest.raises(LostFileError):
            place.publisher().publish(older)
    assert place.rows() == [(100, "new")]


def test_lost_staging_is_not_taken_for_published(place):
    """A newer run whose staged files are lost is not published, whatever is there of the batch."""
    place.publisher().publish(place.stage(1, "old", version=3))
    newer = place.stage(1, "new", version=5)
    for file in newer.files:
        Path(file.path).unlink()
    shutil.rmtree(newer.folder)
    with pytest.raises(LostFileError):
        place.publisher().publish(newer)
    assert place.rows() == [(100, "old")]


def test_what_was_replaced_does_not_come_back(place):
    """A batch that another one replaced is refused when it is published late, or never was."""
    first, never = place.stage(1, "a"), place.stage(2, "b")
    place.publisher().publish(first)
    place.publisher().publish(place.stage(3, "c", replaces=(1, 2)))
    for late in (first, never):
        with pytest.raises(FencedError if place.keeps_versions else LostFileError):
            place.publisher().publish(late)
    assert place.rows() == [(300, "c")]


def test_rows_are_replaced_at_once(place):
    """Before the switch readers see the old batches, after it the new one; a folder's readers may
    briefly see neither, and never both."""
    for batch in (1, 2, 4):
        place.publisher().publish(place.stage(batch, "old"))
    seen = []
    delivery = place.stage(3, "new", "new", replaces=(1, 2))
    with place.at_instant(lambda when: seen.append(place.rows())):
        place.publisher().publish(delivery)
    old = [(100, "old"), (200, "old"), (400, "old")]
    new = [(300, "new"), (301, "new"), (400, "old")]
    assert (seen[0], seen[-1], place.rows()) == (old, new, new)
    if place.keeps_versions:  # a folder swaps others for its own one by one
        assert all(rows in (old, new) for rows in seen)
    else:
        assert all({*rows} <= {*old} or rows == new for rows in seen)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_publish_that_dies_is_finished_by_the_next(place, when):
    """Killed at any arrow, before or after: the next call publishes the rows, once."""
    for killed in count(1):
        base = killed * 10
        old, new = place.stage(base, "old"), place.stage(base + 1, "new", replaces=(base,))
        place.publisher().publish(old)
        others = [row for row in place.rows() if row[0] < base * 100]
        arrows = []

        def die(at, arrows=arrows, killed=killed):
            arrows.extend([at] if at == when else [])
            if len(arrows) == killed and at == when:
                raise Died

        try:
            with place.at_instant(die):
                place.publisher().publish(new)
        except Died:
            seen = place.rows()
            assert not {(base * 100, "old"), (base * 100 + 100, "new")} <= {*seen}
        for _ in range(2):
            place.publisher().publish(new)
            assert place.rows() == [*others, (base * 100 + 100, "new")]
        if len(arrows) < killed:
            break
    assert killed > 1


def test_a_lost_staged_file_changes_nothing(place):
    """A staged file that is gone, or was changed, is named; readers see what they saw."""
    place.publisher().publish(place.stage(1, "old"))
    for batch, damage in enumerate((Path.unlink, lambda path: path.write_bytes(b"short")), 2):
        delivery = place.stage(batch, "a", "b", replaces=(1,))
        damage(Path(delivery.files[1].path))
        with pytest.raises(LostFileError, match="part-1"):
            place.publisher().publish(delivery)
        assert place.rows() == [(100, "old")]


def test_what_does_not_fit_is_refused_before_anything_changes(place):
    """Columns that the place cannot take are named before rows are staged."""
    place.publisher().publish(place.stage(1, "a"))
    publisher = place.publisher()
    with pytest.raises(StageError, match=r"the sink does not take the rows: .*(id|batch)"):
        planned("the sink", publisher, place.misfit)
    assert publisher.plan(None, None) == publisher.plan(SCHEMA, None) == SinkPlan()
    assert place.rows() == [(100, "a")]


@pytest.mark.parametrize("place", ["delta", "append", "upsert", "replace_interval"], indirect=True)
def test_rows_without_columns_are_refused(place):
    """A stage that hands on nothing but its anchors is named before its rows are staged."""
    with pytest.raises(StageError, match=r"expected columns, found none: select some"):
        planned("the sink", place.publisher(), pa.schema([]))


@pytest.mark.parametrize("place", ["append", "upsert", "replace_interval", "sqlite"], indirect=True)
def test_rows_that_are_refused_are_found_by_position(place):
    """A place that refuses rows says which, as it is now, and takes none of the delivery."""
    place.publisher().publish(place.stage(1, "a"))
    place.constrain()
    delivery = place.stage(2, "b", "bad", "c", replaces=(1,))
    (refusals,) = place.publisher().plan(SCHEMA, delivery).refusals
    assert refusals.position == 1
    assert "constraint" in refusals.reason
    with pytest.raises(StageError):
        place.publisher().publish(delivery)
    assert place.rows() == [(100, "a")]
