"""The real path: a scheduler, spark-submit for every step, and the ledger, on slices of real
data.
"""

import json
import re
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from demo import data, oracle
from scripts import airflow_services as services
from scripts import hints
from tests.support.airflow import SECRET, wait
from tests.support.flights import without_plane

MONTHS = ["2013-01-01"]
COUNTS = (
    "SELECT total, acked, recovered, failed, quarantined, pending FROM batch_status WHERE batch_id"
    " = {}"
)


def batches_of(airflow, pipeline, kind):
    """Batches of one pipeline, by interval."""
    return airflow.ledger.rows(
        f"SELECT batch_id, run_id, status FROM batch_status WHERE pipeline = '{pipeline}' AND kind"
        f" = '{kind}' ORDER BY interval_start, batch_id",
    )


@pytest.fixture(scope="module")
def lost(airflow):
    """Flights of January backfilled with half of the planes: ``flights`` lost a month, and what
    the ledger and the runs' tasks said of that before anything else was asked of them.
    """
    airflow.command(
        "backfill",
        "create",
        "--dag-id",
        "flights",
        "--from-date",
        "2013-01-01",
        "--to-date",
        "2013-01-31",
    )
    runs = wait(
        lambda: [run for run in airflow.runs("flights") if run["run_type"] == "backfill"],
        "runs of the backfill",
    )
    assert len(runs) == len(MONTHS)
    for run in runs:
        # The last task is red as long as flights are failed.
        assert airflow.ended("flights", run["dag_run_id"]) == "failed"
    batches = batches_of(airflow, "flights", "original")
    start = "SELECT interval_start FROM batch WHERE batch_id = {}"
    return SimpleNamespace(
        flights=[without_plane(airflow.data, month) for month, _ in enumerate(MONTHS, 1)],
        statuses=[batch.status for batch in batches],
        starts=[airflow.ledger.row(start.format(batch.batch_id))[0] for batch in batches],
        counts=[airflow.ledger.row(COUNTS.format(batch.batch_id)) for batch in batches],
        tasks=[airflow.tasks("flights", batch.run_id) for batch in batches],
        named=airflow.ledger.rows(
            "SELECT DISTINCT step, cause, operation FROM failed_root_detail"
            " WHERE pipeline = 'flights'",
        ),
    )


def test_a_backfill_names_what_was_lost(lost):
    """A backfill opens a batch with its month's interval, and every lost flight is named."""
    assert lost.statuses == ["settled"] * len(MONTHS)
    assert [f"{start:%Y-%m-%d}" for start in lost.starts] == MONTHS
    assert lost.counts == [(300, 300 - missing, 0, missing, 0, 0) for missing in lost.flights]
    states = {"open": "success", "run": "success", "complete": "failed"}
    assert lost.tasks == [states] * len(MONTHS)
    assert lost.named == [("with_plane", "lost", "inner join")]


def test_a_task_a_step_with_a_failed_record(airflow):
    """What the failed record left at a sink is withheld, the rest is published, the combine
    waits, and the last task is red. Each task of the settled batch that runs again says so,
    succeeds, and leaves the ledger as it was.
    """
    (airflow.data / "mail.csv").write_text("letter\na\n?\nb\n")
    run = airflow.trigger("mail", interval_start="2013-01-05", interval_end="2013-01-06")
    assert airflow.ended("mail", run) == "failed"
    steps = ("open", "bag", "received", "opened", "answered", "settle")
    states = {
        **dict.fromkeys((*steps, "withhold", "publish"), "success"),
        "combine": "skipped",
        "complete": "failed",
    }
    assert airflow.tasks("mail", run) == states
    note = airflow.api("GET", f"/dags/mail/dagRuns/{run}")["note"]
    assert note.startswith("ackledger: batch ")
    assert "1 of 3 records failed" in note
    (batch,) = batches_of(airflow, "mail", "original")
    assert airflow.ledger.row(COUNTS.format(batch.batch_id)) == (3, 2, 0, 1, 0, 0)
    assert (_letters(airflow, "received"), _letters(airflow, "answered")) == (["a", "b"],) * 2
    assert not (airflow.data / "counts").exists()
    before = airflow.ledger.rows("SELECT * FROM step_run ORDER BY 1")
    airflow.clear("mail", run, "open")
    assert airflow.ended("mail", run) == "failed"
    assert airflow.tasks("mail", run) == {**states, "withhold": "skipped"}
    assert airflow.ledger.rows("SELECT * FROM step_run ORDER BY 1") == before
    assert len(batches_of(airflow, "mail", "original")) == 1
    assert (_letters(airflow, "received"), _letters(airflow, "answered")) == (["a", "b"],) * 2
    message = "the batch is settled: answered changes nothing"
    airflow.log("mail", run, "answered", until=message)


