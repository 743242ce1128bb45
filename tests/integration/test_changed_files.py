"""Files that change once their records are counted: what reads them later fails with the file's
name, or reads what was counted."""

import gzip
import os
import re
from functools import partial
from itertools import product

import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.errors import InputError
from ledger.sources.files import reader, text
from ledger.spark.failures import error_text
from tests.support.changing import CHANGES, FOREIGN


def numbers(folder, schema):
    """numbers -> out."""
    flow = Pipeline("numbers")
    flow.source("numbers", FileSource(f"{folder}/in/*", schema=schema))
    flow.sink("out", ParquetSink("out"), reads="numbers")
    return flow


class File:
    """A file of ten numbers, of which 4 does not parse. ``kind``: plain or gzip."""

    def __init__(self, folder, kind):
        rows = [f"{n if n != 4 else 'four'},name {n}" for n in range(10)]
        self._kind, self._text = kind, "\n".join(["n,s", *rows, ""]).encode()
        self.path = folder / "in" / ("a.csv.gz" if kind == "gzip" else "a.csv")
        self.path.parent.mkdir()
        self._write(self._text)
        self._time = self.path.stat().st_mtime_ns

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


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        ("plain", "n INT, s STRING"),
        ("gzip", "n INT, s STRING"),
        ("plain", "n FLOAT, s STRING"),  # which Spark writes
    ],
)
def test_a_file_that_changes_while_tasks_read_it_is_named(
    runner, tmp_path, monkeypatch, kind, schema
):
    """Between listing and cutting, and between cutting and reading, which tasks do both: the
    source's step fails with the file's name, and reads it once it is whole."""
    monkeypatch.setattr(text, "HERE", 0)
    monkeypatch.setattr(text, "CUT_HERE", 0)
    file = File(tmp_path, kind)
    run = runner(numbers(tmp_path, schema))
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
