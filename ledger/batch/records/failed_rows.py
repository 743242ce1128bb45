"""Rows of failed records, copied from a version to the folder of the source's run.

A copied snapshot has the rows of failed records for as long as they may be replayed. The files of a
version may be removed before, by a vacuum.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from uuid import uuid4

import numpy as np
import pyarrow as pa

from ledger.batch.records.snapshots import Payload, needed_for, read_rows, rows_at
from ledger.core.column_names import FILE, ROOT
from ledger.core.declared_steps import DeclaredStep
from ledger.core.redaction import NOTHING
from ledger.deltas.table_writer import TableWriter
from ledger.errors import LostFileError
from ledger.storage import parquet, stores
from ledger.storage.folders import private_output
from ledger.storage.manifest import DataFile, Manifest, check_files, version_file
from ledger.storage.versions import Version, version_of
from ledger.store.queries.payloads import EmittedRecords

_PREFIX = "failed-"


def copy_rows(manifest: Manifest, emitted: EmittedRecords) -> None:
    """Copy the rows of records from a version, with ``ROOT``, to the folder of the run that has
    described it. Do nothing if the manifest is that of a copy. Safe to repeat.
    """
    version, own = version_of(manifest), version_file(manifest)
    if version is None or own is None:
        return
    check_files(needed_for(manifest, emitted))
    folder = own.path.rpartition("/")[0]
    schema = json.loads(version.schema)
    schema["fields"].append({"name": ROOT, "type": "long", "nullable": True, "metadata": {}})
    columns = version.columns.append(pa.field(ROOT, pa.int64()))
    noted = {parquet.SPARK_SCHEMA: json.dumps(schema)}
    path = f"{folder}/{_PREFIX}{uuid4().hex}.parquet"
    with private_output(folder), TableWriter(path, columns, noted) as writer:
        for file, numbers in files_of(version, emitted):
            with parquet.stored_file(file.path, version.about.if_lost) as stored:
                rows = version.completed(rows_at(stored, numbers), file).drop_columns([FILE])
            roots = numbers + file.first_position + emitted.first_root
            writer.write([*rows.columns, pa.array(roots, pa.int64())])
        writer.finish()


def files_of(version: Version, emitted: EmittedRecords) -> list[tuple[DataFile, "np.ndarray"]]:
    """Return the files of a version that have some of the records, each with the rows' numbers in
    it, from 0.
    """
    positions = np.asarray(emitted.roots, np.int64) - emitted.first_root
    some = []
    for file in version.files:
        end = file.first_position + file.rows
        first, last = np.searchsorted(positions, [file.first_position, end])
        if first < last:
            some.append((file, positions[first:last] - file.first_position))
    return some


def copied(manifest: Manifest, roots: Collection[int]) -> list[str]:
    """Return the files to which ``copy_rows`` has copied the rows of these roots; nothing unless
    they have all of them. Several files may have the same row. A file that cannot be read does not
    count: it is being written, or its writer died.
    """
    own = version_file(manifest)
    if own is None or not len(roots):
        return []
    missing, paths = set(roots), []
    for entry in stores.entries(own.path.rpartition("/")[0]):
        if entry.name.startswith(_PREFIX):
            with suppress(LostFileError), parquet.stored_file(entry.path) as stored:
                contained = missing & set(parquet.read(stored, [ROOT])[ROOT].to_pylist())
                if contained:
                    paths.append(entry.path)
                    missing -= contained
    return [] if missing else paths


def copied_payloads(
    batch_id: int, emitted: EmittedRecords, paths: Sequence[str], source: DeclaredStep
) -> Iterator[Payload]:
    """Yield records of one emit from the files that ``copied`` returned, without their places in
    the version's files.
    """
    messages = dict(zip(emitted.roots, emitted.messages, strict=True))
    for path in paths:
        with parquet.stored_file(path) as stored:
            groups = range(stored.metadata.num_row_groups)
            rows = pa.concat_tables(parquet.read_row_group(stored, number) for number in groups)
        roots = rows[ROOT].to_pylist()
        for root, row in zip(roots, read_rows(rows, source, NOTHING), strict=True):
            message = messages.pop(root, None)
            if message is not None:
                yield Payload(message, batch_id, root, *row, None)
