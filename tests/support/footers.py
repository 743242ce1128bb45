"""Footers of Parquet files, changed by hand: they are Thrift in its compact form."""

from pathlib import Path

import pyarrow.parquet as pq

_I64_NEXT = b"\x16"  # the header of a field of 64 bits that follows the one before it


def move_row_group(path: Path) -> None:
    """Let the footer's only row group end far behind the file: Spark, which reads a row group with
    the part of the file that holds its middle, then reads it with none."""
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        columns = [group.column(number) for number in range(group.num_columns)]
    size = sum(column.total_compressed_size for column in columns)
    _change(path, size, 1 << 40, after=b"\x00")  # the end of the row group


def set_rows(path: Path, rows: int) -> None:
    """Let the footer say that its file has so many rows; its row groups say what they did."""
    with pq.ParquetFile(path) as file:
        result = file.metadata.num_rows
    _change(path, result, rows, after=b"\x19")  # followed by the list of row groups


def set_writer(path: Path, name: str) -> None:
    """Let the footer say that a file was written by ``name``."""
    with pq.ParquetFile(path) as file:
        writer = file.metadata.created_by
    _replace(path, writer.encode(), name.ljust(len(writer)).encode())


def _change(path: Path, old: int, new: int, after: bytes) -> None:
    _replace(path, _I64_NEXT + _varint(old) + after, _I64_NEXT + _varint(new) + after)


def _replace(path: Path, old: bytes, new: bytes) -> None:
    """Replace the only bytes of the footer that are ``old``."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:-8]
    assert footer.count(old) == 1
    footer = footer.replace(old, new)
    path.write_bytes(data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def _varint(number: int) -> bytes:
    rest, result = 2 * number, bytearray()
    while rest >= 0x80:
        result.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*result, rest])
