"""Bloom filters over identities: built per partition, united on the driver, asked on the
executors.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pybloom_live import BloomFilter
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from ledger.errors import ConfigurationError
from ledger.sinks.options import Bloom


@dataclass(frozen=True)
class Filter:
    """A serialized Bloom filter, and the number of its entries."""

    data: bytes
    entries: int


def build(identities: DataFrame, column: str, bloom: Bloom) -> Filter:
    """Return a filter of all values of ``column``.

    Raises ConfigurationError when there are more values than the filter's capacity.
    """
    capacity, error_rate = bloom.capacity, bloom.error_rate

    def fill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part, entries = BloomFilter(capacity, error_rate), 0
        for batch in batches:
            for value in batch.column(0).to_pylist():
                entries += 1
                if entries <= capacity:  # beyond it the sum below is refused anyway
                    part.add(value, skip_check=True)
        if entries:
            yield pa.RecordBatch.from_pydict({"entries": [entries], "data": [_dump(part)]})

    parts = identities.select(column).mapInArrow(fill, "entries bigint, data binary").collect()
    return unite([Filter(bytes(row.data), row.entries) for row in parts], bloom, "this batch")


def unite(filters: Sequence[Filter], bloom: Bloom, whose: str) -> Filter:
    """Return one filter of all entries.

    The library's own count does not survive a union, so the sum is kept, and checked, beside it.
    """
    entries = sum(part.entries for part in filters)
    if entries > bloom.capacity:
        raise ConfigurationError(
            f"the Bloom filter of {whose} would hold {entries} entries, its capacity is"
            f" {bloom.capacity}: a fuller one takes everything for a duplicate. Raise capacity, or"
            " set window_batches"
        )
    united = BloomFilter(bloom.capacity, bloom.error_rate)
    for part in filters:
        united = united.union(_load(part.data))
    return Filter(_dump(united), entries)


def maybe(filter_data: bytes, identity: str) -> Column:
    """Return whether the filter may hold the identity. False is certain; True has to be
    verified.
    """

    @F.udf(returnType=BooleanType(), useArrow=True)
    def asked(value: str) -> bool:
        return value in _loaded(filter_data)

    column: Column = asked(F.col(identity))
    return column


_cache: dict[bytes, BloomFilter] = {}


def _loaded(data: bytes) -> BloomFilter:
    """Return the filter, parsed once per worker process."""
    if data not in _cache:
        _cache.clear()
        _cache[data] = _load(data)
    return _cache[data]


def _load(data: bytes) -> BloomFilter:
    loaded = BloomFilter.fromfile(io.BytesIO(data))
    del loaded.bitarray[loaded.num_bits :]  # whole bytes were stored; a union needs equal lengths
    return loaded


def _dump(bloom_filter: BloomFilter) -> bytes:
    buffer = io.BytesIO()
    bloom_filter.tofile(buffer)
    return buffer.getvalue()
