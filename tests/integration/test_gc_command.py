"""gc as the command and the sweeper run it."""

import json

import pytest
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import text

from ledger.airflow import sweeper_dag
from tests.support.ledgers import age_ledger, pipeline
from tests.support.retention import DAY, collect, command, kept, settled


@pytest.mark.usefixtures("environment")
def test_the_command_says_what_goes_and_what_stays(database, storage):
    """gc lists files and sizes by kind, and why old batches are kept; --dry-run changes nothing."""
    settled(database, kept(), storage)
    settled(database, kept(), storage, run_id="second", day=1, lose_sink=[0])
    age_ledger(database, 3 * DAY)
    said = command("gc", "--dry-run")
    assert said.exit_code == 0
    assert "3 files, 30 bytes, would be removed; batches that expired: 1" in said.stdout
    why = "chain: 1 batch kept, from batch 2 on: records are failed: replay or quarantine them"
    assert why in said.stdout
    assert len(storage.there()) == 6
    done = json.loads(command("gc", "--json").stdout)
    assert done["total"] == {"files": 3, "bytes": 30}
    assert [one["need"] for one in done["needed"]] == ["records_failed"]
    assert len(storage.there()) == 3
    assert "0 files, 0 bytes, removed; batches that expired: 0" in command("gc").stdout


@pytest.mark.usefixtures("environment")
def test_the_command_takes_another_keep(database, storage):
    """--keep is of pipelines that declare none, too, and at least a day."""
    settled(database, pipeline(), storage)
    age_ledger(database, 3 * DAY)
    assert "0 files" in command("gc", "--keep", "7d").stdout
    assert command("gc", "--keep", "1h").exit_code == 1
    assert "3 files" in command("gc", "--keep", "2d", "--pipeline", "chain").stdout


@pytest.mark.usefixtures("environment")
def test_the_command_says_what_it_could_not_remove(database, storage, tmp_path):
    """Its exit code is 1 then, and it names the folder."""
    settled(database, kept(), storage)
    with database.plain.begin() as connection:
        other = text("UPDATE step_run SET folder = :f WHERE step = 'sink'")
        connection.execute(other, {"f": str(tmp_path)})
    age_ledger(database, 3 * DAY)
    said = command("gc")
    assert said.exit_code == 1
    assert f"{tmp_path}: expected a folder whose name ends in 3" in said.stdout


@pytest.mark.usefixtures("environment")
def test_the_sweeper_has_a_task_that_removes(database, storage):
    """The task gc runs whatever became of the sweep, and returns what it has removed."""
    settled(database, kept(), storage)
    age_ledger(database, 3 * DAY)
    task = sweeper_dag(schedule=None).get_task("gc")
    assert (task.trigger_rule, task.upstream_task_ids) == ("all_done", {"sweep"})
    away = storage.folder.rename(storage.folder.with_name("unmounted"))
    with pytest.raises(AirflowFailException, match=r"batch 1: .*storage can be reached"):
        task.python_callable()
    away.rename(storage.folder)
    assert task.python_callable()["snapshots"] == {"files": 1, "bytes": 10}
    assert storage.there() == set()


def test_one_call_may_be_bounded(database, storage):
    """The sweeper's task lets so many batches expire at most, the oldest first; the next goes
    on."""
    for day in range(3):
        settled(database, kept(), storage, run_id=f"day{day}", day=day)
    assert collect(database, most=2).expired == (1, 2)
    assert collect(database, most=2).expired == (3,)


def test_a_sweep_looks_at_so_many_old_batches_at_most(database, storage):
    """What failed records keep for years is not looked at by each sweep, but each has its turn."""
    for day in range(3):
        settled(database, kept(), storage, run_id=f"day{day}", day=day, lose_sink=[0])
    seen = set()
    for _ in range(60):
        (found,) = collect(database, looks=1).needed
        seen.add(found.batch_id)
    assert seen == {1, 2, 3}
    assert len(collect(database, looks=3).needed) == 3
