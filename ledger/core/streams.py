"""Files to read from whose bytes come in chunks, or compressed."""

import bz2
import io
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import IO, Any

_CHUNK = 1 << 16
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "bz2": bz2.BZ2Decompressor,
    "gzip": partial(zlib.decompressobj, zlib.MAX_WBITS | 16),  # with gzip's header and checksum
}


class ChunkStream(io.RawIOBase):
    """A stream over an iterator of chunks. Memory holds one chunk at a time."""

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


class DecompressedStream(io.RawIOBase):
    """The decompressed content of a file that must consist only of ``bz2`` or ``gzip`` streams.

    BZ2File ends at any other bytes after a stream, and GzipFile skips zeros. Both would omit the
    records of a damaged stream without an error.
    """

    def __init__(self, packed: IO[bytes], how: str):
        self._packed, self._how = packed, how
        self._read = self._start = 0  # bytes that were read, and those before the stream
        self._stream = _DECOMPRESSORS[how]()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._packed.close()
        super().close()

    def readinto(self, buffer: Any, /) -> int:
        while True:
            if self._stream.eof:
                rest = self._stream.unused_data or self._next()
                if not rest:
                    return 0
                self._start = self._read - len(rest)
                self._stream = _DECOMPRESSORS[self._how]()
            else:
                rest = getattr(self._stream, "unconsumed_tail", b"")
                if not rest and getattr(self._stream, "needs_input", True):
                    rest = self._next()
                    if not rest:
                        raise EOFError(
                            "Compressed file ended before the end-of-stream marker was reached:"
                            " transfer the file again"
                        )
            try:
                data = self._stream.decompress(rest, len(buffer))
            except (OSError, zlib.error) as exc:
                raise OSError(
                    f"expected {self._how} data from byte {self._start:,} on, found other or"
                    f" damaged bytes ({exc}). Transfer the file again, or compress its content"
                    " again"
                ) from exc
            if data:
                buffer[: len(data)] = data
                return len(data)

    def _next(self) -> bytes:
        chunk = self._packed.read(_CHUNK)
        self._read += len(chunk)
        return chunk
