"""Names, reasons and records of any text: refused with a clear error, or carried to the views and
to the terminal without harm; without Spark."""

import io
import json
import re
from dataclasses import asdict

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.records.snapshots import MOST_CHARACTERS
from ledger.cli import base, listing, records, tables
from ledger.core.text import MOST_REASON, printable
from ledger.deltas.posting import NO_REASON
from ledger.errors import DeclarationError, InputError
from ledger.store.queries import failures, reports
from ledger.store.queries.records import matches
from tests.support.ledgers import Ledger

NASTY = (
    "", " ", "'; DROP TABLE batch; --", '"', "`", "\\", "%s %(x)s {} {{ ds }} $1", "\0", "a\0b",
    "\x1b[31mred\x1b[0m", "\x1b]8;;http://x\x07", "\r\n\t\v\f", "\u202eevil", "\ud800", "\ufeff",
    "<script>alert(1)</script>", "[red]no[/red] [/] [link=http://x]", ":bomb:",
    "=cmd|' /C calc'!A0", "O'Brien", "\u00e4\u00f6\U0001f600\u0301", "x" * 200, "*" * 70_000,
)  # fmt: skip
TEXTS = st.one_of(st.text(st.characters(codec=None)), st.sampled_from(NASTY))
FEW = settings(max_examples=15, suppress_health_check=list(HealthCheck), derandomize=True)
SELECTION = dict.fromkeys(("pipeline", "batch_id", "step", "reason"))
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
# What no text on a terminal may hold: escapes, other controls, marks of direction.
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def on_terminal(renderable, width=100):
    """What a terminal gets of it, less the colours that are ours."""
    console = base.PlainConsole(file=io.StringIO(), width=width, force_terminal=True)
    console.print(renderable, crop=False)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


def whole(text):
    """A text as PostgreSQL can keep it."""
    return text.encode("utf-8", "backslashreplace").decode()


@given(TEXTS)
@example("a" * 63)
@example("a" * 64)
def test_a_name_is_plain_or_refused(name):
    """A pipeline, source, sink or column to redact of any name: a plain identifier is taken, what
    is not is refused in one printable line that quotes it."""
    pipeline = Pipeline("names")
    source = FileSource("in.csv", schema="n INT")
    for declare in (
        lambda: Pipeline(name),
        lambda: pipeline.source(name, source),
        lambda: pipeline.reference(f"r{name}", source),
        lambda: pipeline.sink(name, ParquetSink("out"), reads="source"),
    ):
        reason = _refused(declare)
        if reason is None:
            assert _NAME.fullmatch(name) or _NAME.fullmatch(f"r{name}")
        else:
            assert printable(reason) == reason
            assert "\n" not in reason


def _refused(declare):
    """How a declaration is refused; None if it is not."""
    try:
        declare()
    except DeclarationError as exc:
        return str(exc)
    return None


@given(TEXTS.filter(bool))
@FEW
def test_a_terminal_shows_texts_and_obeys_none(text):
    """In a table, a list and a line no text is markup, an emoji or a command: the words of a tag
    are all there."""
    shown = [
        on_terminal(tables.rows([{"reason": text, "n": 1}]), 200_000),
        on_terminal(tables.fact_lines({"reason": text}), 200_000),
        on_terminal(tables.line(text), 200_000),
        on_terminal(text, 200_000),
    ]
    for one_of in shown:
        assert not COMMANDS.search(one_of.replace("\t", "").replace("\r\n", "\n"))
    for word in re.findall(r"\[\w*/?[a-z=:/]*\]|:[a-z]+:|<[^<>]*>", text):
        assert all(word in "".join(one_of.split("\n")) for one_of in shown)


@given(st.lists(TEXTS, min_size=1, max_size=9))
@settings(FEW, max_examples=6)
@example(list(NASTY))
def test_a_reason_is_kept_as_it_can_be(migrated, reasons):
    """Whatever a stage says: the record fails, its reason is in the views, cut where it is longer
    than any reason, and the commands show it without obeying it."""
    ledger = Ledger(migrated)
    ledger.empty()
    batch = ledger.open(chain())
    roots = ledger.emit(batch, len(reasons))
    ledger.run_middle(batch, roots, fail=dict(zip(roots, reasons, strict=True)))
    ledger.run_sink(batch, [])
    ledger.settle(batch.batch_id)
    rows = ledger.rows("SELECT reason FROM failed_root_detail ORDER BY root_id")
    assert [row.reason for row in rows] == [_stored(reason) for reason in reasons]
    summaries = ledger.transact(failures.summaries, SELECTION)
    shown = [on_terminal(tables.failures([asdict(row) for row in summaries]))]
    for root, reason in zip(roots, reasons, strict=True):
        explanation = vars(ledger.explain(root))
        shown.append(on_terminal(records._explained(explanation)))
        as_json = json.loads(json.dumps(explanation, default=str))
        assert as_json["attempts"][0]["reason"] == _stored(reason)
    assert not COMMANDS.search("".join(shown).replace("\t", ""))


def _stored(reason):
    """A reason as the ledger has it."""
    text = whole(reason).replace("\0", "\ufffd") or NO_REASON
    return text if len(text) <= MOST_REASON else f"{text[:MOST_REASON]}... (cut)"


