"""Anchors carried through unchanged functions, against loops that name each row's records."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import xor as xor_of

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.deltas.stored import LOW_BITS
from ledger.lineage.anchors import NUMBERS, RowNumbers
from ledger.lineage.carry import Following, carry
from tests.support.carried import FIRST, SCHEMA, SECOND, carried_rows, counted, frame_of
from tests.support.relations import OPERATIONS, Rows

# An operation, and for each of its operands the number of an input or of an earlier operation.
Plan = Sequence[tuple[str, tuple[int, ...]]]


def function_of(plan: Plan) -> Callable[..., DataFrame]:
    """The function of frames that a plan stands for."""

    def unchanged(*frames: DataFrame) -> DataFrame:
        results = list(frames)
        for name, operands in plan:
            results.append(OPERATIONS[name].in_spark(*(results[at] for at in operands)))
        return results[-1]

    return unchanged


def by_hand(plan: Plan, *inputs: Rows) -> Rows:
    """The rows of a plan and their records, by loops."""
    results = list(inputs)
    for name, operands in plan:
        results.append(OPERATIONS[name].by_hand(*(results[at] for at in operands)))
    return results[-1]


def inputs_of(plan: Plan) -> list[int]:
    """The inputs below the last operation of a plan, out of two."""
    below, todo = set(), [len(plan) + 1]
    while todo:
        at = todo.pop()
        if at < 2:
            below.add(at)
        else:
            todo += plan[at - 2][1]
    return sorted(below)


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_carries_the_records_of_its_rows(spark, name):
    """One operation over rows with NULLs and doubled keys: its rows and their records are right."""
    inputs = (FIRST, SECOND)[: OPERATIONS[name].takes]
    expected = OPERATIONS[name].by_hand(*inputs)
    result = carry(OPERATIONS[name].in_spark, [frame_of(spark, rows) for rows in inputs])
    assert carried_rows(result.carried) == counted(expected)
    assert Counter(map(tuple, result.bare.collect())) == Counter(row[:2] for row in expected)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Up to five operations, each over inputs and earlier results; the last is the output."""
    plan: list[tuple[str, tuple[int, ...]]] = []
    for _ in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from(sorted(OPERATIONS)))
        newest = len(plan) + 1
        operands = [draw(st.integers(0, newest)) for _ in range(OPERATIONS[name].takes)]
        if plan:
            operands[draw(st.integers(0, len(operands) - 1))] = newest
        plan.append((name, tuple(operands)))
    return plan


def relations(first_id: int) -> st.SearchStrategy[Rows]:
    """Up to seven rows of one record each, with NULLs and doubled keys."""
    value = st.none() | st.integers(0, 3)
    pairs = st.lists(st.tuples(value, value), max_size=7)
    return pairs.map(
        lambda rows: [(k, v, frozenset({first_id + at})) for at, (k, v) in enumerate(rows)]
    )


@settings(
    max_examples=15,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=plans(), first=relations(100), second=relations(200))
def test_random_plans_carry_what_loops_name(spark, plan, first, second):
    """Rows and records of random plans equal those of the loops."""
    used = inputs_of(plan)
    inputs = [(first, second)[at] for at in used]
    renumbered = [
        (name, tuple(used.index(at) if at < 2 else at - 2 + len(used) for at in operands))
        for name, operands in plan
    ]
    result = carry(function_of(renumbered), [frame_of(spark, rows) for rows in inputs])
    assert carried_rows(result.carried) == counted(by_hand(renumbered, *inputs))


@settings(max_examples=200)
@given(plan=plans(), first=relations(100), second=relations(200), data=st.data())
def test_loops_hold_in_possible_worlds(plan, first, second, data):
    """Without a record, rows of a monotone plan that do not name it stay; the records of a row
    make it again. So the loops name the right records.
    """
    plan = [(name, operands) for name, operands in plan]
    if not all(OPERATIONS[name].is_monotone for name, _ in plan):
        return
    rows = by_hand(plan, first, second)
    ids = sorted({record_id for _, _, records in (*first, *second) for record_id in records})
    if not ids or not rows:
        return
    removed = data.draw(st.sampled_from(ids))
    without = [[row for row in side if removed not in row[2]] for side in (first, second)]
    stayed = Counter(row for row in rows if removed not in row[2])
    assert not stayed - counted(by_hand(plan, *without))
    row = data.draw(st.sampled_from(rows))
    alone = [[each for each in side if each[2] <= row[2]] for side in (first, second)]
    assert row[:2] in {each[:2] for each in by_hand(plan, *alone)}


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"cte_twice"}))
def test_numbers_agree_with_lists(spark, name):
    """Count, XOR and sum of each row's records are those of the ids that the loops name. (A join of
    a group with itself has each record twice, which numbers show and lists do not.)
    """
    inputs = (FIRST, SECOND)[: OPERATIONS[name].takes]
    ids = sorted({record for rows in inputs for *_, records in rows for record in records})
    hashed = spark.createDataFrame([(each,) for each in ids], "id bigint")
    hashes = dict(map(tuple, hashed.selectExpr("id", "xxhash64(id)").collect()))
    expected = Counter()
    for k, v, records in OPERATIONS[name].by_hand(*inputs):
        values = [hashes[record] for record in records]
        xor = reduce(xor_of, values, 0)
        expected[k, v, len(values), xor, sum(value & LOW_BITS for value in values)] += 1
    frames = [frame_of(spark, rows) for rows in inputs]
    numbers = carry(OPERATIONS[name].in_spark, frames, form=NUMBERS).carried
    assert Counter(map(tuple, numbers.collect())) == expected
    as_struct = carry(OPERATIONS[name].in_spark, frames, form=RowNumbers("bigint")).carried
    fields = as_struct.select("k", "v", "_anchor.*")
    assert Counter(map(tuple, fields.collect())) == expected