def test_replay_by_form_completes_the_sink(airflow, lost):
    """The replay DAG starts a replay batch through the same DAG; the sink is then what pandas
    expects. What no replay recovers keeps the runs red, with what to do in log and link, until
    it is accepted by the form.
    """
    data.write_planes(airflow.data)
    asked = airflow.trigger("ledger_replay", pipeline="flights")
    assert airflow.ended("ledger_replay", asked) == "success"
    replays = wait(
        lambda: [run for run in airflow.runs("flights") if run["dag_run_id"].startswith("replay_")],
        "replays",
    )
    assert len(replays) == len(MONTHS)
    for run in replays:
        assert airflow.ended("flights", run["dag_run_id"]) == "failed"
        assert airflow.api("GET", f"/dags/flights/dagRuns/{run['dag_run_id']}")["note"].startswith(
            "replays "
        )
    _check_last_task(airflow, replays[0]["dag_run_id"])
    for batch, month, missing in zip(
        batches_of(airflow, "flights", "original"), (1,), lost.flights, strict=True
    ):
        unknown = without_plane(airflow.data, month)
        assert 0 < unknown < missing
        counts = airflow.ledger.row(COUNTS.format(batch.batch_id))
        assert counts == (300, 300 - unknown, missing - unknown, 0, unknown, 0)
        accepted = airflow.trigger("ledger_accept", batch=batch.batch_id, reason="unregistered")
        assert airflow.ended("ledger_accept", accepted) == "success"
        airflow.clear("flights", batch.run_id, "complete")
        assert airflow.ended("flights", batch.run_id) == "success"
    by = airflow.ledger.row("SELECT DISTINCT accepted_by, accepted_because FROM accepted_record")
    assert tuple(by) == ("admin", "unregistered")
    rows = oracle.sink_rows(airflow.data / "warehouse" / "departures")
    assert rows == oracle.expected_rows(airflow.data, MONTHS)
    assert set(rows.values()) == {1}
    assert oracle.day_rows(airflow.data / "warehouse" / "days") == oracle.expected_days(rows)
    punctual = DeltaTable(airflow.data / "warehouse" / "punctuality").to_pyarrow_table()
    flown = sum(count for row, count in rows.items() if not row[oracle.COLUMNS.index("cancelled")])
    assert sum(punctual["flights"].to_pylist()) == flown


def _check_last_task(airflow, run):
    """It fails without a traceback; its log has a command to paste, its link leads to the DAG
    that accepts.
    """
    assert airflow.tasks("flights", run)["complete"] == "failed"
    link = airflow.api("GET", f"/dags/flights/dagRuns/{run}/taskInstances/complete/links")
    assert link["extra_links"]["Next step"].endswith("/dags/ledger_accept")
    log = airflow.log("flights", run, "complete", until="Task exited")
    assert "ackledger replay jobs.flights:pipeline --batch" in log
    assert "Traceback" not in log
    assert "error_detail" not in log


