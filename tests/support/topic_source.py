"""A source with offsets by partition, a recorded topic: docs/extending.md shows this module."""

import json
from pathlib import Path

from ledger import OffsetSource
from ledger.errors import InputError
from ledger.sources.parsing.typed import struct
from ledger.types.ddl import arrow_schema
from ledger.types.spark import nullable


class TopicSource(OffsetSource):
    """A topic in a folder: the messages of partition 0 are the lines of ``0.jsonl``, as JSON.

    An offset has, for each partition, how many messages come before it: ``{"0": 5, "1": 7}``.
    """

    def __init__(self, folder: str, schema: str):
        self.folder, self.schema = Path(folder), schema

    @property
    def shown(self):
        return f"topic {self.folder}"

    def latest(self, start, room):
        ends = {file.stem: count_lines(file) for file in sorted(self.folder.glob("*.jsonl"))}
        offset = dict.fromkeys(ends, 0) | (start or {})
        for partition in sorted(ends, key=lambda name: offset[name] - ends[name]):  # longest first
            new = ends[partition] - offset[partition]
            if new < 0:
                raise InputError(
                    f"partition {partition} of {self.shown} ends at {ends[partition]}, before"
                    f" offset {offset[partition]}: it was set up again, declare it under a new name"
                )
            taken = new if room is None else min(new, room)
            offset[partition] += taken
            room = None if room is None else room - taken
        return offset if any(offset.values()) else start

    def read(self, spark, start, end):
        begin = start or {}
        parts = [
            (str(self.folder / f"{partition}.jsonl"), begin.get(partition, 0), upto)
            for partition, upto in end.items()
            if upto > begin.get(partition, 0)
        ]
        messages = read_messages(arrow_schema(self.schema))
        ranges = spark.createDataFrame(parts, "path STRING, first BIGINT, upto BIGINT")
        rows = nullable(struct(self.schema))  # a null where none may be fails its record
        return ranges.repartition(max(1, len(parts))).mapInArrow(messages, rows)

    def commit(self, batch_id, end):
        file = self.folder / "committed.json"  # how far each partition is processed
        last = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(
            json.dumps(last | {name: max(n, last.get(name, 0)) for name, n in end.items()})
        )


def count_lines(file):
    with file.open("rb") as stream:
        return sum(line.endswith(b"\n") for line in stream)  # one that is being written has no end


def read_messages(schema):
    def read(batches):  # defined here, it travels to the executors with what it uses
        import json
        from itertools import islice

        import pyarrow

        for batch in batches:
            for part in batch.to_pylist():
                with open(part["path"]) as stream:
                    lines = islice(stream, part["first"], part["upto"])
                    messages = [json.loads(line) for line in lines]
                yield pyarrow.RecordBatch.from_pylist(messages, schema)

    return read
