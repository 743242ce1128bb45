"""What a record stage makes of batches, against the same record by record in plain Python."""

import subprocess
import sys
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ledger.core.outcomes import FailedRecord, dropped
from ledger.core.text import as_reason
from ledger.errors import shown
from ledger.spark.steps.record_task import Taking, transform
from ledger.types.fitting import yielded

MISFIT = object()
NOON = datetime(2024, 1, 5, 12)

# For each column its type, and values with what becomes of them.
COLUMNS = {
    "n": (
        StructField("n", IntegerType(), nullable=False),
        [(1, 1), (-7, -7), (3.0, 3), (np.int64(4), 4), (True, MISFIT), (3.7, MISFIT),
         (2**31, MISFIT), ("5", MISFIT), (None, MISFIT)],
    ),
    "s": (
        StructField("s", StringType()),
        [("a", "a"), ("", ""), ("é\U0001f600", "é\U0001f600"), (np.str_("t"), "t"), (None, None),
         ("a\0b", MISFIT), ("\0", MISFIT), ("a\ud800", MISFIT), (5, MISFIT)],
    ),
    "f": (
        StructField("f", FloatType()),
        [(1.5, 1.5), (2, 2.0), (float("inf"), float("inf")), (None, None), (1e300, MISFIT),
         ("1", MISFIT)],
    ),
    "p": (
        StructField("p", DecimalType(10, 2)),
        [(Decimal("1.20"), Decimal("1.20")), (1, Decimal("1.00")), (Decimal("1.239"), MISFIT)],
    ),
    "d": (
        StructField("d", DateType()),
        [(date(2024, 1, 5), date(2024, 1, 5)), (None, None), (NOON, MISFIT)],
    ),
    "t": (
        StructField("t", TimestampType()),
        [(NOON, NOON.replace(tzinfo=UTC)), (None, None), (date(2024, 1, 5), MISFIT)],
    ),
    "l": (
        StructField("l", ArrayType(StringType())),
        [([], []), (["a", None], ["a", None]), (("b",), ["b"]), (["a", 1], MISFIT)],
    ),
    "m": (
        StructField("m", MapType(StringType(), ArrayType(IntegerType()))),
        [({}, []), ({"k": [1]}, [("k", [1])]), ({"k": ["v"]}, MISFIT)],
    ),
}  # fmt: skip
SCHEMAS = [["n"], ["s"], ["n", "s"], ["s", "f", "p", "d", "t"], list(COLUMNS)]
INPUT = ["id", "secret", "tags", "root", "parent"]


def actions(names):
    """What a function does for a record, step by step: yields, drops, and what makes it fail."""

    def dicts(columns, wanted=lambda pair: True):
        values = {
            name: st.sampled_from([pair for pair in COLUMNS[name][1] if wanted(pair)])
            for name in columns
        }
        return st.fixed_dictionaries(values)

    fitting = dicts(names, lambda pair: pair[1] is not MISFIT)
    some = st.lists(st.sampled_from(names), unique=True).flatmap(dicts)
    kinds = st.sampled_from([dict, dict, OrderedDict, lambda items: defaultdict(int, items)])
    good = st.tuples(st.just("yield"), fitting, kinds)
    return st.lists(
        st.one_of(
            good, good, good,
            st.tuples(st.just("yield"), dicts(names) | some, kinds),
            st.tuples(st.sampled_from(["drop", "fail", "raise", "strange", "unknown", "other"])),
        ),
        max_size=4,
    )  # fmt: skip


@st.composite
def stages(draw):
    """A schema, and what the function does for each record of some batches. Most records have one
    row, as of most stages; so whole batches take the short way, too.
    """
    names = draw(st.sampled_from(SCHEMAS))
    good = {name: COLUMNS[name][1][0] for name in names}
    record = st.just([("yield", good, dict)]) | actions(names)
    even = st.lists(st.just([("yield", good, dict)]), max_size=6)
    return names, draw(st.lists(even | st.lists(record, max_size=6), max_size=3))


def copied(value):
    """A list or a map that shares nothing with its original."""
    if isinstance(value, dict):
        return {key: list(entry) for key, entry in value.items()}
    return list(value) if isinstance(value, list) else value


def played(names, scripts):
    """The function of the stage: it changes whatever it has yielded, and the record, at once."""

    def function(record):
        secret, record["secret"] = record["secret"], "changed"
        record["tags"].append("changed")
        for what, *details in scripts[record["id"]]:
            if what == "yield":
                pairs, kind = details
                item = kind({name: copied(value) for name, (value, _) in pairs.items()})
                yield item
                for value in item.values():
                    if isinstance(value, list):
                        value.append("changed")
                    elif isinstance(value, dict):
                        for element in value.values():
                            element.append("changed")
                for name in names:
                    item[name] = "changed"
            elif what == "drop":
                yield dropped(f"small {secret} \0")
            elif what == "fail":
                raise FailedRecord(f"bad {secret}")
            elif what == "raise":
                raise KeyError(secret)
            elif what == "strange":
                yield 9
            else:  # as many columns as there are, or more of them
                item = dict.fromkeys(names)
                if what == "other":
                    del item[names[0]]
                yield {**item, "thrice": 1}

    return function


