"""Files that change once their records are counted: what reads them later fails with the file's
name, or reads what was counted."""

import gzip
import os
import re
from functools import partial
from itertools import product

import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.records.trace import trace
from ledger.errors import InputError
from ledger.execution import settle_and_follow
from ledger.sources.files import blocks, reader, text
from ledger.spark.failures import error_text
from tests.support.changing import CHANGES, FOREIGN, named

LOST = (2, 7)


def numbers(folder, fixed=False, schema="n INT, s STRING", snapshot="reference"):
    """numbers -> sifted, which loses ``LOST`` until it is fixed -> out; numbers -> copied."""
    flow = Pipeline("numbers", max_replays=3)
    source = FileSource(f"{folder}/in/*", schema=schema, snapshot=snapshot)
    flow.source("numbers", source, key="n")

    @flow.stage(reads="numbers")
    def sifted(frame):
        return frame if fixed else frame.where(~F.col("n").isin(*LOST))

    flow.sink("out", ParquetSink("out"), reads="sifted")
    flow.sink("copied", ParquetSink("copied"), reads="numbers")
    return flow


class File:
    """A file of ten numbers, of which 4 does not parse. ``kind``: plain, gzip or open: with a quote
    that does not close."""

    def __init__(self, folder, kind="plain"):
        rows = [f"{n if n != 4 else 'four'},name {n}" for n in range(10)]
        if kind == "open":
            rows[5] = '5,"name 5'
        self._kind, self._text = kind, "\n".join(["n,s", *rows, ""]).encode()
        self.path = folder / "in" / ("a.csv.gz" if kind == "gzip" else "a.csv")
        self.path.parent.mkdir()
        self._write(self._text)
        self._time = self.path.stat().st_mtime_ns
        # Of lines behind an open quote the content is the text.
        self.content = "2,name 2" if kind == "open" else '{"n": 2, "s": "name 2"}'
        self.numbers = [n for n in range(10) if n not in ((4, 5) if kind == "open" else (4,))]
        self.passed = [n for n in self.numbers if n not in LOST]
        self.harmless = "appended" if kind == "plain" else None
        self.harmful = [name for name in CHANGES if name != self.harmless]

    def spoil(self, change):
        """Change what it was; its time stays. ``change``: None: put it back."""
        data = CHANGES[change](self._text) if change else self._text
        if data is None:
            self.path.unlink(missing_ok=True)
            return
        self._write(data)
        os.utime(self.path, ns=(self._time, self._time))

    def _write(self, data):
        packed = gzip.compress(data, mtime=0) if self._kind == "gzip" else data
        self.path.write_bytes(packed)


# What tasks read; a job that fails takes longer than the driver alone.
IN_TASKS = {
    "plain": ("replaced", "deleted"),
    "gzip": ("replaced", "deleted"),
    "open": ("appended", "truncated"),
}


@pytest.mark.parametrize("read_in", ["driver", "tasks"])
@pytest.mark.parametrize("kind", IN_TASKS)
def test_a_file_that_changes_is_named_or_has_no_effect(
    runner, sink_rows, tmp_path, monkeypatch, kind, read_in
):
    """What reads the file finds what was counted, or fails with its name: a stage and a sink
    that read the source, the sink's publication without what failed, the content of what failed,
    its trace, and its replay. Once the file is as it was, each goes on."""
    file = File(tmp_path, kind)
    harmful, steps = file.harmful, ["sifted", "copied"]
    if read_in == "tasks":
        monkeypatch.setattr(text, "HERE", 0)
        monkeypatch.setattr(text, "CUT_HERE", 0)
        harmful, steps = IN_TASKS[kind], ["sifted"]
    run = runner(numbers(tmp_path))
    batch = run.open()
    run.step(batch, "numbers")
    for change, step in product(harmful, steps):
        file.spoil(change)
        with named(file.path):
            run.step(batch, step)
    file.spoil(file.harmless)
    for step in ("sifted", "copied", "out"):
        run.step(batch, step)

    first = run.ledger.row("SELECT first_root FROM batch_source").first_root
    for change in harmful:
        file.spoil(change)
        with named(file.path):
            settle_and_follow(run.job, batch.batch_id)
        with named(file.path):
            run.ledger.keep_payloads(batch.batch_id)
        with named(file.path):
            trace(run.job.database, first + 2)
    verdicts = "SELECT root_id - :first AS n, step, status FROM failed_root_detail ORDER BY 1"
    lost = [n for n in range(10) if n not in file.passed]
    decided = [(n, "sifted" if n in LOST else "numbers", "failed") for n in lost]
    assert [tuple(row) for row in run.ledger.rows(verdicts, first=first)] == decided
    assert sink_rows("out", "n") == [(n,) for n in file.passed]
    assert list((tmp_path / "copied").glob("*=*")) == []
    file.spoil(file.harmless)
    settle_and_follow(run.job, batch.batch_id)
    assert trace(run.job.database, first + 2).tree.content == file.content
    assert sink_rows("copied", "n") == [(n,) for n in file.passed]
    contents = run.ledger.rows("SELECT content FROM failed_payload ORDER BY root_id")
    assert contents[0].content == file.content
    assert len(contents) == len(lost)

    again = runner(numbers(tmp_path, fixed=True))
    replay = again.open_replay(batch.batch_id)
    for change in harmful:
        file.spoil(change)
        with named(file.path):
            again.step(replay, "numbers")
    file.spoil(file.harmless)
    again.settled(replay)
    whole = [(n, f"name {n}") for n in file.numbers]
    assert sink_rows("out", "n", "s") == sink_rows("copied", "n", "s") == whole


