"""Anchors that are carried through the queries of TPC-H and TPC-DS: SQL over tracked tables.

All 22 queries of TPC-H and all 99 of TPC-DS are carried. ``make test`` runs those of TPC-H and a
sample of TPC-DS; ``make test-all`` runs the rest.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame

from ledger.errors import CarryError
from ledger.lineage.carry import carry
from tests.support.close_rows import pairs
from tests.support.tpc import Benchmark, Query, Values, spread

# Queries that are refused, with the operation that the error names.
REFUSED: dict[str, str] = {}
# Queries whose records are always compared. Of TPC-H: joins of many tables, outer joins, EXISTS,
# scalar subqueries, views. Of TPC-DS: CTEs, rollups, unions, windows, full outer joins, EXCEPT,
# INTERSECT.
SAMPLE = {
    *(f"tpch-{number}" for number in (2, 13, 15, 21, 22)),
    *(f"tpcds-{number}" for number in (5, 9, 12, 22, 38, 51, 87)),
}
QUERIES = [
    pytest.param(name, marks=() if name in SAMPLE else pytest.mark.exhaustive)
    for name in (
        *(f"tpch-{number}" for number in range(1, 23)),
        *(f"tpcds-{number}" for number in range(1, 100)),
    )
]
# Records per table that are removed in turn: with a row that names them, and without.
NAMED, UNNAMED = 5, 2
ALONE = 3  # rows per query that their records make again
# Queries of TPC-DS without a row at this scale: only their plans are tried.
EMPTY = {
    3, 4, 8, 10, 11, 19, 23, 24, 25, 30, 31, 37, 39, 41, 44, 49, 54, 58, 64, 65, 73, 74, 82, 83, 85,
    91, 93,
}  # fmt: skip
# Queries with a row that changes without a record that it does not name.
NEIGHBOURS = {
    # Counts of counts: a record that leaves one count enters another.
    "tpch-13",
    # All values are those of scalar subqueries.
    "tpcds-9",
    # Values of a window, as shares, averages and ranks: another row of the window has the record.
    *(f"tpcds-{number}" for number in (12, 20, 36, 47, 51, 53, 57, 63, 67, 86, 89, 98)),
}
# Queries with a row that stays the same without a record that it names.
INDIFFERENT = {
    # A sum or count ignores the record: by CASE, or because its value is NULL or 0.
    "tpch-8",
    *(f"tpcds-{number}" for number in (2, 22, 36, 42, 47, 52, 56, 57, 59, 60, 72)),
    # Equal rows: one of them is enough.
    *(f"tpcds-{number}" for number in (1, 87, 97)),
}


@dataclass(frozen=True)
class Answer:
    """The rows of a query, and the records of each row.

    ``records``: for each of DuckDB's rows that is equal to a carried row, the sets of ids.
    """

    query: Query
    benchmark: Benchmark
    records: dict[Values, list[frozenset[int]]]
    consults: bool


@pytest.fixture(scope="session")
def benchmark_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Benchmark]:
    """The benchmark of a name; its files are written once."""
    benchmarks: dict[str, Benchmark] = {}

    def benchmark(name: str) -> Benchmark:
        if name not in benchmarks:
            benchmarks[name] = Benchmark(name, tmp_path_factory.mktemp(name))
        return benchmarks[name]

    return benchmark


@pytest.fixture
def ansi_names(spark) -> Iterator[None]:
    """Names in double quotes, as TPC-DS has them."""
    setting = "spark.sql.ansi.doubleQuotedIdentifiers"
    spark.conf.set(setting, "true")
    yield
    spark.conf.unset(setting)


def carried_answer(spark, benchmark: Benchmark, query: Query) -> Answer:
    """Carry a query, and compare its rows with those of the bare query and of DuckDB."""

    def unchanged(*frames: DataFrame) -> DataFrame:
        for table, frame in zip(query.tables, frames, strict=True):
            frame.createOrReplaceTempView(table)
        return spark.sql(query.text)

    inputs = [spark.read.parquet(str(benchmark.files[table])) for table in query.tables]
    result = carry(unchanged, inputs)
    bare = [tuple(row) for row in result.bare.collect()]
    carried = [tuple(row) for row in result.carried.collect()]
    for table in query.tables:
        spark.catalog.dropTempView(table)
    everything = benchmark.answer(query.unlimited)
    assert len(carried) == len(bare)
    matches = pairs([row[:-1] for row in carried], everything.elements())
    # Rows that tie at a LIMIT may be others each time: both are of the rows without it.
    assert len(matches) == len(carried)
    assert len(pairs(bare, everything.elements())) == len(bare)
    if query.text == query.unlimited:
        assert len(carried) == everything.total()
    records = defaultdict(list)
    for (*_, ids), (_, row) in zip(carried, matches, strict=True):
        assert len(ids) == len(set(ids))
        records[row].append(frozenset(ids))
    return Answer(query, benchmark, records, bool(result.consulted))


def removed_in_turn(answer: Answer) -> Iterator[tuple[int, Counter[Values]]]:
    """Some records of each table, and the rows of the query without each of them."""
    named = frozenset().union(*(ids for sets in answer.records.values() for ids in sets))
    for table in answer.query.tables:
        ids = set(answer.benchmark.records(table))
        for record in [*spread(ids & named, NAMED), *spread(ids - named, UNNAMED)]:
            yield record, answer.benchmark.answer_without(answer.query.unlimited, record)


def changed_neighbours(answer: Answer, record: int, rows: Counter[Values]) -> list[Values]:
    """Rows that do not name a record, and are not there without it."""
    return [
        row
        for row, sets in answer.records.items()
        if sum(record not in ids for ids in sets) > rows[row]
    ]


def unchanged_rows(answer: Answer, record: int, rows: Counter[Values]) -> list[Values]:
    """Rows that name a record, and are there without it."""
    return [
        row
        for row, sets in answer.records.items()
        if any(record in ids for ids in sets) and rows[row] >= len(sets)
    ]


def incomplete_records(answer: Answer) -> list[Values]:
    """Rows that their records alone do not make again, of a few rows."""
    rows = list(answer.records)
    return [
        rows[at]
        for at in spread(range(len(rows)), ALONE)
        for ids in answer.records[rows[at]][:1]
        if not answer.benchmark.answer_from(answer.query.unlimited, ids)[rows[at]]
    ]


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_carries_the_records_of_its_rows(spark, ansi_names, benchmark_of, name):
    """The rows are those of the bare query. Without a record the rows that name it change, and no
    others. The records of a row make it again.
    """
    benchmark, number = name.split("-")
    query = benchmark_of(benchmark).queries[int(number)]
    if name in REFUSED:
        with pytest.raises(CarryError, match=REFUSED[name]):
            carried_answer(spark, benchmark_of(benchmark), query)
        return
    answer = carried_answer(spark, benchmark_of(benchmark), query)
    assert bool(answer.records) == (benchmark == "tpch" or int(number) not in EMPTY)
    removed = list(removed_in_turn(answer))
    assert any(changed_neighbours(answer, *world) for world in removed) == (name in NEIGHBOURS)
    assert any(unchanged_rows(answer, *world) for world in removed) == (name in INDIFFERENT)
    # A consulted record decides whether a row is there, and the row does not name it.
    assert answer.consults or name in NEIGHBOURS or not incomplete_records(answer)


@pytest.mark.parametrize(("benchmark", "carried"), [("tpch", 22), ("tpcds", 99)])
def test_the_share_of_carried_queries(benchmark_of, benchmark, carried):
    """All 22 queries of TPC-H and all 99 of TPC-DS are carried, by the test of each query."""
    names = {f"{benchmark}-{number}" for number in benchmark_of(benchmark).queries}
    assert names <= {case if isinstance(case, str) else case.values[0] for case in QUERIES}
    assert len(names - REFUSED.keys()) == carried