def expected(names, script, secret, redacts):
    """The rows of one record: values, why it failed, why it was dropped."""

    def shown(kind, text):
        return f"{kind}: {'***' if redacts else text}"

    nothing = (None,) * len(names)
    rows, misfit = [], None
    for what, *details in script:
        error = {
            "fail": "FailedRecord: ***" if redacts else f"bad {secret}",
            "raise": shown("KeyError", repr(secret)),
            "strange": shown("TypeError", "yielded int, expected a dict or dropped(reason)"),
        }.get(what)
        if what in ("unknown", "other"):
            text = f"yielded column 'thrice', the schema has {', '.join(names)}"
            error = shown("TypeError", text)
        if error is not None:
            return [(nothing, error, None)]
        if what == "drop":
            rows.append((nothing, None, "***" if redacts else f"small {secret} \\x00"))
            continue
        row = []
        for name in names:
            field = COLUMNS[name][0]
            value, becomes = details[0].get(name, (None, None if field.nullable else MISFIT))
            row.append(becomes)
            if becomes is MISFIT and misfit is None:
                kind = field.dataType.simpleString() + ("" if field.nullable else " NOT NULL")
                text = "NULL" if value is None else "***" if redacts else str(value)
                misfit = f"yielded {name}: expected {kind}, found {text}"
        rows.append((tuple(row), None, None))
    if misfit is not None:
        return [(nothing, as_reason(misfit), None)]
    return rows or [(nothing, "emitted nothing", None)]


@pytest.mark.parametrize("redacts", [False, True], ids=["open", "redacted"])
@settings(max_examples=150)
@given(stages())
def test_batches_of_a_record_stage(redacts, drawn):
    """Values, failures, drops and anchors are those of each record by itself, in its order,
    whatever else is in its batch."""
    names, batches = drawn
    schema = StructType([COLUMNS[name][0] for name in names])
    scripts = [script for batch in batches for script in batch]
    arrays, first = [], 0
    for batch in batches:
        ids = range(first, first + len(batch))
        columns = [
            pa.array(ids, pa.int32()), pa.array([f"secret{n}" for n in ids], pa.string()),
            pa.array([[str(n)] for n in ids], pa.list_(pa.string())),
            pa.array([n + 100 for n in ids], pa.int64()), pa.array(ids, pa.int64()),
        ]  # fmt: skip
        arrays.append(pa.RecordBatch.from_arrays(columns, [f"_{n}" for n in range(len(INPUT))]))
        first += len(batch)
    stage = (played(names, scripts), Taking(schema), yielded(schema))
    outputs = list(transform(*stage, INPUT, INPUT[-2:], iter(arrays)))
    assert [output.schema.names for output in outputs] == [
        [*names, *INPUT[-2:], "_failed", "_dropped"]
    ] * len(batches)
    rows = [
        (values, [n + 100, n], failed, reason)
        for n, script in enumerate(scripts)
        for values, failed, reason in expected(names, script, f"secret{n}", redacts)
    ]
    entries = [tuple(row.values()) for output in outputs for row in output.to_pylist()]
    width = len(names)
    marks = [[why and shown(why, masks=redacts) for why in row[-2:]] for row in entries]
    others = [(row[:width], list(row[width:-2])) for row in entries]
    assert [(*row, *why) for row, why in zip(others, marks, strict=True)] == rows


@given(st.lists(st.sampled_from(COLUMNS["s"][1]), max_size=40))
def test_misfits_of_a_long_column(pairs):
    """However many values do not fit, each row that does not is named, and each other has its
    value."""
    fitting = yielded(StructType([COLUMNS["s"][0], StructField("i", IntegerType())]))
    numbers = range(len(pairs))
    columns, misfits = fitting.fit_columns([[value for value, _ in pairs], numbers])
    bad = [n for n, (_, becomes) in enumerate(pairs) if becomes is MISFIT]
    assert sorted(misfits) == bad
    assert columns[0].to_pylist() == [None if n in bad else pairs[n][1] for n in numbers]
    assert columns[1].to_pylist() == [None if n in bad else n for n in numbers]


@pytest.mark.parametrize(
    ("imported", "spared"),
    [
        ("ledger.spark.steps.record_task", {"sqlalchemy", "psycopg2", "fsspec", "airflow"}),
        ("ledger.pipeline.pipeline", {"sqlalchemy", "psycopg2", "airflow"}),
    ],
)
def test_a_worker_imports_little(imported, spared):
    """What travels to a worker needs no database, storage or settings, nor does what declares a
    pipeline: each would be imported by every worker, or by every process of Airflow."""
    spared |= {"pydantic_settings"}
    script = f"import sys, {imported}; print(*{spared} & sys.modules.keys())"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (printed.stdout.strip(), printed.returncode) == ("", 0), printed.stderr
