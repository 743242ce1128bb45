"""The report of an audit as JSON, as text and as a page, and the losses that a user expects."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from ledger.auditing import html
from ledger.auditing.expected import read_expected
from ledger.auditing.losses import OutputResult
from ledger.auditing.remarks import IGNORED, Remark
from ledger.auditing.report import AuditReport
from ledger.auditing.scripts import running
from ledger.cli import app
from ledger.errors import InputError
from tests.support.audits import loss, report, source
from tests.support.places import ROOT

ENTRY = {
    "file": "shop.py",
    "source": "orders",
    "operation": "filter",
    "reason": "condition NULL: state = 'paid'",
    "at_most": 30,
    "why": "orders of the old shop",
}
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def shop():
    """A job that loses 30 of 100 orders, 10 of them at a join, and drops 20 on purpose."""
    orders = source()
    return report(
        [
            loss(orders, 0, 20),
            loss(
                orders, 20, 10, operation="inner join", place="shop.py:9", reason="key NULL: shop"
            ),
            loss(orders, 30, 20, reason="condition false: state = 'paid'", is_intended=True),
        ]
    )


def expecting(shop: AuditReport, tmp_path, *entries: object) -> AuditReport:
    """A report compared with a file that has these entries."""
    path = tmp_path / "expected.json"
    path.write_text(json.dumps(entries))
    return shop.expecting(path)


def test_the_json_has_counts_losses_and_examples(shop):
    """Each source and loss is plain data under stable names, with values of up to three records."""
    data = json.loads(json.dumps(shop.as_dict(examples=2)))
    assert data["title"] == "shop.py"
    assert data["lost"] == 30
    assert data["sources"] == [
        {
            "name": "orders",
            "records": 100,
            "arrived": 50,
            "lost": 30,
            "expected": 0,
            "intended": 20,
            "unplaced": 0,
            "note": "",
            "unknown": "",
        }
    ]
    first = data["losses"][0]
    assert {name: first[name] for name in ("kind", "place", "records", "share", "at_most")} == {
        "kind": "lost",
        "place": "shop.py:7",
        "records": 20,
        "share": 0.2,
        "at_most": None,
    }
    assert first["examples"] == [
        {"state": None, "order_id": "o0", "cents": 0},
        {"state": None, "order_id": "o1", "cents": 1},
    ]
    assert list(first["examples"][0]) == ["state", "order_id", "cents"]
    assert [each["kind"] for each in data["losses"]] == ["lost", "intended", "lost"]
    assert data["graph"]["edges"][1] == {
        "start": 1,
        "end": 2,
        "is_consulted": False,
        "records": {"intended": 20},
        "losses": [1],
    }
    assert all(each["examples"] == [] for each in shop.as_dict(examples=0)["losses"])
    assert len(shop.as_dict(examples=9)["losses"][0]["examples"]) == 3


def test_values_that_json_does_not_have_are_texts():
    """NaN, dates and bytes are texts, so that any reader of JSON takes them."""
    orders = source()
    orders.values[0] = (b"o", float("nan"), 1.5)
    text = json.dumps(report([loss(orders, 0, 1)]).as_dict(), allow_nan=False)
    assert '{"state": "nan", "order_id": "b\'o\'", "cents": 1.5}' in text


def test_expected_losses_are_written_and_read_again(shop, tmp_path):
    """A report that is compared with what it has written has lost nothing unexpected."""
    path = tmp_path / "expected.json"
    shop.write_expected(path)
    assert [entry.at_most for entry in read_expected(path)] == [20, 10]
    quiet = shop.expecting(path)
    assert (shop.lost_records, quiet.lost_records) == (30, 0)
    assert quiet.results[0].arrived == shop.results[0].arrived == 50
    text = str(quiet)
    assert "LOST" not in text
    assert "EXPECTED: lost, and in the list of expected losses" in text
    assert quiet.as_dict()["graph"]["edges"][0]["records"] == {"expected": 20}


def test_an_expected_loss_has_its_reason_and_keeps_its_number(shop, tmp_path):
    """What covers a loss says why, also in the file that is written the next time."""
    quiet = expecting(shop, tmp_path, ENTRY)
    assert quiet.lost_records == 10
    assert "orders of the old shop" in str(quiet)
    quiet.write_expected(tmp_path / "next.json")
    first, second = read_expected(tmp_path / "next.json")
    assert (first.at_most, first.why) == (30, "orders of the old shop")
    assert (second.at_most, second.why) == (10, "")


def test_more_records_than_expected_are_lost_as_a_whole(shop, tmp_path):
    """A loss that has grown is not hidden in part, and the report names both numbers."""
    loud = expecting(shop, tmp_path, {**ENTRY, "at_most": 19})
    assert loud.lost_records == 30
    assert "condition NULL: state = 'paid': 20 lost, at most 19 expected" in str(loud)


def test_two_lines_of_a_file_count_together(tmp_path):
    """Lines move, so losses that differ in their line alone are covered by one entry or by none."""
    orders = source()
    twice = report([loss(orders, 0, 20), loss(orders, 10, 20, place="shop.py:90")])
    assert expecting(twice, tmp_path, ENTRY).lost_records == 0
    assert expecting(twice, tmp_path, {**ENTRY, "at_most": 29}).lost_records == 30


def test_a_record_that_is_lost_elsewhere_stays_lost(tmp_path):
    """An expected loss on one way does not excuse another one on the other way."""
    orders = source()
    both = report([loss(orders, 0, 20), loss(orders, 0, 5, operation="explode", reason="empty")])
    quiet = expecting(both, tmp_path, ENTRY)
    assert quiet.lost_records == 5
    assert len(quiet.results[0].expected) == 15


def test_an_expected_loss_that_is_not_found_is_named(shop, tmp_path):
    """An entry of a loss that is gone stands in the report, so that the list stays short."""
    other = {**ENTRY, "file": "old.py"}
    quiet = expecting(shop, tmp_path, other)
    assert quiet.lost_records == 30
    lines = quiet.lines(120)
    assert lines[-2] == "EXPECTED, BUT NOT FOUND: entries that no loss has"
    assert lines[-1].strip() == "filter in old.py, orders: condition NULL: state = 'paid'"
    assert quiet.as_dict()["not_found"] == [other]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a list in JSON"),
        ("{}", "expected a list, found an object"),
        ("[3]", "entry 1: expected an object, found a number"),
        (json.dumps([ENTRY, {**ENTRY, "line": 3}]), "entry 2: unknown key 'line': expected file,"),
        (json.dumps([{"file": "shop.py"}]), "entry 1: 'source' is missing: expected file, source"),
        (json.dumps([{**ENTRY, "reason": None}]), "entry 1: 'reason': expected a text, found null"),
        (json.dumps([{**ENTRY, "at_most": "9"}]), "'at_most': expected a whole number from 0"),
        (json.dumps([{**ENTRY, "at_most": True}]), "'at_most': expected a whole number from 0"),
        (json.dumps([ENTRY, {**ENTRY, "at_most": 1}]), "entries 1 and 2 are about the same loss"),
    ],
    ids=["no json", "no list", "number", "unknown", "missing", "null", "text", "true", "twice"],
)
def test_a_file_of_another_form_is_refused(shop, tmp_path, text, message):
    """The error names the file, the entry and what was expected."""
    path = tmp_path / "expected.json"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(message)) as error:
        shop.expecting(path)
    assert str(path) in str(error.value)


def test_files_that_cannot_be_read_or_written_are_named(shop, tmp_path):
    """A folder that is not there, or bytes that are no text, are errors of the input."""
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    for path in (tmp_path / "none.json", tmp_path / "bytes.json"):
        with pytest.raises(InputError, match="the expected losses cannot be read"):
            shop.expecting(path)
    with pytest.raises(InputError, match="the expected losses cannot be written"):
        shop.write_expected(tmp_path / "none" / "expected.json")
    with pytest.raises(InputError, match="the report cannot be written"):
        shop.save_html(tmp_path / "none" / "report.html")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_lines_fit_the_terminal(width):
    """With long names and reasons no line is wider than the terminal, and all that counts stays."""
    orders, lines = source("s3://warehouse/" + "landing/" * 9 + "orders.csv"), "a" * 30 + ".py:1234"
    reason = "condition NULL: " + " ".join(["(customer_status", "="] * 4)
    text = report([loss(orders, 0, 20, place=lines, reason=reason)]).lines(width)
    assert max(map(len, text)) <= width
    joined = " ".join(" ".join(text).split())
    assert lines in joined
    assert reason in joined
    assert "order_id=o0" in joined


def test_many_sources_that_all_arrived_share_a_line():
    """Of many tables, those with losses are listed, and the others are counted."""
    first, *others = [source(f"table{at}", 10, at) for at in range(20)]
    text = report([loss(first, 0, 5)], [first, *others]).lines(80)
    assert [line.split()[0] for line in text[:3]] == ["source", "table0", "and"]
    assert text[2] == "and 19 sources whose 190 records all arrived"


def test_sections_stand_in_the_order_of_their_weight():
    """Losses come first, then outputs that are not followed and other outputs, then the rest."""
    orders = source()
    losses = [
        loss(orders, 0, 5),
        loss(orders, 5, 5, reason="condition false: x", is_intended=True),
        loss(orders, 50, 5, has_arrived=True),
        loss(orders, 60, 5, is_intended=True, note="optional side of an outer join"),
    ]
    outputs = [OutputResult("rdd", "shop.py:9", "rows of an RDD", True)]
    ids = losses[0].ids + 70
    remarks = [Remark(IGNORED, orders, "sum(cents)", "shop.py:20", "cents is NULL", ids)]
    mixed = report(losses, outputs=outputs, remarks=remarks)
    text = mixed.lines(120)
    titles = [line.split(":")[0] for line in text if re.match("[A-Z ]+:", line)]
    assert titles == ["LOST", "NOT FOLLOWED", "BY OUTPUT", "IGNORED", "INTENDED", "NOT NEEDED"]
    assert "sum(cents)  shop.py:20  cents is NULL  5  orders: cents=70, order_id=o70" in str(mixed)
    data = mixed.as_dict(examples=1)["remarks"]
    assert data == [
        {
            "kind": "ignored",
            "source": "orders",
            "operation": "sum(cents)",
            "place": "shop.py:20",
            "text": "cents is NULL",
            "records": 5,
            "share": 0.05,
            "examples": [{"cents": 70, "order_id": "o70", "state": None}],
        }
    ]
    page = html.page(mixed.as_dict())
    places = [page.index(f'<h2 id="kind-{at}"') for at in range(1, 6)]
    assert places == sorted(places)
    assert 'id="remark-0"' in page


class Elements(HTMLParser):
    """The elements of a page, its addresses, ids and texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        for name, value in attrs:
            if name in ("href", "src", "srcset", "action", "data"):
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            assert not name.startswith("on")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_loads_nothing_and_runs_nothing(shop, tmp_path):
    """It is one file without scripts, and each of its links leads to a part of it."""
    shop.save_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    elements = Elements(page)
    assert not elements.names & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert not re.search(r"@import|url\((?!#)|https?:", page)
    assert elements.addresses
    assert {address[1:] for address in elements.addresses} <= set(elements.ids)
    assert len(elements.ids) == len(set(elements.ids))
    for text in ("30 of 100 records are lost", "shop.py:7", "20.0 % of orders", "NULL", "o0"):
        assert text in " ".join(elements.text.split())


