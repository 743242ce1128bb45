"""Cut the text of a file into blocks of whole records, which tasks read in parallel.

A record is a line until a quote of CSV stays open at the end of one. From there on, a single reader
goes through the rest of the file line by line.
"""

import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain
from typing import IO

import numpy as np

from ledger.core.streams import ChunkStream
from ledger.errors import InputError
from ledger.sources.files.format import Format
from ledger.sources.files.multiline import Splitter
from ledger.sources.listing import compression, decompressed
from ledger.sources.vectorized.lines import Lines
from ledger.storage import stores

BLOCK = 8 << 20  # bytes
_MARK = b"\xef\xbb\xbf"  # of UTF-8, at the beginning of a file
_LINE_FEED, _RETURN, _BRACE = b"\n\r{"
_LINE = re.compile(rb"[^\r\n]+")
_APPEAR_WHOLE = (
    "Files must appear whole: write them under another name and rename them, then run this again"
)
_BLANKS = b" \t\r\f\v"  # a line of JSON that holds no more is no record


@dataclass(frozen=True)
class Block:
    """A part of a file: ``length`` bytes from the byte ``offset`` on, as they are stored.

    ``digest``: identifies these bytes at the time the block was cut.
    ``streamed``: the block has the rest of its file, is read in parts, and may be compressed.
    ``header``: the line with the names of the columns, if it may be in this block. It is no record.
    Empty if the file had only blank lines.
    """

    path: str
    offset: int
    length: int
    digest: str
    streamed: bool
    header: str | None

    @property
    def place(self) -> str:
        """Return the block as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def at(cls, place: str) -> "Block":
        """Return the block that a ``place`` describes."""
        return cls(**json.loads(place))


def cut(path: str, form: Format, header: str | None) -> list[Block]:
    """Return the blocks of a file, in order. A compressed file is one block."""
    blocks: list[Block] = []
    offset, sought = 0, header
    cutter = Cutter(form)
    with _bytes(path, 0) as stream:
        if compression(path) is not None:
            packed = iter(partial(stream.read, BLOCK), b"")
            return [_block(path, 0, packed, streamed=True, header=header)]
        whole = windows(stream)
        for window in whole:
            own = sought
            text = window if offset else window.removeprefix(_MARK)
            if own is not None:
                text, sought = _without_header(path, text, own)
            if cutter.may_break_off(text) and cutter.breaks_off(cutter.lines(text)):
                rest = chain([window], whole)
                blocks.append(_block(path, offset, rest, streamed=True, header=own))
                break
            blocks.append(_block(path, offset, [window], streamed=False, header=own))
            offset += len(window)
    return blocks


class _Digest:
    """A digest of the bytes of a block, to notice that a file has changed."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self.length = 0

    def add(self, data: bytes) -> None:
        """Add bytes."""
        self._hash.update(data)
        self.length += len(data)

    def added(self, stream: IO[bytes]) -> Iterator[bytes]:
        """Yield the rest of a stream in chunks, and add each of them."""
        for chunk in iter(partial(stream.read, BLOCK), b""):
            self.add(chunk)
            yield chunk

    @property
    def text(self) -> str:
        """Return the digest of all bytes added so far."""
        return self._hash.hexdigest()

    def check(self, block: Block) -> None:
        """Raise InputError unless the bytes that were added are those of the block."""
        if (self.length, self.text) != (block.length, block.digest):
            raise InputError(
                f"source file {block.path} was changed since it was cut into records: expected the"
                f" {block.length:,} bytes from {block.offset:,} on that were there, found others."
                f" {_APPEAR_WHOLE}"
            )


def _bytes(path: str, offset: int) -> IO[bytes]:
    """Open a file at a byte, without decompressing it."""
    stream = stores.opened(path)
    if offset:
        stream.seek(offset)
    return stream


def _block(
    path: str, offset: int, chunks: Iterable[bytes], *, streamed: bool, header: str | None
) -> Block:
    """Return the block that has these chunks of a file."""
    digest = _Digest()
    for chunk in chunks:
        digest.add(chunk)
    return Block(path, offset, digest.length, digest.text, streamed, header)


def parts(block: Block) -> Iterator[bytes]:
    """Yield the bytes of a block, decompressed, in parts that end behind a line.

    Raises InputError, at the end at the latest, unless the bytes are those that were there when the
    block was cut.
    """
    digest = _Digest()
    with _bytes(block.path, block.offset) as stream:
        if not block.streamed:
            data = stream.read(block.length)
            digest.add(data)
            digest.check(block)
            yield data
            return
        chunks = digest.added(stream)
        packed = io.BufferedReader(ChunkStream(chunks), BLOCK)
        with decompressed(packed, compression(block.path)) as text:
            yield from windows(text)
            for _ in chunks:  # behind the end of what is compressed
                pass
        digest.check(block)


