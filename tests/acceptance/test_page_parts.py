"""What each of the ledger's pages shows of batches that no Spark ran, in a running Airflow."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.airflow import Airflow
from tests.support.browser import check_accessible, go, signed_in, window
from tests.support.ledgers import Ledger, keyed, pipeline
from tests.support.posting import Delta, record_of
from tests.support.users import token

CONTROLS = "\x1b[31m\x07\x08\x7f\u202e\u2028"
MARKUP = "<img src=x onerror=console.error(1)><script>console.error(2)</script>"
HOSTILE = f"{MARKUP}{{{{7*7}}}}${{1}}&lt;b&gt;\"'{CONTROLS}"
VISIBLE = f"{MARKUP}{{{{7*7}}}}${{1}}&lt;b&gt;\"'"


def row_of(page: Page, table: str, name: str) -> list[str]:
    """The texts of the row of a table that begins with ``name``."""
    rows = page.get_by_role("table", name=table, exact=True).get_by_role("row")
    of_name = rows.filter(has=page.get_by_role("cell", name=name, exact=True))
    expect(of_name).to_have_count(1)
    return [cell.strip() for cell in of_name.get_by_role("cell").all_inner_texts()]


def run_dropping(
    ledger: Ledger,
    batch,
    roots: Iterable[int],
    drops: dict[str, int],  # type: ignore[no-untyped-def]
) -> list[int]:
    """Commit middle, which drops the first of its records for these reasons; the others."""
    every, many = list(roots), sum(drops.values())
    run = ledger.start(batch.batch_id, "middle")
    deltas = [
        Delta(root, root + 1000, 0 if place < many else root + 2000, 1, int(place >= many))
        for place, root in enumerate(every)
    ]
    ledger.post(run, deltas)
    rows = {"input_rows": len(every), "output_rows": len(every) - many}
    ledger.commit(run, replace(record_of(deltas), **rows), drops=drops)
    return every[many:]


def check_nothing_ran(page: Page) -> None:
    """No markup of the data has become a part of the page."""
    expect(page.get_by_text("Loading")).to_have_count(0)
    expect(page.locator("[data-ledger], [role=dialog]").locator("img, script, b")).to_have_count(0)


def test_the_pages_escape_what_records_hold(airflow: Airflow, page: Page, tmp_path: Path) -> None:
    """Markup, control characters and a megabyte in reasons, in content, in what was dropped and
    in what a person says are text on every page; that nothing runs is seen by ``window``.
    """
    ledger = airflow.ledger
    batch = ledger.open(keyed(name="hostile"))
    roots = ledger.emit(batch, 4)
    rest = run_dropping(ledger, batch, roots[2:], {f"{MARKUP} dropped": 1})
    ledger.run_sink(batch, rest)
    ledger.settle(batch.batch_id)
    with ledger.database.plain.begin() as connection:
        changed = "UPDATE failed_root SET reason = %s WHERE batch_id = %s"
        connection.exec_driver_sql(changed, (HOSTILE, batch.batch_id))
    row = {
        "n": HOSTILE,
        "text": HOSTILE + "x" * 1_000_000,
        "_ackledger_raw": None,
        "_ackledger_error": None,
    }
    unread = {
        "n": None,
        "text": None,
        "_ackledger_raw": HOSTILE.encode(),
        "_ackledger_error": HOSTILE,
    }
    file = {"_ackledger_file": f"file:///in/{MARKUP}.csv"}
    ledger.write_snapshot(batch, tmp_path, [row | file, unread | file, row | file, row | file])
    ledger.keep_payloads(batch.batch_id)

    go(page, batch=batch.batch_id)
    failures = page.get_by_role("table", name="Failures by step and reason")
    expect(failures).to_contain_text(VISIBLE)
    records = page.get_by_role("table", name="Failed records")
    expect(records.get_by_role("row")).to_have_count(3)
    expect(records).to_contain_text(MARKUP)
    expect(page.get_by_role("table", name="Steps")).to_contain_text(f"1 {MARKUP} dropped")
    check_nothing_ran(page)
    failures.get_by_role("button", name=f"List 2 records at middle: {VISIBLE}").click()
    expect(page.get_by_role("region", name="Failed records")).to_contain_text(f"middle: {MARKUP}")
    page.get_by_role("button", name="Replay these").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"2 records at middle: {VISIBLE}")
    check_nothing_ran(page)
    page.keyboard.press("Escape")
    page.get_by_label("Number, reason or content").fill(MARKUP)
    page.get_by_role("button", name="Search").click()
    expect(records.get_by_role("row")).to_have_count(3)
    page.get_by_label("Number, reason or content").fill(f"no {MARKUP}")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("No record matches.")).to_be_visible()
    check_nothing_ran(page)

    ledger.quarantine(HOSTILE, MARKUP, record=roots[0])
    for root, content in ((roots[0], '"text": "<img src=x'), (roots[1], MARKUP)):
        go(page, record=root)
        expect(page.get_by_role("region", name="Content")).to_contain_text(content)
        expect(page.get_by_role("region", name="Step by step")).to_contain_text(MARKUP)
        expect(page.get_by_role("table", name="Attempts")).to_contain_text(VISIBLE)
        check_nothing_ran(page)
    go(page, record=roots[0])
    expect(page.get_by_role("region", name="Content")).to_contain_text("characters)")
    expect(page.get_by_text(f"Quarantined by {MARKUP}")).to_contain_text(VISIBLE)
    check_nothing_ran(page)


def test_the_overview_shows_what_became_of_the_latest_batches(airflow: Airflow, page: Page) -> None:
    """The timeline has a bar of a batch for each state, as high as there are records."""
    flow = pipeline("timed", max_replays=0)
    batch, _ = airflow.ledger.whole_batch(flow, 10, lose_sink=[1, 2])
    airflow.ledger.settle(batch.batch_id)
    under_way = airflow.ledger.open(flow, "later", 1)
    airflow.ledger.emit(under_way, 5)
    go(page)
    figure = page.get_by_role("figure", name="The latest")
    expect(figure).to_be_visible()
    for state in ("acked", "failed", "quarantined", "pending"):
        expect(figure.get_by_text(state, exact=True)).to_be_visible()
    assert heights(figure, batch.batch_id) == [8, 2]
    assert heights(figure, under_way.batch_id) == [5]
    batches = row_of(page, "Latest batches", f"original {batch.batch_id}")
    assert batches[4:] == ["10", "8", "0", "0", "2", "0"]


def heights(figure: Locator, batch_id: int) -> list[int]:
    """The records that the bars of a batch stand for, by the scale of a batch of ten records."""
    bars = figure.evaluate(
        """(it, href) => [...it.querySelectorAll("a")].map((link) => [
            link.getAttribute("href") === href,
            Number(link.querySelector("rect")?.getAttribute("height") ?? 0),
            link.querySelector("title")?.textContent ?? "",
        ])""",
        f"?batch={batch_id}",
    )
    whole: dict[str, float] = {}
    for _, height, title in bars:
        whole[title] = whole.get(title, 0) + height
    ten = max(whole.values())
    return [round(10 * height / ten) for ours, height, _ in bars if ours and height]


def test_the_overview_shows_what_is_under_way(airflow: Airflow, page: Page) -> None:
    """An open batch has its progress and the time at which it expires."""
    batch = airflow.ledger.open(pipeline("slow", max_batch_age="3h"))
    airflow.ledger.emit(batch, 3)
    deadline = airflow.ledger.row(
        "SELECT (opened_at + interval '3 hours') AT TIME ZONE 'UTC' AS at FROM batch"
        " WHERE batch_id = :batch",
        batch=batch.batch_id,
    ).at
    go(page)
    row = row_of(page, "Running batches", f"original {batch.batch_id}")
    assert (row[1], row[3]) == ("slow", "1 of 3 steps")
    assert row[5] == f"{deadline:%Y-%m-%d %H:%M:%S} UTC"
    table = page.get_by_role("table", name="Running batches", exact=True)
    of_batch = table.get_by_role("row").filter(has_text=f"original {batch.batch_id}")
    bar = of_batch.get_by_role("progressbar")
    expect(bar).to_have_attribute("aria-valuenow", "1")
    expect(bar).to_have_attribute("aria-valuemax", "3")


def test_a_batch_shows_steps_drops_and_publications(airflow: Airflow, page: Page) -> None:
    """Each step with its rows, what it dropped and why, and its seconds, in the table and in the
    graph; each sink with what it has published, and when, in the zone chosen in Airflow.
    """
    ledger = airflow.ledger
    batch = ledger.open(pipeline("dropping"))
    roots = ledger.emit(batch, 10)
    rest = run_dropping(ledger, batch, roots, {"no city": 3, "too old": 1})
    ledger.run_sink(batch, rest)
    ledger.settle(batch.batch_id)
    with ledger.database.plain.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE step_run SET opened_at = closed_at - interval '12.3 s'"
            f" WHERE batch_id = {batch.batch_id} AND step = 'middle'"
        )
        connection.exec_driver_sql(
            "UPDATE publication SET rows = 6, published_at = '2013-02-03 04:05Z'"
            f" WHERE batch_id = {batch.batch_id}"
        )
    go(page, batch=batch.batch_id)
    assert row_of(page, "Steps", "middle") == [
        *("middle", "stage", "committed", "10", "6", "3 no city, 1 too old", "", "", "12.3"),
    ]
    assert row_of(page, "Steps", "sink")[:3] == ["sink", "sink", "committed"]
    published = row_of(page, "What the sinks have published", "sink")
    assert published[:3] == ["sink", "published", "6"]
    assert published[4] == "2013-02-03 04:05:00 UTC"
    page.evaluate("localStorage.setItem('timezone', JSON.stringify('Asia/Tokyo'))")
    try:
        page.reload()
        published = row_of(page, "What the sinks have published", "sink")
        assert published[4].startswith("2013-02-03 13:05:00")
    finally:  # the windows of all tests share it
        page.evaluate("localStorage.removeItem('timezone')")
    graph = page.get_by_role("group", name="The steps of the batch")
    for line in ("3 dropped: no city", "1 dropped: too old", "12.3 s", "6 rows out"):
        expect(graph).to_contain_text(line)


def test_a_family_shows_today_first_and_a_replay_is_chosen_by_cause(
    airflow: Airflow, page: Page
) -> None:
    """After a replay the page says how many records it recovered and how many are failed still, and
    is red there alone. Of the causes those are chosen that a replay may put right, the others say
    why not; what is chosen is what the conf has.
    """
    ledger, result = airflow.ledger, pipeline("renewed", max_replays=2)
    batch = ledger.open(result)
    roots = ledger.emit(batch, 10)
    ledger.run_middle(batch, roots, lose=roots[:5])
    ledger.run_sink(batch, roots[5:], lose=[roots[9]])
    ledger.settle(batch.batch_id)
    replay = ledger.replay(result, batch.batch_id)
    again = ledger.emit_replay(replay)
    ledger.run_middle(replay, again, lose=[again[0]], fail={again[1]: "no such city"})
    ledger.run_sink(replay, again[2:])
    ledger.settle(replay.batch_id)
    for number in (batch.batch_id, replay.batch_id):
        go(page, batch=number)
        today = page.get_by_role("region", name="Today")
        expect(today).to_contain_text("4 recovered by a replay")
        expect(page.get_by_text("2 still failed", exact=True)).to_be_visible()
        attempts = page.get_by_role("table", name="Attempts of these records")
        expect(attempts.get_by_role("row")).to_have_count(3)
    assert row_of(page, "Attempts of these records", f"original {batch.batch_id}")[2:6] == [
        *("10", "4", "6", "2"),
    ]
    go(page, batch=batch.batch_id)
    graph = page.get_by_role("group", name="The steps of the batch")
    expect(graph).to_contain_text("5 lost, 2 still missing")
    expect(graph).to_contain_text("1 lost, none missing now")
    red = graph.locator('rect[stroke*="red"]')
    expect(red).to_have_count(1)
    page.get_by_role("button", name="List 5 records at middle: lost").click()
    expect(page.get_by_role("table", name="Failed records").get_by_role("row")).to_have_count(6)
    page.get_by_role("button", name="All failures").click()

    page.get_by_role("button", name="Replay", exact=True).click()
    dialog = page.get_by_role("dialog")
    repeated = dialog.get_by_role("checkbox", name="1 record at middle: lost")
    expect(repeated).not_to_be_checked()
    expect(dialog.get_by_role("checkbox", name="1 record at middle: no such city")).to_be_checked()
    expect(dialog).to_contain_text("1 record failed in the same way in the last replay.")
    expect(dialog).to_contain_text("quarantined after one more failure (max_replays=2)")
    expect(dialog.get_by_role("button", name="Replay 1 record")).to_be_visible()
    expect(dialog).to_contain_text('"words": "no such city"')
    check_accessible(page, "[role=dialog]")
    dialog.locator("label").filter(has_text="middle: lost").click()
    expect(repeated).to_be_checked()
    expect(dialog.get_by_role("button", name="Replay 2 records")).to_be_visible()
    expect(dialog).not_to_contain_text("causes")


def test_batches_that_replace_each_other_are_linked(airflow: Airflow, page: Page) -> None:
    """A superseded batch says how many of its records were failed and leads to the batch that has
    read its interval again, whose page leads back.
    """
    flow = pipeline("reread")
    old, _ = airflow.ledger.whole_batch(flow, lose_sink=[1, 2, 3])
    airflow.ledger.settle(old.batch_id)
    new = airflow.ledger.reprocess(flow)
    airflow.ledger.run_all(new, 10)
    go(page, batch=old.batch_id)
    note = page.get_by_text("3 records of this batch had failed by then")
    expect(note).to_contain_text(f"Superseded: batch {new.batch_id} has read its interval again")
    note.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Batch {new.batch_id} of reread")
    page.get_by_text("It reads the interval of").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Batch {old.batch_id} of reread")


def test_a_key_is_no_json(airflow: Airflow, page: Page, tmp_path: Path) -> None:
    """The list of failed records has the values of a key, and beside them the content."""
    ledger = airflow.ledger
    batch = ledger.open(keyed(name="keys"))
    roots = ledger.emit(batch, 2)
    ledger.run_middle(batch, roots, lose=[roots[1]])
    ledger.run_sink(batch, roots[:1])
    ledger.settle(batch.batch_id)
    row = {
        "n": "17",
        "text": "kettle",
        "_ackledger_raw": None,
        "_ackledger_error": None,
        "_ackledger_file": "file:///in.csv",
    }
    ledger.write_snapshot(batch, tmp_path, [row, row])
    assert ledger.keep_payloads(batch.batch_id) == 1
    go(page, batch=batch.batch_id)
    cells = row_of(page, "Failed records", str(roots[1]))
    assert cells[1] == "17"
    assert '"text": "kettle"' in cells[2]


def test_a_record_on_hold_is_listed_with_its_key(
    airflow: Airflow, page: Page, tmp_path: Path
) -> None:
    """The sample of a batch on hold has keys and contents in columns of their own, its buttons say
    what they list, and the page of a record says that nothing is decided, not where it was seen.
    """
    ledger = airflow.ledger
    batch = ledger.open(keyed(name="keys_on_hold", hold_above=0.1))
    roots = ledger.emit(batch, 2)
    ledger.run_middle(batch, roots, lose=roots)
    ledger.run_sink(batch, [])
    ledger.settle(batch.batch_id)
    row = {
        "n": "17",
        "text": "kettle",
        "_ackledger_raw": None,
        "_ackledger_error": None,
        "_ackledger_file": "file:///in.csv",
    }
    ledger.write_snapshot(batch, tmp_path, [row, row])
    go(page, batch=batch.batch_id)
    sample = "A sample of the records that would fail"
    assert row_of(page, sample, str(roots[1]))[1:] == ["not copied yet", "middle", "lost"]
    ledger.keep_payloads(batch.batch_id)
    page.reload()
    cells = row_of(page, sample, str(roots[1]))
    assert cells[1] == "17"
    assert '"text": "kettle"' in cells[2]
    expect(page.get_by_text("List records at middle", exact=True)).to_be_visible()
    go(page, record=roots[1])
    expect(page.get_by_text("Not decided yet", exact=True)).to_be_visible()
    expect(page.get_by_text("it would fail at middle: lost")).to_be_visible()
    expect(page.get_by_text("Last seen at")).to_have_count(0)
    meaning = "nothing is decided until somebody has looked"
    expect(page.get_by_title(meaning)).to_have_text("on hold: not decided")


def test_a_day_is_a_square_of_the_calendar(airflow: Airflow, page: Page) -> None:
    """Of a pipeline with one day read, its cell is as wide as high, and can be hit."""
    batch, _ = airflow.ledger.whole_batch(pipeline("daily"))
    airflow.ledger.settle(batch.batch_id)
    go(page, pipeline="daily")
    cell = page.get_by_role("figure", name="Calendar").locator("a rect").first
    size = cell.evaluate("it => it.getBoundingClientRect().toJSON()")
    assert size["width"] > 12
    assert abs(size["width"] - size["height"]) < 4


def test_a_retry_leaves_out_what_a_person_gave_up(airflow: Airflow, page: Page) -> None:
    """The dialog counts the quarantined records that still need a decision, and says of the others
    who gave them up, and why."""
    ledger = airflow.ledger
    flow = pipeline("given_up", max_replays=1)
    batch, roots = ledger.whole_batch(flow, lose_sink=[1, 2, 3])
    ledger.settle(batch.batch_id)
    ledger.quarantine("no such customer", "ada", record=roots[1])
    replay = ledger.replay(flow, batch.batch_id, "given up")
    again = ledger.emit_replay(replay)
    ledger.run_middle(replay, again)
    ledger.run_sink(replay, again, lose=again)
    ledger.settle(replay.batch_id)
    go(page, batch=batch.batch_id)
    page.get_by_role("button", name="Retry quarantined").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Replay 2 records")).to_be_visible()
    expect(dialog).to_contain_text("1 record left out, accepted by ada on")
    expect(dialog).to_contain_text("no such customer")


def test_a_viewer_reads_what_is_missing(browser: Browser, airflow: Airflow, page: Page) -> None:
    """A viewer sees what is lost, no button for it, and what is missing; an admin the buttons."""
    ledger = airflow.ledger
    batch, roots = ledger.whole_batch(pipeline("viewed", max_replays=0), lose_sink=[1])
    ledger.settle(batch.batch_id)
    held, _ = ledger.whole_batch(pipeline("kept", hold_above=0.1), lose_sink=range(5))
    ledger.settle(held.batch_id)
    pages = (
        ({"batch": batch.batch_id}, ["Retry quarantined", "Accept"], "replay or accept"),
        ({"batch": held.batch_id}, ["Release"], "release"),
        ({"record": roots[1]}, ["Retry"], None),
    )
    viewer = token(airflow.home / "airflow", "somebody", "viewer")
    with signed_in(browser, airflow, viewer) as windows, window(windows, airflow) as theirs:
        for query, buttons, denied in pages:
            for seen, count in ((page, 1), (theirs, 0)):
                go(seen, **query)
                seen.get_by_role("heading", level=1).wait_for()
                for button in buttons:
                    expect(seen.get_by_role("button", name=button)).to_have_count(count)
                note = seen.get_by_text(f"You may not {denied} in Airflow")
                expect(note).to_have_count(int(denied is not None and count == 0))


COLORS = """(selector) => {
    const found = document.querySelector(selector);
    let painted = found;
    const color = (it) => getComputedStyle(it).backgroundColor;
    const clear = (it) => /^(transparent|rgba\\(.*, 0\\))$/.test(color(it));
    while (clear(painted) && painted.parentElement) painted = painted.parentElement;
    return [color(painted), getComputedStyle(found).color];
}"""


def test_dark_is_as_dark_as_airflow_is(airflow: Airflow, page: Page) -> None:
    """Background and text have the colors of Airflow's own body, other ones in the dark."""
    batch, _ = airflow.ledger.whole_batch(pipeline("shaded"))
    shown = {}
    schemes: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        for query in ({}, {"batch": batch.batch_id}):
            go(page, **query)
            heading = page.get_by_role("heading", level=1)
            heading.wait_for()
            ours, theirs = (
                page.evaluate(COLORS, selector) for selector in ("[data-ledger]", "body")
            )
            assert ours == theirs
            assert heading.evaluate("it => getComputedStyle(it).color") == ours[1]
        shown[scheme] = ours
    assert all(light != dark for light, dark in zip(shown["light"], shown["dark"], strict=True))