@pytest.fixture(scope="module")
def letters(airflow):
    """A batch of which a step fails until its task is cleared, and a record until the sweeper has
    it replayed. With its run, and what was seen at each of these times.
    """
    folder = airflow.data / "letters"
    folder.mkdir()
    (folder / "first.csv").write_text("letter\na\nb\nc\n")
    (airflow.data / "known.csv").write_text("letter,nr\na,1\n")
    day = {"interval_start": "2013-01-01", "interval_end": "2013-01-02"}
    run = airflow.trigger("letters", **day, file="first")
    assert airflow.ended("letters", run) == "failed"
    failed = SimpleNamespace(
        tasks=airflow.tasks("letters", run),
        why=airflow.ledger.row("SELECT failure FROM step_run WHERE step = 'numbered'").failure,
    )
    (airflow.data / "known.csv").write_text("letter,number\na,1\nb,2\n")
    airflow.clear("letters", run, "run")
    assert airflow.ended("letters", run) == "failed"
    (batch,) = batches_of(airflow, "letters", "original")
    counts, number = COUNTS.format(batch.batch_id), batch.batch_id
    settled = SimpleNamespace(
        tasks=airflow.tasks("letters", run),
        counts=airflow.ledger.row(counts),
        acked=(airflow.data / f"acked-{number}.txt").read_text(),
        failed=(airflow.data / f"failed-{number}.txt").read_text(),
    )
    (airflow.data / "known.csv").write_text("letter,number\na,1\nb,2\nc,3\n")
    assert airflow.ended("ledger_sweeper", airflow.trigger("ledger_sweeper")) == "success"
    replay = wait(
        lambda: [run for run in airflow.runs("letters") if run["dag_run_id"].startswith("replay_")],
        "replay",
    )[0]
    assert airflow.ended("letters", replay["dag_run_id"]) == "success"
    replayed = SimpleNamespace(
        counts=airflow.ledger.row(counts),
        asked={asked["run_type"] for asked in airflow.runs("ledger_replay")},
    )
    return SimpleNamespace(
        run=run, batch_id=number, failed=failed, settled=settled, replayed=replayed
    )


def test_clear_before_settlement_and_automatic_replay(airflow, letters):
    """Failed and cleared tasks count nothing twice; the sweeper's asset event replays what
    failed, unasked. One driver runs the whole batch, with a line a step.
    """
    states = {"open": "success", "run": "failed", "complete": "upstream_failed"}
    assert letters.failed.tasks == states
    assert f"{airflow.data}/known.csv" in letters.failed.why
    assert letters.settled.tasks == {**states, "run": "success", "complete": "failed"}
    # of the second try
    again = airflow.log("letters", letters.run, "run", until="numbered of batch")
    assert re.search(r"numbered of batch \d+: 2 rows, \d+\.\d s", again)
    assert letters.settled.counts == (3, 2, 0, 1, 0, 0)
    assert (letters.settled.acked, letters.settled.failed) == ("ab", "c")
    assert letters.replayed.counts == (3, 3, 1, 0, 0, 0)
    assert "asset_triggered" in letters.replayed.asked

    assert airflow.ended("ledger_sweeper", airflow.trigger("ledger_sweeper")) == "success"
    assert (
        len([run for run in airflow.runs("letters") if run["dag_run_id"].startswith("replay_")])
        == 1
    )


def test_the_sweeper_starts_a_run_for_a_pending_notification(airflow, letters):
    """For a batch that was decided while its run was gone the sweeper starts one that notifies its
    source.
    """
    batch_id = letters.batch_id
    note = airflow.data / f"acked-{batch_id}.txt"
    note.unlink()
    with airflow.ledger.database.plain.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE batch_source SET notified_at = NULL WHERE batch_id = {batch_id}"
        )
        connection.exec_driver_sql(
            "UPDATE batch SET settled_at = settled_at - interval '1 hour', followed_at = NULL"
            f" WHERE batch_id = {batch_id}"
        )
    assert airflow.ended("ledger_sweeper", airflow.trigger("ledger_sweeper")) == "success"
    begun = f"after__{batch_id}__"
    run, *_ = wait(
        lambda: [r for r in airflow.runs("letters") if r["dag_run_id"].startswith(begun)], "the run"
    )
    assert airflow.ended("letters", run["dag_run_id"]) == "success"
    assert note.read_text() == "ab"


