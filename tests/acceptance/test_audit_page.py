"""The report of an audit in Chromium: what it shows, on which screens, and its picture."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from pyspark.sql import SparkSession

from ledger.auditing.report import AuditReport
from tests.support.audited_shop import shop_report
from tests.support.audits import loss, report, source
from tests.support.browser import check_accessible, chromium, keep

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1080, "height": 2000}


@pytest.fixture(scope="module")
def screen() -> Iterator[Browser]:
    """Chromium, without an Airflow."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """The report on the job of the README."""
    return shop_report(spark, tmp_path_factory.mktemp("shop"))


def test_the_picture_of_a_report(audited: AuditReport, screen: Browser, tmp_path: Path) -> None:
    """The page has the numbers, the graph with a red arrow for each operation that loses records,
    and the losses; an arrow's label leads to its loss.
    """
    file = tmp_path / "report.html"
    audited.save_html(file)
    with screen.new_context(viewport=DESK, color_scheme="light") as context:
        page = context.new_page()
        page.goto(file.as_uri())
        graph = page.get_by_role("group", name="Graph of the job: sources")
        expect(graph).to_contain_text("my_job.py:7")
        _, drawing, lost = page.locator("section").all()[:3]
        first = [lost.get_by_role("heading", level=2), lost.locator("details").first]
        keep(page, "audit", [page.locator("header"), drawing], first)
        graph.get_by_role("link").first.click()
        assert "#loss-" in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_page_is_accessible(
    screen: Browser, tmp_path: Path, scheme: str, size: dict[str, int]
) -> None:
    """Contrast, names and order are right in both schemes, every section is shown, and only tables
    and the graph scroll sideways; it needs no script.
    """
    orders = source("s3://warehouse/" + "landing/" * 9 + "orders.csv")
    losses = [
        loss(orders, 0, 20, place=f"{'job' * 20}.py:7"),
        loss(orders, 20, 5, is_intended=True, reason="condition false: x"),
        loss(orders, 30, 5, has_arrived=True),
        loss(orders, 40, 5, is_intended=True, note="optional side of an outer join"),
        loss(orders, 50, 5, operation="explode", reason="tags is empty"),
    ]
    note = f"`rm -r {'out/' * 40}` at job.py:3 is executed"
    mixed = replace(report(losses), notes=[note], failure="ended with 3")
    mixed.write_expected(tmp_path / "expected.json")
    text = (tmp_path / "expected.json").read_text()
    (tmp_path / "expected.json").write_text(text.replace('"at_most": 20', '"at_most": 19'))
    mixed.expecting(tmp_path / "expected.json").save_html(tmp_path / "report.html")
    with screen.new_page(viewport=size, color_scheme=scheme) as page:
        page.goto((tmp_path / "report.html").as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((it) => it.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        check_accessible(page, "main")
