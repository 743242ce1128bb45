"""Delta tables whose files tests write as other writers do."""

import json
import string
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

_DIGITS = (
    string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#"
)


class DeltaFiles:
    """A Delta table at a path, with these columns. Files are added as they are given."""

    def __init__(self, path: Path, columns: pa.Schema, partition_by: tuple[str, ...] = ()):
        self.path = path
        self._partition_by = list(partition_by)
        DeltaTable.create(str(path), columns, partition_by=self._partition_by)

    @property
    def table(self) -> DeltaTable:
        """The newest version."""
        return DeltaTable(str(self.path))

    @property
    def version(self) -> int:
        """The number of the newest version."""
        return self.table.version()

    def add(self, rows: pa.Table, values: dict[str, str | None] | None = None) -> str:
        """Append rows as one file, and return its name. Without rows there is no file.

        ``values``: the values of the partition columns, as text.
        """
        if not len(rows):
            return ""
        name = f"part-{uuid4()}.parquet"
        pq.write_table(rows, self.path / name)
        size = (self.path / name).stat().st_size
        stats = json.dumps({"numRecords": len(rows)})
        action = AddAction(name, size, values or {}, int(time.time() * 1000), True, stats)
        table = self.table
        table.create_write_transaction([action], "append", table.schema(), self._partition_by)
        return name

    def delete_rows(self, name: str, rows: list[int]) -> None:
        """Delete rows of a file, by their numbers in it from 0, with a deletion vector."""
        schema = json.loads(self.table.schema().to_json())
        metadata = self.table.metadata()
        vector = _vector(rows)
        file = {
            "path": name,
            "partitionValues": {},
            "size": (self.path / name).stat().st_size,
            "modificationTime": 0,
            "dataChange": True,
            "stats": json.dumps({"numRecords": pq.ParquetFile(self.path / name).metadata.num_rows}),
        }
        features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
        actions = [
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
            {
                "metaData": {
                    "id": str(metadata.id),
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps(schema),
                    "partitionColumns": [],
                    "configuration": {"delta.enableDeletionVectors": "true"},
                }
            },
            {"remove": {"path": name, "deletionTimestamp": 0, "dataChange": True}},
            {
                "add": {
                    **file,
                    "deletionVector": {
                        "storageType": "i",
                        "pathOrInlineDv": _z85(vector),
                        "sizeInBytes": len(vector),
                        "cardinality": len(rows),
                    },
                }
            },
        ]
        path = self.path / "_delta_log" / f"{self.version + 1:020}.json"
        path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))

    def clear(self) -> None:
        """Delete all rows, and the files that had them."""
        self.table.delete()
        self.vacuum()

    def vacuum(self) -> None:
        """Remove all files that the newest version does not have."""
        self.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def change_log(self, version: int, change: Callable[[dict[str, Any]], None]) -> None:
        """Change each action of a version."""
        path = self.path / "_delta_log" / f"{version:020}.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            change(action)
        path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def _vector(rows: list[int]) -> bytes:
    """A deletion vector of few rows: an array of one Roaring bitmap with one array container."""
    values = struct.pack(f"<{len(rows)}H", *sorted(rows))
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + values
    content = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    return content + b"\0" * (-len(content) % 4)


def _z85(content: bytes) -> str:
    """The text of bytes in Z85, four bytes in five characters."""
    text = ""
    for (number,) in struct.iter_unpack(">I", content):
        digits = [number // 85**power % 85 for power in range(4, -1, -1)]
        text += "".join(_DIGITS[digit] for digit in digits)
    return text
