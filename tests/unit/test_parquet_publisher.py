"""A folder of Parquet files as a sink: what two publishers do that hung, lost their lock, or
came late.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.upkeep.checks import examine_environment, require
from ledger.errors import ConfigurationError
from ledger.settings import Settings
from ledger.sinks.base import Delivery, SinkPlan
from ledger.sinks.parquet import publisher as parquet
from ledger.sinks.parquet.publisher import ParquetPublisher
from ledger.storage import stores
from ledger.storage.manifest import DataFile, take_manifest

START = datetime(2013, 1, 1, tzinfo=UTC)


def staged(publisher, batch_id, rows, version=1, replaces=()):
    """A delivery of these numbers, staged in one file of a name of its own."""
    folder = publisher.staging(batch_id, version)
    Path(folder).mkdir(parents=True)
    pq.write_table(pa.table({"n": rows}), f"{folder}/part-{batch_id}-{version}.parquet")
    files: tuple[DataFile, ...] = take_manifest(folder).files
    own = ("p.s", batch_id, version, START, batch_id, folder, files, replaces)
    return Delivery(*own, pipeline_since=START)


def shown(path):
    """The rows of each folder that a reader sees."""
    return {
        folder.name: sorted(n for file in folder.rglob("*.parquet") for n in numbers(file))
        for folder in path.glob("ackledger_batch=*")
    }


def numbers(file):
    return pq.read_table(file, partitioning=None)["n"].to_pylist()


@pytest.fixture
def publisher(tmp_path):
    """Publishes below the test's folder."""
    return ParquetPublisher(str(tmp_path))


def test_a_publisher_that_hung_does_not_publish_what_was_replaced(publisher, tmp_path, monkeypatch):
    """The old batch's publisher wakes once the new batch is published in its place: it has
    nothing to rename.
    """
    old = staged(publisher, 1, [1, 2])
    new = staged(publisher, 10, [1, 2, 3], replaces=(1,))

    def hangs(manifest):
        monkeypatch.undo()
        publisher.publish(new)

    monkeypatch.setattr(parquet, "require_staged", hangs)
    with pytest.raises(OSError, match="No such file"):
        publisher.publish(old)
    assert shown(tmp_path) == {"ackledger_batch=10": [1, 2, 3]}


@dataclass(frozen=True)
class Late(ParquetPublisher):
    """Does what the test says before it renames what was staged, or removes it."""

    before_rename: list = field(default_factory=list)
    before_remove: list = field(default_factory=list)

    def _rename(self, before, after):
        if "run=" in before:
            for act in self.before_rename:
                act()
        super()._rename(before, after)

    def _remove(self, folder):
        if folder.count("=") == 1:  # the whole place of a batch
            for act in self.before_remove:
                act()
        super()._remove(folder)


@pytest.mark.parametrize("error", [OSError, ConfigurationError])
def test_what_was_moved_aside_is_shown_again(publisher, tmp_path, error):
    """Where the store refuses the rename, whatever it says."""
    publisher.publish(staged(publisher, 1, [1, 2]))

    def refuse():
        raise error("no")

    late = Late(str(tmp_path), before_rename=[refuse])
    both = staged(publisher, 10, [1, 2, 3], replaces=(1,))
    with pytest.raises(error, match="no"):
        late.publish(both)
    assert shown(tmp_path) == {"ackledger_batch=1": [1, 2]}
    publisher.publish(both)
    assert shown(tmp_path) == {"ackledger_batch=10": [1, 2, 3]}


class Hangs(BaseException):
    """A process that does nothing for now."""


def hang():
    raise Hangs


def hanging(publish, delivery):
    with pytest.raises(Hangs):
        publish(delivery)


def test_two_publishers_of_one_batch_lose_nothing(publisher, tmp_path, monkeypatch):
    """One hangs behind its look at the files, the other before it tidies up: what that one shows
    is neither taken away nor lost with its staging.
    """
    publisher.publish(staged(publisher, 1, [1, 2]))
    both = staged(publisher, 10, [1, 2, 3], replaces=(1,))
    first = Late(str(tmp_path), before_remove=[hang])
    place = f"{tmp_path}/_staging/batch=10"
    late = Late(str(tmp_path), before_rename=[lambda: publisher._remove(place)])

    def looks(manifest):
        monkeypatch.undo()
        hanging(first.publish, both)

    monkeypatch.setattr(parquet, "require_staged", looks)
    with pytest.raises(OSError, match="No such file"):
        late.publish(both)
    assert shown(tmp_path) == {"ackledger_batch=10": [1, 2, 3]}
    publisher.publish(both)
    assert shown(tmp_path) == {"ackledger_batch=10": [1, 2, 3]}