@pytest.mark.exhaustive
def test_a_run_without_room_and_an_interval_again(airflow):
    """A run without room waits, with a guarantee of its own, an interval larger than max_pending is
    read whole, and a reprocess replaces it.
    """
    folder = airflow.data / "inbox"
    folder.mkdir(exist_ok=True)
    (folder / "2013-01-01.csv").write_text("letter\na\nb\nc\n")
    (folder / "2013-01-02.csv").write_text("letter\nd\n")
    day = {"interval_start": "2013-01-01", "interval_end": "2013-01-02"}
    first = airflow.trigger("inbox", **day)
    opened = lambda: airflow.tasks("inbox", first).get("open") == "success"  # noqa: E731
    wait(opened, "the first batch")
    second_day = {"interval_start": "2013-01-02", "interval_end": "2013-01-03"}
    other = airflow.trigger("inbox", **second_day, guarantee="at_least_once")
    waiting = lambda: airflow.tasks("inbox", other).get("open") == "up_for_reschedule"  # noqa: E731
    wait(waiting, "a run that waits for room")
    assert airflow.ended("inbox", first) == "success"
    assert airflow.ended("inbox", other) == "success", airflow.tasks("inbox", other)
    assert _letters(airflow, "tray") == ["a", "b", "c", "d"]
    rows = airflow.ledger.rows(
        "SELECT DISTINCT extract(day FROM interval_start)::int AS day, guarantee FROM batch b JOIN"
        " pipeline p USING (pipeline_id) WHERE p.name = 'inbox' AND interval_start < '2013-01-04'"
        " ORDER BY 1",
    )
    assert [tuple(row) for row in rows] == [(1, "exactly_once"), (2, "at_least_once")]

    (folder / "2013-01-01.csv").write_text("letter\nx\ny\n")
    again = airflow.trigger("inbox", **day, reprocess=True)
    assert airflow.ended("inbox", again) == "success"
    assert _letters(airflow, "tray") == ["d", "x", "y"]


def _letters(airflow, sink):
    """The letters that a reader of a sink sees."""
    table = ds.dataset(airflow.data / sink, partitioning="hive", format="parquet").to_table()
    return sorted(table.column("letter").to_pylist())


def test_run_without_an_interval(airflow):
    """A run that has neither a date nor an interval in its conf fails in its first task, saying
    what to give.
    """
    run = airflow.trigger("letters", file="first")
    assert airflow.ended("letters", run) == "failed"
    airflow.log("letters", run, "open", until="its DAG has no schedule: trigger it with conf")


def test_second_run_over_an_interval(airflow, lost):
    """A second run over an interval that a batch has claimed is refused before it reads a
    record.
    """
    run = airflow.trigger("flights", interval_start="2013-01-01", interval_end="2013-02-01")
    assert airflow.ended("flights", run) == "failed"
    assert airflow.tasks("flights", run)["open"] == "failed"
    assert len(batches_of(airflow, "flights", "original")) == len(MONTHS)


def test_no_password_in_logs_or_templates(airflow, lost):
    """The ledger's password is in no task log, no rendered template and no argument."""
    leaks = [
        path
        for path in (airflow.home / "airflow" / "logs").rglob("*")
        if path.is_file() and SECRET in path.read_text(errors="replace")
    ]
    assert leaks == []
    run = batches_of(airflow, "flights", "original")[0].run_id
    instances = airflow.api("GET", f"/dags/flights/dagRuns/{run}/taskInstances")["task_instances"]
    assert any("--pipeline" in json.dumps(task["rendered_fields"]) for task in instances)
    assert SECRET not in json.dumps(instances)


def test_services_listen_on_loopback_only(airflow):
    """No service, and nothing that it started, can be reached from another machine."""
    listening = set()
    for service in services.running(airflow.home / "airflow"):
        leader = psutil.Process(service.pid)
        for process in [leader, *leader.children(True)]:
            with suppress(psutil.NoSuchProcess):  # a task's process that has just ended
                connections = process.net_connections("inet")
                # A JVM writes 127.0.0.1 in another way.
                listening |= {
                    connection.laddr.ip.removeprefix("::ffff:")
                    for connection in connections
                    if connection.status == psutil.CONN_LISTEN
                }
    assert listening == {"127.0.0.1"}


def test_secrets_of_the_services_are_private(airflow):
    """Passwords and keys can be read by their owner alone, and tasks do not inherit them."""
    for name in ("airflow.cfg", "passwords.json"):
        assert (airflow.home / "airflow" / name).stat().st_mode & 0o077 == 0
    assert not [name for name in airflow.environment if "SECRET" in name]


def test_make_up_names_the_pipelines_that_airflow_has(airflow):
    """What it suggests to backfill is a DAG of a pipeline: neither the sweeper nor a form."""
    port = int(airflow.base.rpartition(":")[2])
    result = hints.pipelines(port, airflow.password)
    assert "flights" in result
    assert not {name for name in result if name.startswith("ledger_")}