def test_what_a_person_decides_needs_no_file(runner, sink_rows, tmp_path):
    """Failed records are explained and quarantined by what the ledger has, though their file is
    gone. A reprocess reads what is there by then: nothing, a file that is cut off, or more."""
    file = File(tmp_path, "gzip")
    run = runner(numbers(tmp_path))
    batch = run.open()
    for step in ("numbers", "sifted", "copied", "out"):
        run.step(batch, step)
    file.spoil("deleted")
    with named(file.path):
        settle_and_follow(run.job, batch.batch_id)
    first = run.ledger.row("SELECT first_root FROM batch_source").first_root
    explanation = run.ledger.explain(first + 2)
    assert (explanation.verdict, explanation.content) == ("failed", None)
    assert run.ledger.quarantine(batch_id=batch.batch_id).records == 3
    with named(file.path):
        settle_and_follow(run.job, batch.batch_id)
    assert sink_rows("out", "n") == [(n,) for n in file.passed]

    again = runner(numbers(tmp_path, fixed=True))
    replacing = again.open("again", reprocess=True)
    with pytest.raises(InputError, match=r"no file matches .*/in/\*"):
        again.step(replacing, "numbers")
    file.path.write_bytes(gzip.compress(b"n,s\n1,a\n")[:-9])
    with pytest.raises(InputError, match=r"a\.csv\.gz cannot be read: "):
        again.step(replacing, "numbers")
    file.spoil("appended")
    again.settled(replacing)
    whole = sorted([*((n, f"name {n}") for n in file.numbers), (2, "more")])
    assert sink_rows("out", "n", "s") == sink_rows("copied", "n", "s") == whole


def test_a_change_matters_to_the_records_of_its_block(runner, tmp_path, monkeypatch):
    """What failed is read from the block that it lies in, so a change elsewhere in the file has no
    effect on it; a record of a block that changed is never shown."""
    monkeypatch.setattr(blocks, "BLOCK", 40)
    file = File(tmp_path)
    run = runner(numbers(tmp_path))
    batch = run.open()
    for step in ("numbers", "sifted"):
        run.step(batch, step)
    first = run.ledger.row("SELECT first_root FROM batch_source").first_root
    file.spoil("truncated")
    assert trace(run.job.database, first + 2).tree.content == file.content
    with named(file.path):
        trace(run.job.database, first + 9)
    file.spoil("replaced")
    assert trace(run.job.database, first + 9).tree.content == '{"n": 9, "s": "name 9"}'
    with named(file.path):
        trace(run.job.database, first + 2)


@pytest.mark.parametrize(
    ("kind", "snapshot", "schema"),
    [
        ("plain", "copy", "n INT, s STRING"),
        ("gzip", "reference", "n INT, s STRING"),
        ("plain", "copy", "n FLOAT, s STRING"),  # which Spark writes
    ],
)
def test_a_file_that_changes_while_tasks_read_it_is_named(
    runner, tmp_path, monkeypatch, kind, snapshot, schema
):
    """Between listing and cutting, and between cutting and reading, which tasks do both: the
    source's step fails with the file's name, and reads it once it is whole."""
    monkeypatch.setattr(text, "HERE", 0)
    monkeypatch.setattr(text, "CUT_HERE", 0)
    file = File(tmp_path, kind)
    run = runner(numbers(tmp_path, schema=schema, snapshot=snapshot))
    batch = run.open()

    def spoil_first(*arguments, change):
        file.spoil(change)
        return text.blocks_of(*arguments)

    def cut_first(*arguments, change):
        own = text.blocks_of(*arguments)
        file.spoil(change)
        return own

    for change, spoiling in product(("truncated", "deleted"), (spoil_first, cut_first)):
        file.spoil(None)
        with monkeypatch.context() as patch:
            patch.setattr(reader, "blocks_of", partial(spoiling, change=change))
            with pytest.raises(InputError, match=re.escape(str(file.path))) as caught:
                run.step(batch, "numbers")
        words = error_text(caught.value)
        assert words.startswith(("source file ", "source 'numbers': "))
        assert not FOREIGN.search(words)
    file.spoil(None)
    assert run.step(batch, "numbers").record.failed_rows == 1