def windows(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a stream in parts of about ``BLOCK`` bytes. Each part ends with a line."""
    parts: list[bytes] = []
    while chunk := stream.read(BLOCK):
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if not end:  # a line that is longer
            parts.append(chunk)
            continue
        yield b"".join([*parts, chunk[:end]])
        parts = [chunk[end:]]
    if rest := b"".join(parts):
        yield rest


def body(block: Block) -> Iterator[bytes]:
    """Yield the parts of a block without the byte order mark and the header of its file.

    Raises InputError as ``parts`` does, and if the header has changed.
    """
    header, mark = block.header, b"" if block.offset else _MARK
    for part in parts(block):
        text, mark = part.removeprefix(mark), b""
        if header is not None:
            text, header = _without_header(block.path, text, header)
        yield text


def _without_header(path: str, text: bytes, header: str) -> tuple[bytes, str | None]:
    """Return whole lines with the header's line emptied, and the header if it is still to come.

    Raises InputError if the first line that is not blank is no longer the header: the names of the
    columns, which were read before, may be those of another file.
    """
    for match in _LINE.finditer(text):
        line = match[0].decode("utf-8", "surrogateescape")
        if line == header:
            return text[: match.start()] + text[match.end() :], None
        if line.strip():
            raise InputError(
                f"source file {path} was changed while it was read: expected the header that was"
                f" there, found another. {_APPEAR_WHOLE}"
            )
    return text, header


def _without_blanks(lines: Lines) -> Lines:
    """Return the lines that hold more than blanks."""
    filled = np.frombuffer(lines.data, np.uint8)[lines.starts] == _BRACE
    for number in np.flatnonzero(~filled).tolist():
        start, end = int(lines.starts[number]), int(lines.ends[number])
        filled[number] = lines.data[start:end].strip(_BLANKS) != b""
    return Lines(lines.data, lines.starts[filled], lines.ends[filled])


class Cutter:
    """Cuts text of one form into lines, and reports where a line is not a record."""

    def __init__(self, form: Format):
        self._form = form

    @cached_property
    def splitter(self) -> Splitter:
        """Return the splitter for lines at whose end a quote stays open."""
        return Splitter(self._form)

    def lines(self, data: bytes) -> Lines:
        """Return the lines of a text that may be records, without the empty ones."""
        codes = np.frombuffer(data, np.uint8)
        is_break = codes == _LINE_FEED
        if b"\r" in data:
            is_break |= codes == _RETURN
        breaks = np.flatnonzero(is_break)
        starts, ends = np.concatenate([[0], breaks + 1]), np.concatenate([breaks, [len(data)]])
        filled = ends > starts
        records = Lines(data, starts[filled], ends[filled])
        return _without_blanks(records) if self._form.format == "json" else records

    def may_break_off(self, data: bytes) -> bool:
        """Return whether a text has a quote of CSV."""
        quote = self._form.dialect.quote.encode() if self._form.format == "csv" else b""
        return bool(quote) and quote in data

    def breaks_off(self, records: Lines) -> bool:
        """Return whether a record of CSV may continue in the next line."""
        if self._form.format != "csv" or not self._form.dialect.quote:
            return False
        return any(self.splitter.begins(records.text(number)) for number in self._doubtful(records))

    def _doubtful(self, records: Lines) -> list[int]:
        """Return the numbers of the records whose quotes may not all be closed.

        A line in which all are closed has an even number of quotes, unless quotes are escaped by
        another character.
        """
        dialect, data = self._form.dialect, records.data
        quote, escape = dialect.quote.encode(), dialect.escape.encode()
        if len(quote) > 1 or (escape not in (b"", quote) and escape in data):
            return list(range(len(records)))
        codes = np.frombuffer(data, np.uint8)
        lines = np.searchsorted(records.starts, np.flatnonzero(codes == quote[0]), "right") - 1
        counts = np.bincount(lines[lines >= 0], minlength=len(records))
        odd: list[int] = np.flatnonzero(counts % 2).tolist()
        return odd


def text_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Return the lines of a text for ``multiline.Splitter``."""
    stream = io.BufferedReader(ChunkStream(chunks), BLOCK)
    return iter(io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline=""))
