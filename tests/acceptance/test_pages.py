"""The ledger's pages in a running Airflow, in Chromium: what who is on call does."""

import re
from types import SimpleNamespace
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from demo import data
from scripts.airflow_services import USER
from tests.support.airflow import Airflow, wait
from tests.support.browser import (
    WINDOW,
    check_accessible,
    go,
    keep,
    open_ledger,
    open_record,
    replay_this_record,
    signed_in,
    window,
)
from tests.support.ledgers import pipeline
from tests.support.users import token

SHOWN = ("departures", "parse", "with_plane")  # steps on the picture of docs/index.md
JANUARY = {"interval_start": "2013-01-01", "interval_end": "2013-02-01"}


@pytest.fixture(scope="module")
def red(airflow: Airflow) -> SimpleNamespace:
    """A run that has ended red: flights of January whose planes are in no list."""
    run = airflow.trigger("flights", **JANUARY)
    assert airflow.ended("flights", run) == "failed"
    batch = "SELECT batch_id, total, failed FROM batch_status WHERE pipeline = 'flights'"
    row = airflow.ledger.row(batch)
    return SimpleNamespace(run=run, **row._mapping)


def test_a_lost_record_is_found_in_two_clicks_and_replayed(
    airflow: Airflow, red: SimpleNamespace, page: Page
) -> None:
    """From the red run: its tab shows the batch and the edge that lost flights; a record there
    shows its content and where it was lost; replayed with the full list of planes, it is acked.
    """
    open_ledger(page, f"/dags/flights/runs/{red.run}")
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text(f"Batch {red.batch_id} of flights")
    graph = page.get_by_role("group", name="The steps of the batch")
    expect(graph).to_contain_text(f"{red.failed} records lost")
    keep(page, "batch")
    page.set_viewport_size({"width": 1440, "height": 2400})
    nodes = [graph.locator(f"xpath=.//*[local-name() = 'g'][*[1] = '{step}']") for step in SHOWN]
    lost = graph.get_by_text(f"{red.failed} records lost")
    records = page.get_by_role("table", name="Failed records").locator("tr")
    expect(records.nth(5)).to_be_visible()
    keep(page, "lost", [*nodes, lost], records.all()[:5])
    page.set_viewport_size(WINDOW)
    open_record(page)
    tree = page.get_by_role("region", name="Step by step")
    expect(tree).to_contain_text("with_planelost")
    expect(tree).to_contain_text('"tailnum"')
    tree.evaluate("it => it.scrollIntoView()")
    keep(page, "record")

    data.write_planes(airflow.data)
    replay_this_record(page, "1 record at with_plane: inner join at flights.py:")
    number = int(re.findall(r"\d+", heading.inner_text())[0])
    state = airflow.ledger.row(f"SELECT status FROM failed_message WHERE message_id = {number}")
    assert state.status == "recovered"
    started = airflow.runs("flights")[-1]
    assert started["triggering_user_name"] == USER


LEGIBLE = """(svg) => {
    const box = svg.parentElement;
    const scale = svg.getScreenCTM().a;
    const sizes = [...svg.querySelectorAll("text")].map(
        (text) => parseFloat(getComputedStyle(text).fontSize) * scale);
    return [Math.min(...sizes), box.scrollWidth - box.clientWidth];
}"""
COLORS = """(it) => [getComputedStyle(it).backgroundColor, getComputedStyle(it).color]"""


def test_the_graph_of_a_run_is_legible(red: SimpleNamespace, page: Page) -> None:
    """Beside Airflow's list of tasks, in a window of 1280 pixels: its text has at least 11, and
    nothing of it is cut off.
    """
    page.set_viewport_size({"width": 1280, "height": 800})
    open_ledger(page, f"/dags/flights/runs/{red.run}")
    graph = page.get_by_role("group", name="The steps of the batch")
    graph.wait_for()
    legible = f"svg => (([size, hidden]) => size >= 11 && hidden <= 0)(({LEGIBLE})(svg))"
    page.wait_for_function(legible, arg=graph.element_handle())


def test_the_pages_have_airflows_blue(red: SimpleNamespace, page: Page) -> None:
    """A button has the color of the active tile of Airflow's navigation, on which the icon is as
    white as the text.
    """
    go(page, batch=red.batch_id)
    tile = page.get_by_role("link", name="Ledger", exact=True).first
    button = page.get_by_role("button", name="Replay", exact=True)
    current = page.locator('[aria-current="page"]').filter(has_text="Ledger").first
    assert current.evaluate(COLORS) == button.evaluate(COLORS)
    icon = tile.locator("img").evaluate("it => getComputedStyle(it).filter")
    assert icon == "brightness(0) invert(1)"


