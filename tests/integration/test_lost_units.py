"""A file of a source that is lost before its units are requested without what was quarantined."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from ledger.airflow import pipeline_dag
from ledger.core.commands import CLEAR_SETTLE
from ledger.core.states import Outcome
from ledger.errors import LostFileError
from ledger.execution import settle_and_follow
from ledger.pipeline import load as loading
from tests.support import unit_totals

TARGET = "tests.support.unit_totals:totals"
ADVICE = r"Put it back, then clear `settle` in Airflow or type `ackledger publish`; or reprocess"
PENDING = "units of it are yet to be replayed without their quarantined records"


class Case:
    """A batch that is settled, a record of whose unit was quarantined; and the file of its source.
    What is pending of it is asked by ``pending``."""

    def __init__(self, runner, folder):
        self.flow = unit_totals.totals(poison=7, max_replays=0)
        lines = [",".join(map(str, order.values())) for order in unit_totals.ORDERED["orders"]]
        (folder / "orders.csv").write_text("id,customer,cents\n" + "\n".join(lines) + "\n")
        self.run = runner(self.flow)
        batch = self.run.open()
        self.run.steps(batch)
        self.number, self.ledger = batch.batch_id, self.run.ledger
        assert self.ledger.settle(self.number).failed == 1
        self.ledger.keep_payloads(self.number)
        row = self.ledger.row(
            "SELECT f.path FROM batch_source s JOIN step_run_file f"
            " ON f.step_run_id = s.emit_run_id ORDER BY f.path LIMIT 1"
        )
        self.file = Path(row.path)
        self.aside = folder / "aside.parquet"

    def lose(self):
        self.file.rename(self.aside)

    def put_back(self):
        self.aside.rename(self.file)

    @property
    def pending(self):
        summary = self.ledger.summary(self.number)
        if summary.pending:
            assert summary.outcome is Outcome.INCOMPLETE
        return [work.follow_up for work in summary.pending]


@pytest.fixture
def case(runner, tmp_path):
    return Case(runner, tmp_path)


def test_a_driver_goes_on_without_it(case, caplog):
    """The error names the file and both ways out, and is raised once all else was tried: the sink
    behind the units names the file, too. With the file back the next driver does both."""
    case.lose()
    with pytest.raises(LostFileError, match=f"{re.escape(str(case.file))} .*{ADVICE}") as caught:
        settle_and_follow(case.run.job, case.number)
    assert f"the rest goes on without this: {caught.value}" in caplog.text
    assert f"sink 'sales' cannot publish batch {case.number}: file {case.file}" in caplog.text
    assert case.pending == ["rebuild", "publish"]
    case.put_back()
    settle_and_follow(case.run.job, case.number)
    assert case.pending == []
    assert case.ledger.summary(case.number).roots.failed == 1


def test_the_task_settle_goes_on_without_it(case, environment, monkeypatch, caplog):
    """It logs what is pending, with the file, and succeeds; the task ``complete`` fails with what
    is pending and how to do it. With the file back the cleared task requests the units."""
    monkeypatch.setattr(loading, "load_pipeline", lambda target: case.flow)
    dag = pipeline_dag(case.flow, schedule=None, target=TARGET)
    reports = {}
    task = SimpleNamespace(
        xcom_pull=lambda task_ids: case.number,
        xcom_push=lambda key, value: reports.update({key: value}),
    )
    case.lose()
    dag.get_task("settle").execute({"ti": task})
    (line,) = [record for record in caplog.records if "rebuild is pending" in record.getMessage()]
    assert line.levelname == "ERROR"
    assert re.search(
        f"rebuild is pending: file {re.escape(str(case.file))} .*{ADVICE}", line.getMessage()
    )
    assert "rebuild" in case.pending
    with pytest.raises(SystemExit) as ended:
        dag.get_task("complete").execute({"ti": task})
    assert ended.value.code == f"batch {case.number}: {PENDING}"
    lines = reports["report"].splitlines()
    assert f"Publish it: ackledger publish {TARGET} --batch {case.number}" in lines
    assert f"In Airflow: {CLEAR_SETTLE}" in lines
    case.put_back()
    dag.get_task("settle").execute({"ti": task})
    assert "rebuild" not in case.pending
