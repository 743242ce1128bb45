"""What Airflow's provider of OpenLineage sends of a pipeline's tasks, to a file."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from sqlalchemy import text

from tests.acceptance.dated import pipeline
from tests.support.places import ROOT

# Beside the environment: where the provider is installed, each DAG file takes longer to load.
PROVIDER = Path(sys.prefix) / "openlineage"
# Steps that were done before: the driver of each task has nothing to do, and ends well.
PROGRAM = """
import sys
from tests.support.airflow import dags_of

DAGS = '''
from pathlib import Path
from airflow.sdk import DAG, task
from ledger.airflow.spark_tasks import NUMBERING, drawn_number, spark_connect, submitted
from tests.acceptance.dated import pipeline

nothing = Path(__file__).with_name("nothing.py")
nothing.write_text("")
with DAG("dated", schedule=None, user_defined_macros={NUMBERING: drawn_number}) as dag:

    @task(task_id="open")
    def open_batch(**context):
        return context["dag_run"].conf["batch"]

    made = [
        submitted(
            spark_connect("sc://nowhere:1"), pipeline, "tests.acceptance.dated:pipeline", name,
            application=str(nothing), whole=name == "run",
        )
        for name in ("source", "middle", "sink", "run")
    ]
    open_batch() >> made[0] >> made[1] >> made[2] >> made[3]
'''
with dags_of(DAGS) as dags:
    sys.exit(dags["dated"].test(run_conf={"batch": int(sys.argv[1])}).state != "success")
"""
# Of each step: rows in, out, failed.
ROWS = {"source": (10, 10, 1), "middle": (9, 7, 0), "sink": (7, 7, 0)}


def done(ledger):
    """An open batch of the chain, all of whose steps are committed, with so many rows each."""
    batch = ledger.open(pipeline)
    roots = ledger.emit(batch, 10)
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots)
    with ledger.database.plain.begin() as connection:
        for step, (read, written, failed) in ROWS.items():
            connection.execute(
                text(
                    "UPDATE step_run SET input_rows = :i, output_rows = :o, failed_rows = :f"
                    " WHERE step = :s"
                ),
                {"i": read, "o": written, "f": failed, "s": step},
            )
        connection.exec_driver_sql(
            "INSERT INTO step_run_drop SELECT step_run_id, 'cancelled', 2 FROM step_run"
            " WHERE step = 'middle'"
        )
    return batch


@pytest.fixture
def events(ledger, tmp_path):
    """What is sent when a run's tasks have ended, by task; and what Airflow has logged."""

    def run(batch):
        path = tmp_path / "events"
        transport = {"type": "file", "log_file_path": str(path), "append": True}
        environment = {
            **os.environ,
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
            "AIRFLOW__OPENLINEAGE__NAMESPACE": "here",
            "ACKLEDGER_DATA": "/data",
            "ACKLEDGER_STORAGE": str(tmp_path / "storage"),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{PROVIDER}",
        }
        (tmp_path / "airflow" / "dags").mkdir(parents=True)
        command = [sys.executable, "-c", PROGRAM, str(batch.batch_id)]
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        events_ = [json.loads(line) for line in path.read_text().splitlines()]
        ended = {
            event["job"]["name"].removeprefix("dated."): event
            for event in events_
            if event["eventType"] == "COMPLETE"
        }
        return ended, ran.stdout

    return run


def named(datasets, kind, facet):
    """Datasets as namespace, name and rows."""
    return [
        (dataset["namespace"], dataset["name"], dataset[kind][facet]["rowCount"])
        for dataset in datasets
    ]


def read(event):
    """What a task has read."""
    return named(event["inputs"], "inputFacets", "inputStatistics")


def written(event):
    """What a task has written."""
    return named(event["outputs"], "outputFacets", "outputStatistics")


def test_each_task_says_what_its_step_has_read_and_written(ledger, events):
    """From the source's files by way of each step to the sink's folder, with rows; a task that runs
    all steps has the two ends. The facet says which batch it was, and what each step did with its
    rows, by the schema in the docs. Airflow's log has pipeline, batch and step as keys, on lines of
    others, too.
    """
    batch = done(ledger)
    result, log = events(batch)
    assert read(result["source"]) == [("file", "/data/in.csv", 10)]
    assert written(result["source"]) == [("ackledger", "dated.source", 10)]
    assert read(result["middle"]) == [("ackledger", "dated.source", 9)]
    assert written(result["middle"]) == [("ackledger", "dated.middle", 7)]
    assert read(result["sink"]) == [("ackledger", "dated.middle", 7)]
    assert written(result["sink"]) == [("file", "/data/out", 7)]
    assert read(result["run"]) == read(result["source"])
    assert written(result["run"]) == written(result["sink"])
    facets = {task: result[task]["run"]["facets"]["ackledger"] for task in (*ROWS, "run")}
    for facet in facets.values():
        Draft202012Validator(documented_schema()).validate(facet)
        assert (facet["pipeline"], facet["batchId"]) == ("dated", batch.batch_id)
        assert facet["intervalStart"] == "2013-01-01T00:00:00+00:00"
    (middle,) = facets["middle"]["steps"]
    assert {name: middle[name] for name in middle if name != "stepRunId"} == {
        "step": "middle",
        "kind": "stage",
        "rowsIn": 9,
        "rowsOut": 7,
        "rowsDropped": 2,
        "rowsFailed": 0,
    }
    (source,) = facets["source"]["steps"]
    assert (source["rowsIn"], source["rowsOut"], source["rowsFailed"]) == ROWS["source"]
    assert {
        step["step"]: (step["rowsIn"], step["rowsOut"], step["rowsFailed"])
        for step in facets["run"]["steps"]
    } == ROWS
    assert [step["step"] for step in facets["run"]["steps"]] == list(ROWS)
    ended = [line for line in log.splitlines() if "Command exited with return code 0" in line]
    about = f" batch_id={batch.batch_id} "
    assert [about in line and " pipeline=dated" in line for line in ended] == [True] * 4
    assert [re.findall(r" step=(\w+)", line) for line in ended] == [[row] for row in ROWS] + [[]]


def documented_schema():
    """The JSON schema of the facet, as docs/alerting.md has it."""
    page = (ROOT / "docs" / "alerting.md").read_text()
    return json.loads(page.partition("```json\n")[2].partition("```")[0])
