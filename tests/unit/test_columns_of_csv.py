"""CSV read by columns: the exact reader's values, and no record that it fails."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import StringType

from ledger.core.column_names import ERROR
from ledger.sources.parsing.exact import Parser
from ledger.sources.vectorized import csv
from tests.support.csv_records import KINDS, cases, clean, form, records

SEED, RECORDS = 29, 1000


def exact(layout, texts):
    """What the exact reader makes of texts, in their order."""
    return Parser(layout).parse(texts)


def same(column, other):
    """Whether two columns have the same values, to the bit."""
    if pa.types.is_floating(column.type):  # of which 0 and -0 are equal
        column, other = (values.view(pa.int64()) for values in (column, other))
    return column.equals(other)


def shown(column):
    """Values to be printed: Python has no year 0."""
    temporal = pa.types.is_temporal(column.type)
    return (column.cast(pa.string()) if temporal else column).to_pylist()


def require_same(layout, texts, **cut):
    """Fail unless what is read by columns is what the exact reader makes of it, and nothing else
    has a value; returns which records were read. See also ``require_same_fields``."""
    read = csv.read(records(texts, **cut), layout)
    expected = exact(layout, texts)
    was_read = pa.array(read.was_read)
    errors = expected[ERROR].to_pylist()
    refused = [(texts[at], errors[at]) for at in np.flatnonzero(read.was_read) if errors[at]]
    assert refused == []
    assert read.columns.schema.names == layout.schema.names
    for name in layout.schema.names:
        column, value = read.columns.column(name), expected[name].combine_chunks()
        assert column.type == value.type
        if not same(column.filter(was_read), value.filter(was_read)):
            rows = zip(texts, read.was_read, shown(column), shown(value), strict=True)
            pytest.fail(f"{name}: {[row for row in rows if row[1] and row[2] != row[3]][:9]}")
        assert column.filter(pc.invert(was_read)).null_count == (~read.was_read).sum()
    require_same_fields(layout, texts, expected)
    return read.was_read


def require_same_fields(layout, texts, expected):
    """Fail unless the fields of records that parse, as keys of records are read without Spark, are
    those of the exact reader."""
    errors = expected[ERROR].to_pylist()
    parsed = [at for at, error in enumerate(errors) if error is None]
    fields = {at: layout.dialect.values(texts[at].decode()) for at in parsed}
    for field in layout.schema.fields:
        if isinstance(field.dataType, StringType) and field.name in layout.names:
            place, values = layout.names.index(field.name), expected[field.name].to_pylist()
            wrong = [(texts[at], values[at]) for at in parsed if fields[at][place] != values[at]]
            assert wrong == []


def test_nothing_is_read_but_what_the_exact_reader_reads():
    """Of nasty records in each form, those that are read by columns have the exact reader's values,
    and it fails none of them; of each form some are read."""

    def check(case):
        assert csv.reads(case.form), case.name
        was_read = require_same(case.form, case.texts)
        assert was_read.mean() >= case.ratio, case.name

    for case in cases(RECORDS, SEED):
        check(case)


@pytest.mark.parametrize("line_break", [b"\n", b"\r\n", b"\r", b"\n\r\n\r\r"])
def test_clean_records_are_read_as_a_whole(line_break):
    """Records that a program writes are all read, whatever ends a line; between them, and before
    the first, there may be empty lines."""
    layout = form([*KINDS, "unused"], "NA", schema=[*KINDS, "text2"])
    texts = clean(layout, 500, SEED)
    assert require_same(layout, texts, line_break=line_break, before=line_break).all()