def chain(key=("n",)):
    pipeline = Pipeline("chain")
    pipeline.source("source", FileSource("in.csv", schema="n INT"), key=key)

    @pipeline.stage(reads="source")
    def middle(rows):
        return rows

    pipeline.sink("sink", ParquetSink("out"), reads="middle")
    return pipeline


# Names of columns that a frame can have; what Spark confuses or the ledger needs is refused.
COLUMNS = TEXTS.filter(lambda name: name and not name.startswith("_") and "`" not in name).map(
    lambda name: whole(name).replace("\0", "0")[:200]
)


@given(st.dictionaries(COLUMNS, TEXTS.map(whole), min_size=1, max_size=4))
@FEW
def test_content_and_keys_of_any_text(migrated, tmp_path_factory, fields):
    """Columns and values of any text come back from the ledger as they were, as key and as
    content, are found by --where, and are shown without commanding the terminal."""
    ledger = Ledger(migrated)
    ledger.empty()
    name = next(iter(fields))
    batch = ledger.open(chain(key=(name,)))
    roots = ledger.emit(batch, 2)
    ledger.run_middle(batch, roots, lose=[roots[0]])
    ledger.run_sink(batch, roots[1:])
    ledger.settle(batch.batch_id)
    row = {**fields, "_ackledger_raw": None, "_ackledger_error": None, "_ackledger_file": None}
    ledger.write_snapshot(batch, tmp_path_factory.mktemp("snapshot"), [row, row])
    assert ledger.keep_payloads(batch.batch_id) == 1
    (payload,) = ledger.rows("SELECT key, content, parsed FROM failed_payload")
    replaced = {column: value.replace("\0", "\ufffd") for column, value in fields.items()}
    assert payload.key == {name: replaced[name]}
    if payload.parsed:
        assert json.loads(payload.content) == fields
    else:
        assert "\0" in "".join(fields.values()) or len(payload.content) > MOST_CHARACTERS
    messages = ledger.database.transact(lambda c: list(matches(c, SELECTION, (), 5)))
    shown = [
        on_terminal(listing.listed({"records": [records._record(record) for record in messages],
                                     "total": 1})),
        on_terminal(records._explained(vars(ledger.explain(roots[0])))),
    ]  # fmt: skip
    assert not COMMANDS.search("".join(shown).replace("\t", ""))


def test_a_record_of_a_megabyte(ledger, tmp_path):
    """Of a long record the ledger keeps the beginning and says so; a table shows one line of it;
    its key is kept whole."""
    batch = ledger.open(chain(key=("id",)))
    roots = ledger.emit(batch, 2)
    ledger.run_middle(batch, roots, lose=roots)
    ledger.run_sink(batch, [])
    ledger.settle(batch.batch_id)
    long = "\u00e4" * 1_000_000
    row = {
        "id": "7",
        "text": long,
        "_ackledger_raw": None,
        "_ackledger_error": None,
        "_ackledger_file": None,
    }
    raw = {
        "id": None,
        "text": None,
        "_ackledger_raw": long.encode(),
        "_ackledger_error": "broken",
        "_ackledger_file": None,
    }
    ledger.write_snapshot(batch, tmp_path, [row, raw])
    assert ledger.keep_payloads(batch.batch_id) == 2
    for rows in ledger.rows("SELECT content, parsed FROM failed_payload"):
        assert rows.content.endswith("characters)")
        assert len(rows.content) < MOST_CHARACTERS + 50
        assert not rows.parsed
    messages = ledger.database.transact(lambda c: list(matches(c, SELECTION, (), 5)))
    listed = {"records": [records._record(record) for record in messages], "total": 2}
    assert max(map(len, on_terminal(listing.listed(listed)).splitlines())) <= 100


def test_what_a_person_says_is_kept(ledger):
    """A person's reason of any text is kept; what PostgreSQL cannot hold of it is replaced."""
    batch = ledger.open(chain())
    roots = ledger.emit(batch, len(NASTY))
    ledger.run_middle(batch, roots, lose=roots)
    ledger.run_sink(batch, [])
    ledger.settle(batch.batch_id)
    for root, reason in zip(roots, NASTY, strict=True):
        if not reason.strip():
            with pytest.raises(InputError, match="the reason is empty"):
                ledger.quarantine(reason, "me", record=root)
            continue
        ledger.quarantine(reason, "me", record=root)
        assert on_terminal(records._explained(vars(ledger.explain(root))))
        ledger.accept(batch.batch_id, by="me", reason=reason)
    rows = [row.reason for row in ledger.rows("SELECT reason FROM manual_quarantine")]
    assert len(rows) == len([text for text in NASTY if text.strip()])
    assert "'; DROP TABLE batch; --" in rows
    assert "a\ufffdb" in rows
    assert "\\ud800" in rows


def test_a_command_says_which_text_is_none(database):
    """An argument that is no UTF-8 is reported as such, in one line."""
    with pytest.raises(InputError, match=r"expected text that is UTF-8, found caf\\udce9"):
        database.transact(lambda c: reports.recent_batches(c, "caf\udce9", 5))


def test_a_console_of_rich_would_obey():
    """The tests above see what they look for: a plain console of rich reads markup."""
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    console.print("[red]no[/red]")
    assert "[red]" not in console.file.getvalue()
