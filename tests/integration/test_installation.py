"""``ackledger check`` without a pipeline: what is installed, and whether it can work."""

import json
import shutil
from datetime import timedelta
from importlib import metadata

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from ledger.batch.upkeep import installation
from ledger.batch.upkeep.installation import examine_installation
from ledger.cli.base import app
from ledger.store.revisions import head
from tests.support.ledgers import pipeline

SUBJECTS = [
    "versions", "java", "spark-submit", "database", "storage", "roles", "clock", "sweeper",
    "batches",
]  # fmt: skip


def findings(settings, **options):
    """What was found, by subject: whether it is well, and the message."""
    return {
        setting.subject: (setting.ok, setting.message)
        for setting in examine_installation(settings, **options)
    }


def wrong(settings, subject):
    ok, message = findings(settings)[subject]
    assert not ok, message
    return message


@pytest.fixture
def by_url(database, settings):
    """Settings that name the ledger's server by its URL."""
    url = database.url.render_as_string(hide_password=False)
    return settings.model_copy(update={"database_url": url})


def test_a_sound_installation_is_reported_in_full(by_url, ledger):
    """Each thing with what was found, in the order in which one depends on another."""
    ledger.sweep()
    subjects = findings(by_url)
    assert list(subjects) == SUBJECTS
    assert all(ok for ok, _ in subjects.values()), subjects
    assert f"PySpark {metadata.version('pyspark')}" in subjects["versions"][1]
    assert "ledger_writer" in subjects["roles"][1]
    assert subjects["clock"][1] == "within 1 s of the database's"
    assert subjects["sweeper"][1].startswith("it ran ")


def test_a_server_of_spark_needs_no_java_here(by_url):
    """With a server as --spark that is looked at instead."""
    subjects = findings(by_url, remote="sc://127.0.0.1:1")
    assert {"java", "spark-submit"}.isdisjoint(subjects)
    assert "does not answer" in subjects["spark"][1]


def test_two_distributions_of_spark_must_agree(by_url, monkeypatch):
    """They write the same files, so that the second to be installed decides what runs."""
    version = metadata.version

    def differing(name):
        return "4.0.0" if name == "pyspark-client" else version(name)

    monkeypatch.setattr(metadata, "version", differing)
    assert "pip install --force-reinstall pyspark-client==" in wrong(by_url, "versions")


def test_without_spark_submit_no_task_can_start(by_url, monkeypatch):
    """Airflow's tasks look for it beside Python, and on PATH."""
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name: None if "spark-submit" in name else which(name)
    )
    assert "add the bin folder" in wrong(by_url, "spark-submit")


def test_without_airflow_no_command_needs_spark_submit(by_url, monkeypatch):
    """The command line starts Spark in its own process."""
    version = metadata.version

    def without(name):
        if name == "apache-airflow":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)
    subjects = findings(by_url)
    assert "spark-submit" not in subjects
    assert "no Airflow" in subjects["versions"][1]


