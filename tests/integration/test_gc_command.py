"""gc as the command and the sweeper run it."""

import json

import pytest
from sqlalchemy import text

from ledger.airflow import sweeper_dag
from ledger.airflow.versions import AirflowFailException
from tests.support.ledgers import pipeline
from tests.support.retention import DAY, command, expiring


@pytest.mark.usefixtures("environment")
def test_the_command_says_what_goes_and_what_stays(archive):
    """gc lists files and sizes by kind, and why old batches are kept; --dry-run changes nothing."""
    archive.settled(expiring())
    archive.settled(expiring(), run_id="second", day=1, lose_sink=[0])
    archive.age_all(3 * DAY)
    result = command("gc", "--dry-run")
    assert result.exit_code == 0
    assert "3 files, 30 bytes, would be removed; batches that expired: 1" in result.stdout
    why = "chain: 1 batch kept, from batch 2 on: records are failed: replay or quarantine them"
    assert why in result.stdout
    assert len(archive.runs()) == 6
    done = json.loads(command("gc", "--json").stdout)
    assert done["total"] == {"files": 3, "bytes": 30}
    assert [need["need"] for need in done["needed"]] == ["records_failed"]
    assert len(archive.runs()) == 3
    assert "0 files, 0 bytes, removed; batches that expired: 0" in command("gc").stdout


@pytest.mark.usefixtures("environment")
def test_the_command_takes_another_keep(archive):
    """--keep is of pipelines that declare none, too, and at least a day."""
    archive.settled(pipeline())
    archive.age_all(3 * DAY)
    assert "0 files" in command("gc", "--keep", "7d").stdout
    assert command("gc", "--keep", "1h").exit_code == 1
    assert "3 files" in command("gc", "--keep", "2d", "--pipeline", "chain").stdout


@pytest.mark.usefixtures("environment")
def test_the_command_says_what_it_could_not_remove(archive, tmp_path):
    """Its exit code is 1 then, and it names the folder."""
    archive.settled(expiring())
    with archive.database.plain.begin() as connection:
        other = text("UPDATE step_run SET folder = :f WHERE step = 'sink'")
        connection.execute(other, {"f": str(tmp_path)})
    archive.age_all(3 * DAY)
    result = command("gc")
    assert result.exit_code == 1
    assert f"{tmp_path}: expected a folder whose name ends in 3" in result.stdout


@pytest.mark.usefixtures("environment")
def test_the_sweeper_has_a_task_that_removes(archive):
    """The task gc runs whatever became of the sweep, and returns what it has removed."""
    archive.settled(expiring())
    archive.age_all(3 * DAY)
    task = sweeper_dag(schedule=None).get_task("gc")
    assert (task.trigger_rule, task.upstream_task_ids) == ("all_done", {"sweep"})
    away = archive.folder.rename(archive.folder.with_name("unmounted"))
    with pytest.raises(AirflowFailException, match=r"batch 1: .*storage can be reached"):
        task.python_callable()
    away.rename(archive.folder)
    assert task.python_callable()["snapshots"] == {"files": 1, "bytes": 10}
    assert archive.runs() == set()


def test_one_call_may_be_bounded(archive):
    """The sweeper's task lets so many batches expire at most, the oldest first; the next goes
    on."""
    for day in range(3):
        archive.settled(expiring(), run_id=f"day{day}", day=day)
    assert archive.collect(most=2).expired == (1, 2)
    assert archive.collect(most=2).expired == (3,)


def test_a_sweep_looks_at_so_many_old_batches_at_most(archive):
    """What failed records keep for years is not looked at by each sweep, but each has its turn."""
    for day in range(3):
        archive.settled(expiring(), run_id=f"day{day}", day=day, lose_sink=[0])
    seen = set()
    for _ in range(60):
        (result,) = archive.collect(looks=1).needed
        seen.add(result.batch_id)
    assert seen == {1, 2, 3}
    assert len(archive.collect(looks=3).needed) == 3