def test_numbers_of_groups_are_grouped_again(spark):
    """Rows that already have numbers may be grouped, joined and united as if they had lists."""

    def totals(rows):
        return rows.groupBy("k", "v").count()

    def again(groups):
        outer = groups.where("k = 1").join(groups.selectExpr("v AS w"), F.col("v") == F.col("w"))
        return outer.select("k").unionByName(groups.select("k")).groupBy("k").count()

    kind = "struct<root:bigint,parent:bigint>"
    ids = F.struct(F.col("_anchor").alias("root"), F.col("v").alias("parent")).alias("_anchor")
    rows = frame_of(spark, FIRST).select("k", "v", ids)
    expected = Counter()
    for k, hashed in rows.selectExpr("k", "xxhash64(_anchor.root, _anchor.parent)").collect():
        expected[k] += hashed & LOW_BITS
    form = RowNumbers(kind)

    def followed(function, frame):
        following = Following("function", {"rows": frame}, form)
        with following.watching():
            result = function(*following.bare)
        return following.carried(result, ["_anchor"], id_alone=True)

    first = followed(totals, rows)
    assert first.schema["_anchor"].dataType.simpleString() == (
        "struct<records:bigint,xor:bigint,sum:bigint>"
    )
    per_key = followed(lambda groups: groups.groupBy("k").count(), first)
    assert {row.k: row._anchor.sum for row in per_key.collect()} == expected
    assert sum(row._anchor.records for row in per_key.collect()) == len(FIRST)
    twice = {row.k: row._anchor.records for row in followed(again, first).collect()}
    assert twice == {1: 9, 2: 1, 3: 1, 4: 2, None: 2}


# What is done with the rows of an outer join.
ABOVE_OUTER_JOINS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "group": lambda rows: rows.groupBy("k").agg(F.max("v").alias("v")),
    "nothing": lambda rows: rows,
    "rollup": lambda rows: rows.rollup("k").agg(F.max("v").alias("v")),
    "subtract": lambda rows: rows.subtract(rows.where("v = 2")),
    "union": lambda rows: rows.union(rows.where("v = 1")),
}


@pytest.mark.parametrize(
    ("how", "above"),
    [
        ("left", "group"),
        ("left", "rollup"),
        ("outer", "nothing"),
        ("outer", "subtract"),
        ("right", "union"),
    ],
)
def test_a_side_without_a_row_has_no_record(spark, how, above):
    """A row of an outer join has no record of a side without a row, also where an input's ids are
    never NULL.
    """

    def joined(first, second):
        others = second.selectExpr("k AS l", "v AS w")
        rows = first.join(others, (F.col("k") == F.col("l")) & (F.col("v") == F.col("w")), how)
        return ABOVE_OUTER_JOINS[above](rows.select(F.coalesce("k", "l").alias("k"), "v"))

    may_be_null, never_null = (
        carried_rows(
            carry(
                joined,
                [
                    spark.createDataFrame([(k, v, *ids) for k, v, ids in rows], schema)
                    for rows in (FIRST, SECOND)
                ],
            ).carried
        )
        for schema in (SCHEMA, f"{SCHEMA} NOT NULL")
    )
    assert never_null == may_be_null
    records = {record for rows in (FIRST, SECOND) for *_, ids in rows for record in ids}
    assert all(ids <= records for *_, ids in never_null)


def test_columns_with_metadata_of_spark_are_followed(spark):
    """The key of the right side of a USING join has metadata that Spark leaves out of new texts."""

    def first_keys(first, second):
        rows = first.alias("l").join(second.alias("r"), "k", "left").select("l.v", "r.k")
        return rows.dropDuplicates(["v"]).select("k", "v")

    rows = carried_rows(
        carry(first_keys, [frame_of(spark, FIRST), frame_of(spark, SECOND)]).carried
    )
    assert len(rows) == len({v for _, v, _ in FIRST})


def test_the_settings_of_a_frames_session_hold(spark):
    """A rewritten plan is checked with its session's settings, in a thread that has no session."""
    key = "spark.sql.legacy.allowHashOnMapType"

    def hashed(rows):
        return rows.select("k", F.xxhash64(F.create_map("k", "v")).alias("v"))

    inputs = [frame_of(spark, FIRST[:4])]
    spark.conf.set(key, True)
    try:
        with ThreadPoolExecutor(1) as threads:
            rows = carried_rows(threads.submit(carry, hashed, inputs).result().carried)
    finally:
        spark.conf.unset(key)
    assert Counter(k for k, _, _ in rows.elements()) == Counter(k for k, _, _ in FIRST[:4])