def test_without_java_it_says_which_one_to_install(by_url, monkeypatch, tmp_path):
    """Neither by JAVA_HOME nor on PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "JAVA_HOME" in wrong(by_url, "java")


def test_a_storage_that_takes_no_file_is_reported(by_url, tmp_path):
    """A file stands where its folder is to be."""
    (tmp_path / "taken").write_text("")
    by_url.storage = str(tmp_path / "taken" / "storage")
    assert "ACKLEDGER_STORAGE" in wrong(by_url, "storage")


def test_a_schema_of_another_version_is_reported(by_url, database):
    """With what to do about it."""
    renamed = text("UPDATE alembic_version SET version_num = :new")
    with database.plain.begin() as connection:
        connection.execute(renamed, {"new": "of_tomorrow"})
    try:
        assert "install the newer ackledger" in wrong(by_url, "database")
    finally:
        with database.plain.begin() as connection:
            connection.execute(renamed, {"new": head()})


def test_a_database_that_does_not_answer_ends_the_questions(by_url):
    """Of what is in it nothing is said."""
    by_url.database_url = "postgresql+psycopg2://nobody@127.0.0.1:1/none"
    subjects = findings(by_url)
    assert list(subjects) == SUBJECTS[:5]
    assert "did not answer" in subjects["database"][1]


def test_a_user_without_the_writer_learns_what_to_grant(by_url, database):
    """And one who has it, what it cannot do without the others."""
    with database.plain.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS checking"))
        connection.execute(text("CREATE ROLE checking LOGIN IN ROLE ledger_reader"))
    by_url.database_url = database.url.set(username="checking").render_as_string(
        hide_password=False
    )
    try:
        message = wrong(by_url, "roles")
        assert "lacks ledger_writer: GRANT ledger_writer TO that user" in message
        with database.plain.begin() as connection:
            connection.execute(text("GRANT ledger_writer TO checking"))
        ok, message = findings(by_url)["roles"]
        assert ok
        assert "without ledger_owner (db upgrade, sweep)" in message
    finally:
        with database.plain.begin() as connection:
            connection.execute(text("DROP ROLE checking"))


def test_clocks_that_differ_are_named(by_url, monkeypatch):
    """By how much, and why it matters although the database's alone decides."""
    monkeypatch.setattr(installation, "MOST_SKEW", timedelta(seconds=-1))
    assert "follow one time server" in wrong(by_url, "clock")


def test_a_sweeper_that_is_missed_is_named(by_url, ledger):
    """Once a batch has been open for an hour without a sweep; not where none is open."""
    assert findings(by_url)["sweeper"] == (True, "it never ran")
    batch = ledger.open(pipeline())
    assert findings(by_url)["sweeper"] == (True, "it never ran")
    ledger.age_all(2 * 3600)
    message = wrong(by_url, "sweeper")
    assert f"it never ran, and batch {batch.batch_id} has been open since" in message
    ledger.sweep()
    assert findings(by_url)["sweeper"][0]
    ledger.age_all(3 * 3600)
    assert wrong(by_url, "sweeper").startswith("it ran 3 hours ago, and batch")


def test_a_batch_that_waits_for_a_machine_with_its_storage_is_named(by_url, ledger):
    """Once it has been open for an hour; one whose step has not run yet waits for that alone."""
    batch, _ = ledger.whole_batch(pipeline(), 10, lose_sink=[1], span=4)
    waiting = ledger.open(pipeline(), "other", day=1)
    assert findings(by_url)["batches"] == (True, "none waits for a machine with its storage")
    ledger.change("UPDATE batch SET opened_at = opened_at - interval '2 hours'")  # it ran so long
    assert findings(by_url)["batches"][0]
    ledger.age_all(2 * 3600)
    message = wrong(by_url, "batches")
    settle = f"ackledger settle {batch.batch_id}"
    assert message.startswith(
        f"1 batch can be settled only where the storage is seen: run {settle}"
    )
    ledger.settle(batch.batch_id)
    assert findings(by_url)["batches"] == (True, "none waits for a machine with its storage")
    assert ledger.rows("SELECT batch_id FROM batch WHERE status = 'open'") == [(waiting.batch_id,)]


def test_the_command_says_it_line_by_line(environment, database, monkeypatch):
    """Exit code 1 if one thing is wrong; as JSON for programs; an interval needs a pipeline."""
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 0, result.output
    assert [line.split()[1].rstrip(":") for line in result.output.splitlines()] == SUBJECTS
    rows = json.loads(CliRunner().invoke(app, ["check", "--json"]).stdout)
    assert [row["check"] for row in rows] == SUBJECTS
    monkeypatch.setattr(installation, "MOST_SKEW", timedelta(seconds=-1))
    assert CliRunner().invoke(app, ["check"]).exit_code == 1
    for options in (["--param", "a=b"], ["m:p", "--from", "2026-01-01"]):
        refused = CliRunner().invoke(app, ["check", *options])
        assert "an interval and parameters need MODULE:PIPELINE" in str(refused.exception)
