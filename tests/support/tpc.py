"""Tables and queries of TPC-H and TPC-DS, and the answers without some of the records.

DuckDB generates the tables, and answers the queries where records are missing: in milliseconds, and
independently of Spark.
"""

import importlib
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

Values = tuple[Any, ...]
ID = "_anchor"
# The generator of each benchmark, and its scale: a few thousand rows in most tables.
GENERATORS = {"tpch": "CALL dbgen(sf=0.01)", "tpcds": "CALL dsdgen(sf=0.01)"}
_LIMIT = re.compile(r"\blimit\s+\d+\s*$", re.IGNORECASE)
_TABLES = re.compile(r'"type":"BASE_TABLE".*?"table_name":"(\w+)"')
# Spark's order of NULLs, and sums of floating point numbers that are the same each time.
_SETTINGS = "SET default_null_order = 'nulls_first_on_asc_last_on_desc'; SET threads = 1"


@dataclass(frozen=True)
class Query:
    """A query's text, and the tables in it."""

    text: str
    tables: tuple[str, ...]

    @property
    def unlimited(self) -> str:
        """The text without LIMIT at its end."""
        return _LIMIT.sub("", self.text)


class Benchmark:
    """The tables and queries of one benchmark.

    ``name``: "tpch" or "tpcds". ``folder``: gets a Parquet file for each table. Each record has an
    id that no record of another table has, in column ``_anchor`` of the files.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._duck = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        self._duck.execute(f"LOAD '{_extension(name)}'; {_SETTINGS}")
        self._duck.execute(f"CREATE SCHEMA {name}; USE {name}; {GENERATORS[name]}")
        self.files: dict[str, Path] = {}
        self._ids: dict[str, range] = {}
        for (table,) in self._rows("SELECT table_name FROM duckdb_tables() ORDER BY table_name"):
            self.files[table] = folder / f"{table}.parquet"
            self._number(table)
        self._make_views()
        texts = self._rows(f"SELECT query_nr, query FROM {name}_queries()")
        self.queries = {number: self._query(text) for number, text in texts}

    def table_of(self, record: int) -> str:
        """Return the table of a record."""
        return next(table for table, ids in self._ids.items() if record in ids)

    def records(self, table: str) -> range:
        """Return the ids of a table's records."""
        return self._ids[table]

    def answer(self, text: str) -> Counter[Values]:
        """Return the rows of a query over all records."""
        return self.answer_without(text, -1)

    def answer_without(self, text: str, record: int) -> Counter[Values]:
        """Return the rows of a query over all records but one."""
        self._duck.execute(f"USE without; SET VARIABLE missing = {record}")
        return Counter(self._rows(text))

    def answer_from(self, text: str, records: Collection[int]) -> Counter[Values]:
        """Return the rows of a query over these records only."""
        ids = pd.DataFrame({"id": sorted(records)}, dtype="int64")
        self._duck.register("ids", ids)
        self._duck.execute("CREATE OR REPLACE TABLE main.present AS SELECT id FROM ids; USE subset")
        return Counter(self._rows(text))

    def _number(self, table: str) -> None:
        first = max((ids.stop for ids in self._ids.values()), default=1)
        self._duck.execute(
            f"CREATE TABLE main.{table} AS SELECT *, rowid + {first} AS {ID} FROM {table};"
            f"COPY main.{table} TO '{self.files[table]}' (FORMAT parquet)"
        )
        ((count,),) = self._rows(f"SELECT count(*) FROM main.{table}")
        self._ids[table] = range(first, first + count)

    def _make_views(self) -> None:
        conditions = {
            "without": f"{ID} <> getvariable('missing')",
            "subset": f"{ID} IN (SELECT id FROM main.present)",
        }
        self._duck.execute("CREATE TABLE main.present (id BIGINT)")
        for schema, condition in conditions.items():
            self._duck.execute(f"CREATE SCHEMA {schema}")
            for table in self.files:
                self._duck.execute(
                    f"CREATE VIEW {schema}.{table} AS SELECT * EXCLUDE ({ID}) FROM main.{table}"
                    f" WHERE {condition}"
                )

    def _query(self, text: str) -> Query:
        ((tree,),) = self._duck.execute("SELECT json_serialize_sql($1)", [text]).fetchall()
        tables = tuple(sorted(set(self.files).intersection(_TABLES.findall(tree))))
        return Query(text.strip().removesuffix(";").rstrip(), tables)

    def _rows(self, text: str) -> list[Values]:
        return self._duck.execute(text).fetchall()


def _extension(name: str) -> Path:
    package = importlib.import_module(f"duckdb_extension_{name}")
    (file,) = Path(str(package.__file__)).parent.rglob("*.duckdb_extension")
    return file


def spread(values: Iterable[int], count: int) -> list[int]:
    """Return up to ``count`` of the values, at equal distances in their order."""
    ordered = sorted(values)
    step = max(1, len(ordered) // count)
    return ordered[step // 2 :: step][:count]
