"""Columns, keys, values and reasons of any text through a whole batch of Spark."""

import json
from dataclasses import asdict

import pytest

from ledger import FailedRecord, FileSource, ParquetSink, Pipeline
from ledger.batch.records.trace import trace
from ledger.cli import records
from ledger.core.text import MOST_REASON
from ledger.errors import DeclarationError

COLUMNS = (
    "O'Brien; --",
    '<b onclick="x">',
    "[red]no[/red]",
    "\u00e4.\U0001f600 {{ ds }}",
    "k" * 200,
)
SCHEMA = ", ".join(f"`{name}` STRING" for name in (*COLUMNS, "plain"))
VALUES = (
    "'; DROP TABLE batch; --",
    "<script>x</script>",
    "[/]\x1b[31m",
    "\u202e:bomb:",
    "\\ %s $1",
)
BIG = 1 << 20


@pytest.mark.parametrize("how", ["record", "frame"])
def test_a_batch_of_nasty_text(runner, tmp_path, ledger, how, sink_rows):
    """Names that SQL, HTML, terminals and templates would take for theirs, values of the same kind
    and of a megabyte, and a reason with all of it: records fail, are found by their key, traced and
    replayed, and what is published is as it was read."""
    good = dict(zip(COLUMNS, VALUES, strict=True)) | {"plain": "good"}
    nul = "" if how == "record" else "\0"  # a record stage yields none: its record fails
    bad, big = good | {"plain": f"bad{nul}"}, good | {"plain": "y" * BIG}
    (tmp_path / "in.json").write_text(
        "".join(json.dumps(text_) + "\n" for text_ in (good, bad, big))
    )
    reason = "".join(VALUES) + "\0" + "long " * MOST_REASON

    def pipeline(fixed):
        flow = Pipeline("nasty", max_replays=3)
        source = FileSource("in.json", schema=SCHEMA, format="json")
        flow.source("source", source, key=[COLUMNS[0], "plain"])
        if how == "record":

            @flow.record_stage(reads="source", schema=SCHEMA)
            def stage(row):
                if row["plain"] != "good" and not fixed:
                    raise FailedRecord(reason)
                yield row
        else:

            @flow.stage(reads="source")
            def stage(rows):
                from pyspark.sql import functions as F

                spoilt = (F.col("plain") != "good") & F.lit(not fixed)
                return rows.withColumn("_failed", F.when(spoilt, F.lit(reason)))

        flow.sink("sink", ParquetSink("out"), reads="stage")
        return flow

    run = runner(pipeline(False))
    batch = run.open()
    run.settled(batch)
    contents = ledger.rows("SELECT * FROM failed_payload ORDER BY message_id")
    reasons = [row.reason for row in ledger.rows("SELECT reason FROM failed_root_detail")]
    assert len(set(reasons)) == 1
    assert reasons[0].startswith(
        "".join(VALUES) + ("\\x00long" if how == "record" else "\ufffdlong")
    )
    assert reasons[0].endswith("... (cut)")
    assert [row.key[COLUMNS[0]] for row in contents] == [VALUES[0]] * 2
    assert [row.key["plain"] for row in contents] == [
        f"bad{nul}".replace("\0", "\ufffd"),
        "y" * BIG,
    ]
    for row in contents:
        explanation = ledger.explain(row.message_id)
        assert explanation.key[COLUMNS[0]] == VALUES[0]
        tree = trace(ledger.database, row.message_id).tree
        assert tree.branches[0].reason.startswith(VALUES[0])
        assert records._branch_label(asdict(tree.branches[0])).plain
    fixed = runner(pipeline(True))
    fixed.settled(fixed.open_replay(batch.batch_id))
    published = sink_rows("out", *COLUMNS, "plain")
    assert {row[:-1] for row in published} == {VALUES}
    assert {row[-1] for row in published} == {"good", f"bad{nul}", "y" * BIG}


@pytest.mark.parametrize("name", ["a`b", "_failed", "_ACKLEDGER_ROOT"])
def test_names_that_cannot_be_are_refused(runner, tmp_path, name):
    """A column that Spark or the ledger would confuse is refused before a row is read, by name."""
    (tmp_path / "in.json").write_text("{}\n")
    pipeline = Pipeline("nasty")
    from pyspark.sql.types import StringType, StructType

    schema = StructType().add(name, StringType())
    pipeline.source("source", FileSource("in.json", schema=schema, format="json"))
    pipeline.sink("sink", ParquetSink("out"), reads="source")
    run = runner(pipeline)
    with pytest.raises(DeclarationError, match="rename it") as caught:
        run.step(run.open(), "source")
    assert repr(name) in str(caught.value)
