"""Two relations with NULLs and doubled keys, as rows with their records and as frames with ids."""

from collections import Counter

from pyspark.sql import DataFrame, SparkSession

from tests.support.relations import Row, Rows

SCHEMA = "k bigint, v bigint, _anchor bigint"
FIRST: Rows = [
    (1, 0, frozenset({10})),
    (1, 2, frozenset({11})),
    (1, 2, frozenset({12})),
    (2, 3, frozenset({13})),
    (3, None, frozenset({14})),
    (None, 4, frozenset({15})),
    (None, None, frozenset({16})),
    (4, 1, frozenset({17})),
    (4, 1, frozenset({18})),
]
SECOND: Rows = [
    (1, 3, frozenset({20})),
    (1, 2, frozenset({21})),
    (2, 1, frozenset({22})),
    (None, 4, frozenset({23})),
    (5, 1, frozenset({24})),
    (3, None, frozenset({25})),
]


def frame_of(spark: SparkSession, rows: Rows) -> DataFrame:
    """Rows of one record each, as an input with its ids."""
    return spark.createDataFrame([(k, v, *ids) for k, v, ids in rows], SCHEMA)


def counted(rows: Rows) -> Counter[Row]:
    """Rows as a multiset."""
    return Counter(rows)


def carried_rows(frame: DataFrame) -> Counter[Row]:
    """Rows of a carried frame as a multiset; each list names a record once."""
    rows = [tuple(row) for row in frame.collect()]
    assert all(len(ids) == len(set(ids)) for *_, ids in rows)
    return Counter((k, v, frozenset(ids)) for k, v, ids in rows)