def test_the_overview_leads_to_what_waits(red: SimpleNamespace, page: Page) -> None:
    """The failed batch needs attention; the calendar has its month; the way back works."""
    page.goto("/")
    page.get_by_role("link", name="Ledger", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Ledger")
    waiting = page.get_by_role("table", name="Batches that need attention")
    expect(waiting).to_contain_text("flights")
    expect(page.get_by_role("figure", name="Calendar of 1 interval: 1 failed")).to_be_visible()
    keep(page, "overview")
    waiting.get_by_role("link", name=f"original {red.batch_id}").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Batch {red.batch_id} of flights")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    trail = page.get_by_role("navigation", name="Breadcrumbs").locator("a")
    expect(trail).to_have_text(["Ledger", "flights"])
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Ledger")


def test_a_dag_has_its_pipeline(red: SimpleNamespace, page: Page) -> None:
    """The tab of the DAG shows the intervals of its pipeline; a cell of the calendar leads to its
    batch.
    """
    open_ledger(page, "/dags/flights")
    expect(page.get_by_role("heading", level=1)).to_have_text("flights")
    cell = page.get_by_role("figure", name="Calendar").locator("a").first
    assert cell.locator("rect").evaluate("it => it.getBoundingClientRect().width") > 12
    cell.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Batch {red.batch_id} of flights")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible(
    airflow: Airflow, red: SimpleNamespace, page: Page, scheme: Literal["light", "dark"]
) -> None:
    """Names, roles, order of headings and contrast, in light and in dark, by axe."""
    root = airflow.ledger.row("SELECT min(root_id) AS root FROM failed_root").root
    page.emulate_media(color_scheme=scheme)
    for query in ({}, {"pipeline": "flights"}, {"record": root}, {"batch": red.batch_id}):
        go(page, **query)
        page.get_by_role("heading", level=1).wait_for()
        expect(page.get_by_text("Loading")).to_have_count(0)
        check_accessible(page)
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("will run again through")
    expect(page.get_by_role("button", name=re.compile(r"Replay \d+ records"))).to_be_enabled()
    check_accessible(page, "[role=dialog]")
    if scheme == "light":
        keep(page, "replay", [page.get_by_role("dialog")])


def test_the_keyboard_does_what_the_mouse_does(red: SimpleNamespace, page: Page) -> None:
    """A red step is chosen by Enter, a dialog opened and closed; the focus comes back."""
    go(page, batch=red.batch_id)
    step = page.get_by_role("button", name=re.compile("^with_plane: "))
    step.focus()
    page.keyboard.press("Enter")
    expect(step).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("region", name="Failed records")).to_contain_text("at with_plane")
    replay = page.get_by_role("button", name="Replay these")
    replay.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(replay).to_be_focused()


def test_quarantined_records_are_accepted(airflow: Airflow, page: Page) -> None:
    """With a reason, in the name of the signed-in user; the batch is then no longer orange."""
    batch, _ = airflow.ledger.whole_batch(pipeline("strict", max_replays=0), lose_sink=[1, 2])
    airflow.ledger.settle(batch.batch_id)
    go(page, batch=batch.batch_id)
    page.get_by_role("button", name="Accept").click()
    dialog = page.get_by_role("dialog")
    accept = dialog.get_by_role("button", name="Accept 2 records")
    expect(accept).to_be_disabled()
    dialog.get_by_label("Why may they stay out?").fill("no such customers")
    accept.click()
    failures = page.get_by_role("table", name="Failures by step and reason")
    accepted = failures.locator("tbody tr").locator("td").nth(7)
    expect(accepted).to_have_text("2")
    expect(page.get_by_role("button", name="Accept")).to_have_count(0)
    by = airflow.ledger.row("SELECT DISTINCT accepted_by, accepted_because FROM accepted_record")
    assert tuple(by) == (USER, "no such customers")