def test_texts_of_users_are_escaped(tmp_path):
    """Names of files, sources, columns and outputs, and values, are texts wherever they stand."""
    orders = source(SCRIPT)
    orders.columns = ("order_id", f"state{SCRIPT}", "cents")
    orders.values[0] = (SCRIPT, f'" onload="{SCRIPT}', None)
    evil = loss(orders, 0, 1, place=f"{SCRIPT}.py:1", reason=SCRIPT, operation=SCRIPT)
    outputs = [OutputResult(SCRIPT, SCRIPT, SCRIPT, True), OutputResult("b", "", "", True)]
    named = report([evil], outputs=outputs, title=SCRIPT)
    replace(named, notes=[SCRIPT], failure=SCRIPT).save_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert SCRIPT not in page
    assert "script" not in Elements(page).names
    assert page.count("&lt;script&gt;") >= 10


def test_the_page_has_the_notes_and_the_end_of_a_script_that_failed(tmp_path):
    """A part of a job is not taken for all of it, and what the audit did not see is named."""
    notes = ["`rm -r out` at job.py:3 is executed", "remove() of a at job.py:4 is left out"]
    some = report([], [source()], title="job.py")
    replace(some, notes=notes, failure="ended with 3").save_html(tmp_path / "report.html")
    text = Elements((tmp_path / "report.html").read_text()).text
    for sentence in (*notes, "job.py ended with 3: what comes after it is not in this report"):
        assert sentence in text


