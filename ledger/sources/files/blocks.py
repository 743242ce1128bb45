"""Cut the text of a file into blocks of whole records, which tasks read side by side.

A record is a line, but where a quote of CSV stays open at its end: from there on one reader goes
through the rest of the file, line by line.
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
    """A part of a file, from the byte ``offset`` on: ``length`` bytes, as they lie there.

    ``digest``: of these bytes, as they were when the block was cut. ``streamed``: it has the rest
    of its file, is read in parts, and may be compressed. ``header``: the line with the names of the
    columns, which is no record, if it may be in it; empty where the file had blank lines alone.
    """

    path: str
    offset: int
    length: int
    digest: str
    streamed: bool
    header: str | None

    @property
    def place(self) -> str:
        """All of it as text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def at(cls, place: str) -> "Block":
        """The block that a text of ``place`` stands for."""
        return cls(**json.loads(place))


def cut(path: str, form: Format, header: str | None) -> list[Block]:
    """The blocks of a file, in order. A compressed file is one."""
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
    """Distinguishes the bytes of a block from any others."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self.length = 0

    def add(self, data: bytes) -> None:
        """Some more bytes."""
        self._hash.update(data)
        self.length += len(data)

    def added(self, stream: IO[bytes]) -> Iterator[bytes]:
        """The rest of a stream, each part of it added."""
        for chunk in iter(partial(stream.read, BLOCK), b""):
            self.add(chunk)
            yield chunk

    @property
    def text(self) -> str:
        """The digest of all bytes that were added."""
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
    """A file as it lies there, from a byte on."""
    stream = stores.opened(path)
    if offset:
        stream.seek(offset)
    return stream


def _block(
    path: str, offset: int, chunks: Iterable[bytes], *, streamed: bool, header: str | None
) -> Block:
    """The block of what a file holds from a byte on."""
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
    """The bytes of a stream, about ``BLOCK`` at a time, cut behind a line."""
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
    """The parts of a block but for the mark at the beginning of its file, and the header. Raises
    InputError as ``parts`` does, and if the header is another."""
    header, mark = block.header, b"" if block.offset else _MARK
    for part in parts(block):
        text, mark = part.removeprefix(mark), b""
        if header is not None:
            text, header = _without_header(block.path, text, header)
        yield text


def _without_header(path: str, text: bytes, header: str) -> tuple[bytes, str | None]:
    """Whole lines but for the header, whose line is empty then; and the header, if it is yet to
    come. Raises InputError if the first line that is not blank is another: the names of the columns
    were read before, and may be those of another file."""
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
    """The lines that hold more than blanks."""
    filled = np.frombuffer(lines.data, np.uint8)[lines.starts] == _BRACE
    for number in np.flatnonzero(~filled).tolist():
        start, end = int(lines.starts[number]), int(lines.ends[number])
        filled[number] = lines.data[start:end].strip(_BLANKS) != b""
    return Lines(lines.data, lines.starts[filled], lines.ends[filled])


class Cutter:
    """Cuts text of one form into its lines, and reports where a line is no record."""

    def __init__(self, form: Format):
        self._form = form

    @cached_property
    def splitter(self) -> Splitter:
        """The splitter of lines in which a quote stays open."""
        return Splitter(self._form)

    def lines(self, data: bytes) -> Lines:
        """The lines of whole lines that may be records, not the empty ones."""
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
        """Whether there is a quote in it, of CSV."""
        quote = self._form.dialect.quote.encode() if self._form.format == "csv" else b""
        return bool(quote) and quote in data

    def breaks_off(self, records: Lines) -> bool:
        """Whether a record of CSV may go on behind its line."""
        if self._form.format != "csv" or not self._form.dialect.quote:
            return False
        return any(self.splitter.begins(records.text(number)) for number in self._doubtful(records))

    def _doubtful(self, records: Lines) -> list[int]:
        """The records whose quotes may not all be closed: of a line in which each is, there is an
        even number, unless some are escaped otherwise than by doubling."""
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
    """The lines of a text as ``multiline.Splitter`` takes them."""
    stream = io.BufferedReader(ChunkStream(chunks), BLOCK)
    return iter(io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline=""))