def test_a_held_batch_is_released(airflow: Airflow, page: Page) -> None:
    """The page has what to decide by: the step that loses records is red, and what would fail is
    listed by reason and record, with both ways on. The dialog says how many fail; released, it is
    settled with its failures."""
    flow = pipeline("careful", hold_above=0.1)
    batch, roots = airflow.ledger.whole_batch(flow, lose_sink=range(5))
    airflow.ledger.settle(batch.batch_id)
    go(page, batch=batch.batch_id)
    why = "5 of 10 records failed; the limit is 10 % (hold_above). Most failed at sink"
    expect(page.get_by_text(why)).to_have_count(1)
    for way in ("Fix it and rerun", f"ackledger release {batch.batch_id}"):
        expect(page.get_by_text(way)).to_have_count(1)
    expect(page.get_by_role("button", name="sink: 5 records failed here")).to_be_visible()
    expect(page.get_by_text("5 records would fail if the batch were settled")).to_be_visible()
    reason = page.get_by_role("button", name="List records that would fail at sink: lost")
    reason.click()
    sample = page.get_by_role("table", name="A sample of the records that would fail")
    expect(sample.get_by_role("link", name=str(roots[0]), exact=True)).to_be_visible()
    expect(page.get_by_text("No record failed in this batch")).to_have_count(0)
    reason.click()  # no more
    page.get_by_role("button", name="Release").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("5 of 10")
    dialog.get_by_role("button", name="Release").click()
    expect(page.get_by_role("button", name="Replay", exact=True)).to_be_visible()
    status = f"SELECT status FROM batch WHERE batch_id = {batch.batch_id}"
    assert airflow.ledger.row(status).status == "settled"


def one_failed(airflow: Airflow, batch_id: int) -> SimpleNamespace:
    """A record of a batch that is failed still, and may be replayed at once."""
    row = airflow.ledger.row(
        "SELECT message_id, root_id FROM failed_message WHERE original_batch_id = :batch"
        " AND status = 'failed' AND coalesce(not_before, now()) <= now()"
        " ORDER BY message_id LIMIT 1",
        batch=batch_id,
    )
    return SimpleNamespace(**row._mapping)


def replay_batch(airflow: Airflow, run_id: str) -> tuple[str, int]:
    """The kind and the number of records of the batch that a run has opened."""
    asked = "SELECT kind, total FROM batch_status WHERE run_id = :run"
    return tuple(airflow.ledger.row(asked, run=run_id))


def test_a_quarantined_record_is_taken_up(
    browser: Browser, airflow: Airflow, red: SimpleNamespace
) -> None:
    """From its page, after a look at what would run; a replay is opened of a record that a person
    gave up, in the name of who asked for it.
    """
    data.write_planes(airflow.data)
    record = one_failed(airflow, red.batch_id)
    airflow.ledger.quarantine("no such plane", "somebody", record=record.message_id)
    ada = token(airflow.home / "airflow", "ada", "user")
    with signed_in(browser, airflow, ada) as theirs, window(theirs, airflow) as page:
        go(page, record=record.root_id)
        expect(page.get_by_text("quarantined", exact=True).first).to_be_visible()
        expect(page.get_by_text("Quarantined by somebody")).to_contain_text("no such plane")
        replay_this_record(page, "1 record at with_plane: inner join at flights.py:", "Retry")
    started = airflow.runs("flights")[-1]
    assert started["triggering_user_name"] == "ada"
    assert started["conf"]["accepted"] is True
    assert replay_batch(airflow, started["dag_run_id"]) == ("replay", 1)


def test_what_is_not_there_is_said(page: Page) -> None:
    """A page of a batch or a record that there is not, or of what is no number, says so and leads
    back, instead of an error page of Airflow's.
    """
    for query, name, message in (
        ({"batch": 999}, "Batch 999", "batch 999 is not in the ledger"),
        ({"record": 10**15}, f"Record {10**15}", "is not in the ledger"),
        ({"batch": "abc"}, "Batch abc", "Expected the number of a batch"),
        ({"record": "-1"}, "Record -1", "Expected the number of a record"),
    ):
        go(page, **query)
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page.get_by_role("alert")).to_contain_text(message)
        page.get_by_role("link", name="Back to the ledger").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Ledger")


def test_a_task_links_to_its_batch(airflow: Airflow, red: SimpleNamespace) -> None:
    """``complete`` has a button that leads to the page of its batch."""
    path = f"/dags/flights/dagRuns/{red.run}/taskInstances/complete/links"
    links = wait(lambda: airflow.api("GET", path)["extra_links"], "links of complete", 30)
    assert links["Batch in the ledger"].endswith(f"/plugin/ledger?batch={red.batch_id}")
