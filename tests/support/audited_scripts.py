"""Audits of scripts in a folder of a test, and what their reports say."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from pyspark.sql import SparkSession

from ledger.auditing.report import AuditReport
from ledger.auditing.scripts.running import audit_script

# Spark's working folder is that of the tests.
START = """\
import os; from pyspark.sql import SparkSession, functions as F
HERE = os.getcwd()
spark = SparkSession.builder.getOrCreate()
orders = spark.read.csv(f"{HERE}/orders.csv", header=True)
"""
# 12 orders: 5 paid of a known shop, 2 of an unknown shop, 2 open, 2 without a state, 1 no number
ORDERS = """\
order_id,shop,state,cents
o1,s1,paid,1
o2,s1,paid,2
o3,s2,paid,3
o4,s2,paid,4
o5,s2,paid,5
o6,s9,paid,6
o7,s9,paid,7
o8,s1,open,8
o9,s1,open,9
o10,s1,,10
o11,s1,,11
o12,s1,paid,n/a
"""

Audit = Callable[..., AuditReport]


@pytest.fixture
def audited(spark: SparkSession, tmp_path: Path, monkeypatch) -> Iterator[Audit]:
    """Audit a script's text in a folder with ``orders.csv``, and require that it wrote nothing."""
    here, number = tmp_path / "job", iter(range(100))
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "orders.csv").write_text(ORDERS)

    def run(text: str, *arguments: str, start: str = START, **options) -> AuditReport:
        at = next(number)
        script = here / "job.py"
        script.write_text(start + dedent(text))
        copies = tmp_path / f"copies-{at}"
        copies.mkdir()
        before = sorted(here.rglob("*"))
        report = audit_script(script, arguments, copies, **options)
        assert sorted(here.rglob("*")) == before
        return report

    yield run
    for view in ("k", "known", "plain", "t"):
        spark.catalog.dropTempView(view)


def reasons(report: AuditReport, *, has_arrived: bool = False) -> Counter:
    """How many records were lost for each reason."""
    return Counter(
        {loss.reason: loss.records for loss in report.losses if loss.has_arrived == has_arrived}
    )


def numbers(report: AuditReport, source: str = "orders.csv") -> tuple[int, int, int, int]:
    """In, arrived, lost and intended of a source."""
    (result,) = [each for each in report.results if each.source.name == source]
    lost, intended = len(result.lost), len(result.intended)
    return result.source.records, result.arrived, lost, intended


def why(report: AuditReport) -> dict[str, str]:
    """Why outputs are not followed."""
    return {output.name: output.why for output in report.outputs if output.why}