def test_a_page_of_a_job_without_losses_says_so(tmp_path):
    """A green report is as short as it can be."""
    report([], [source()]).save_html(tmp_path / "report.html")
    text = Elements((tmp_path / "report.html").read_text()).text
    assert "No record is lost" in text
    assert "These records" not in text


def test_the_page_of_the_documents_names_each_key(shop):
    """What a program may read of the JSON is documented, and nothing is left out."""
    text = (ROOT / "docs" / "reference" / "audit.md").read_text()
    section = text.partition("## The report as JSON")[2].partition("\n## ")[0]
    data = shop.as_dict()
    parts = [data, data["sources"][0], data["losses"][0], data["outputs"][0]]
    parts += [data["graph"]["nodes"][0], data["graph"]["edges"][0]]
    keys = {key for part in parts for key in part}
    assert keys - {"nodes", "edges"} <= set(re.findall(r"`(\w+)`", section))


@pytest.mark.parametrize(
    ("audited", "code"),
    [
        (report([], [source()]), 0),
        (report([loss(source(), 0, 3, is_intended=True)]), 0),
        (report([loss(source(), 0, 3)]), 1),
        (report([]), 2),
        (replace(report([loss(source(), 0, 3)]), failure="ended with 3"), 2),
    ],
    ids=["all arrived", "intended", "lost", "nothing followed", "failed"],
)
def test_the_exit_code_says_what_was_found(monkeypatch, audited, code):
    """A script that failed, or whose records were in no output that is followed, is not green."""
    monkeypatch.setattr(running, "audit_script", lambda *_, **__: audited)
    assert CliRunner().invoke(app, ["audit", "my_job.py"]).exit_code == code
