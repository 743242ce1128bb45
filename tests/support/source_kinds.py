"""Every kind of source with the same records, for the contract that all of them keep."""

import csv
import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ledger import DeltaSource, FileSource, SqlSource
from tests.support.arrow_source import ArrowSource
from tests.support.delta_tables import DeltaFiles
from tests.support.topic_source import TopicSource

SCHEMA = "id INT, n INT NOT NULL"
DELTA_COLUMNS = pa.schema([("id", pa.int32()), pa.field("n", pa.int32(), nullable=False)])
_TYPES = pa.schema([("id", pa.int32()), ("n", pa.int32())])


class Kind:
    """A source outside and its declaration. ``spoilt``: a value of n that is malformed;
    ``reason``: why it fails. ``refused``: what is said of ``misfit``, which does not fit."""

    incremental = False
    spoilt = None
    reason = "n is null"
    refused = "no file matches"

    def __init__(self, folder: Path):
        self.folder = folder / "in"
        self.folder.mkdir()
        self.files = 0

    def add(self, *records):
        """Bring records (id, n), together."""
        raise NotImplementedError

    def clear(self):
        """Take everything away."""
        for path in self.folder.iterdir():
            path.unlink()

    def declared(self):
        """The source as a pipeline declares it."""
        raise NotImplementedError

    def misfit(self):
        """The declaration of a source that does not fit what is there, or finds nothing there."""
        self.clear()
        return self.declared()

    def next_file(self, ending):
        self.files += 1
        return self.folder / f"{self.files}.{ending}"


class Csv(Kind):
    """Text files by interval."""

    spoilt = "x"
    reason = "malformed csv: n: expected int, found x"

    def add(self, *records):
        with self.next_file("csv").open("w", newline="") as stream:
            csv.writer(stream).writerows([("id", "n"), *records])

    def declared(self):
        return FileSource("in/*.csv", schema=SCHEMA, incremental=self.incremental)


class NewCsv(Csv):
    """Text files, each once."""

    incremental = True
    refused = "is an archive"

    def misfit(self):
        (self.folder / "packed.csv.xz").write_bytes(b"")
        return FileSource("in/*", schema=SCHEMA, incremental=True)


class Json(Kind):
    """Lines of JSON by interval."""

    spoilt = "x"
    reason = "malformed json: n: expected int, found x"

    def add(self, *records):
        lines = [json.dumps({"id": id, "n": n}) for id, n in records]
        self.next_file("json").write_text("".join(f"{line}\n" for line in lines))

    def declared(self):
        return FileSource("in/*.json", schema=SCHEMA, format="json")


class Parquet(Kind):
    """Parquet files by interval."""

    def add(self, *records):
        pq.write_table(_table(records), self.next_file("parquet"))

    def declared(self):
        return FileSource("in/*.parquet", schema=SCHEMA, format="parquet")


class ParquetInPlace(Parquet):
    """Parquet files that are not copied."""

    def declared(self):
        return FileSource("in/*.parquet", schema=SCHEMA, format="parquet", copy=False)


class Arrow(Kind):
    """A kind of the tests' own, by interval."""

    refused = "expected column n of type int32, found string"

    def add(self, *records):
        self._write(_table(records))

    def declared(self):
        return ArrowSource("in/*.arrow", SCHEMA, incremental=self.incremental)

    def misfit(self):
        self._write(pa.table({"id": pa.array([1], pa.int32()), "n": ["one"]}))
        return self.declared()

    def _write(self, table):
        path = str(self.next_file("arrow"))
        with pa.OSFile(path, "wb") as stream, pa.ipc.new_file(stream, table.schema) as file:
            file.write_table(table)


class NewArrow(Arrow):
    """A kind of the tests' own, each file once."""

    incremental = True


class Delta(Kind):
    """A Delta table by interval: its newest version."""

    refused = "no Delta table"

    def __init__(self, folder):
        super().__init__(folder)
        self.table = DeltaFiles(self.folder / "numbers", DELTA_COLUMNS)

    def add(self, *records):
        self.table.add(_table(records))

    def clear(self):
        self.table.clear()

    def declared(self):
        return DeltaSource("in/numbers", incremental=self.incremental)

    def misfit(self):
        return DeltaSource("in/others", incremental=self.incremental)


class NewDelta(Delta):
    """A Delta table: what was appended."""

    incremental = True


class Table(Kind):
    """A table of SQLite."""

    incremental = True
    spoilt = "x"
    reason = "malformed row: n: expected int NOT NULL, found x"
    refused = "has no column 'm', it has id, n"

    def __init__(self, folder):
        super().__init__(folder)
        self._do("CREATE TABLE numbers (id INTEGER PRIMARY KEY, n INTEGER)")

    def add(self, *records):
        with sqlite3.connect(self.folder / "shop.db") as connection:
            connection.executemany("INSERT INTO numbers VALUES (?, ?)", records)
        connection.close()

    def clear(self):
        self._do("DELETE FROM numbers")

    def declared(self, schema=SCHEMA):
        url = f"sqlite:///{self.folder}/shop.db"
        return SqlSource(url, "numbers", cursor="id", schema=schema)

    def misfit(self):
        return self.declared("id INT, m INT")

    def _do(self, statement):
        with sqlite3.connect(self.folder / "shop.db") as connection:
            connection.execute(statement)
        connection.close()


class Topic(Kind):
    """A recorded topic of two partitions, read by offsets."""

    incremental = True
    refused = "expected an attribute schema of TopicSource"

    def add(self, *records):
        for id, n in records:
            with (self.folder / f"{id % 2}.jsonl").open("a") as stream:
                stream.write(json.dumps({"id": id, "n": n}) + "\n")

    def declared(self, schema=SCHEMA):
        return TopicSource(str(self.folder), schema)

    def misfit(self):
        return self.declared("")


def _table(records):
    columns = list(zip(*records, strict=True)) or [(), ()]
    return pa.table(
        [pa.array(column, kind) for column, kind in zip(columns, _TYPES.types, strict=True)],
        schema=_TYPES,
    )


KINDS = (Csv, NewCsv, Json, Parquet, ParquetInPlace, Arrow, NewArrow, Delta, NewDelta, Table, Topic)
