"""Bytes that come in chunks, as a file to read from."""

import io
from collections.abc import Iterable
from typing import Any


class ChunkStream(io.RawIOBase):
    """A stream of what an iterator returns: memory holds one chunk at a time."""

    def __init__(self, chunks: Iterable[bytes]):
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