def test_what_was_replaced_does_not_come_back(publisher, tmp_path):
    """Of two publishers one has hidden the old rows and the other shows the new ones: the first
    takes nothing back.
    """
    publisher.publish(staged(publisher, 1, [1, 2]))
    both = staged(publisher, 10, [1, 2, 3], replaces=(1,))
    first = Late(str(tmp_path), before_remove=[hang])
    late = Late(str(tmp_path), before_rename=[lambda: hanging(first.publish, both)])
    with pytest.raises(OSError, match="No such file"):
        late.publish(both)
    assert shown(tmp_path) == {"ackledger_batch=10": [1, 2, 3]}


def test_a_rename_that_fails_brings_back_what_was_hidden(publisher, tmp_path):
    """As long as the new rows are staged, and not published, readers see the old ones."""
    publisher.publish(staged(publisher, 1, [1, 2]))
    new = staged(publisher, 10, [1, 2, 3], replaces=(1,))

    def full():
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        Late(str(tmp_path), before_rename=[full]).publish(new)
    assert shown(tmp_path) == {"ackledger_batch=1": [1, 2]}
    publisher.publish(new)
    assert shown(tmp_path) == {"ackledger_batch=10": [1, 2, 3]}


@pytest.mark.parametrize("rows", [[7], []])
def test_a_later_run_of_a_batch_takes_the_place_of_the_earlier(publisher, tmp_path, rows):
    """At least once a batch is published run by run, and also one without a file gives no room
    to the one before.
    """
    publisher.publish(staged(publisher, 1, [1, 2]))
    later = staged(publisher, 1, [7], version=2)
    if not rows:
        stores.remove_file(later.files[0].path)
        later = replace(later, files=())
    publisher.publish(later)
    assert shown(tmp_path) == {"ackledger_batch=1": rows}


@pytest.mark.parametrize("name", ["part-00000-5f.csv", "a.parquet", "city=Oslo/part-00000.parquet"])
def test_a_folder_with_data_of_others_is_refused(publisher, tmp_path, name):
    """Before the first batch, a check names the folder and a file in it. Once a batch is published,
    other files are not looked for.
    """
    strange = tmp_path / name
    strange.parent.mkdir(exist_ok=True)
    strange.touch()
    (tmp_path / "zone=1").mkdir()
    found = name.partition("/")[0]
    says = (
        rf"{tmp_path}: expected a folder without data, found '{found}' and 1 more, .* Name another"
    )
    with pytest.raises(ConfigurationError, match=says):
        publisher.plan(None, None)
    publisher.publish(staged(publisher, 1, [1, 2]))
    assert publisher.plan(None, None) == SinkPlan()


def test_a_run_is_refused_that_would_publish_beside_them(tmp_path, monkeypatch):
    """The checks before a run name the sink. An empty folder is all right."""
    monkeypatch.setenv("ACKLEDGER_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("ACKLEDGER_STORAGE", str(tmp_path / "storage"))
    pipeline = Pipeline("shop")
    pipeline.source("orders", FileSource("orders.csv", schema="n INT"))
    pipeline.sink("totals", ParquetSink("totals"), reads="orders")
    place = tmp_path / "output" / "totals"
    place.mkdir(parents=True)
    require(examine_environment(Settings(), pipeline, None, java=False))
    (place / "part-00000-5f.snappy.parquet").touch()
    with pytest.raises(ConfigurationError, match=f"{place}: expected a folder without data, found"):
        require(examine_environment(Settings(), pipeline, None, java=False))


def test_a_folder_may_have_other_sinks_and_notes(publisher, tmp_path):
    """Folders of other sinks, hidden files, and files without rows are no data of others."""
    for name in ("rejects", "part-owners", "_staging", "_old=1"):
        (tmp_path / name).mkdir()
    for name in ("_SUCCESS", ".part-00000.crc", "README.md", "_a.parquet"):
        (tmp_path / name).touch()
    assert publisher.plan(None, None) == SinkPlan()
    gone = ParquetPublisher(str(tmp_path / "new" / "place"))
    assert gone.plan(None, None) == SinkPlan()
