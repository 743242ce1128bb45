"""A pooler in transaction mode, as PgBouncer is one: a client has a server's session for a
transaction, and the next transaction has another. It refuses what PgBouncer refuses, and what it
takes and breaks: options of a session at its start, and settings and locks that outlive a
transaction.
"""

import asyncio
import re
import struct
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from sqlalchemy.engine import URL

_SSL, _GSS, _VERSION = 80877103, 80877104, 196608
_HEAD = struct.Struct("!ci")
# What has no meaning where the session of the next transaction is another.
_FORBIDDEN = re.compile(
    rb"(?:^|;)\s*SET\s+(?!LOCAL|TRANSACTION|CONSTRAINTS)|\bLISTEN\b|\bPREPARE\s|\bWITH HOLD\b"
    rb"|pg_(try_)?advisory_(un)?lock(_shared|_all)?\(|(?:^|;)\s*(?:RESET|DISCARD)\b"
    rb"|\bCREATE TEMP(ORARY)? TABLE (?![^;]*ON COMMIT DROP)"
    rb"|set_config\([^()]*,\s*false\)",
    re.I,
)
_OF_STARTUP = {"user", "database", "client_encoding", "application_name"}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Pool:
    """The sessions of one user and database."""

    def __init__(self, folder: str, port: int, startup: dict[str, str], most: int):
        self._socket, self._startup, self._most = f"{folder}/.s.PGSQL.{port}", startup, most
        self._free: deque[Streams] = deque()
        self._opened = 0
        self._changed = asyncio.Condition()
        self.greeting = b""

    async def open(self) -> None:
        """Open the first session, whose greeting every client gets."""
        async with self._changed:
            if not self.greeting:
                self._free.append(await self._connected())

    async def _connected(self) -> Streams:
        streams = await asyncio.open_unix_connection(self._socket)
        pairs = [text.encode() for pair in self._startup.items() for text in pair]
        body = struct.pack("!i", _VERSION) + b"\0".join([*pairs, b"", b""])
        streams[1].write(struct.pack("!i", len(body) + 4) + body)
        self._opened += 1
        self.greeting = b"".join([part async for part in _until_ready(streams[0])])
        return streams

    async def take(self) -> Streams:
        """The one that has waited longest, or a new one."""
        async with self._changed:
            while not self._free:
                if self._opened < self._most:
                    return await self._connected()
                await self._changed.wait()
            return self._free.popleft()

    async def give_back(self, session: Streams, *, whole: bool) -> None:
        """``whole``: its transaction has ended; else the session ends with it."""
        async with self._changed:
            if whole:
                self._free.append(session)
            else:
                session[1].close()
                self._opened -= 1
            self._changed.notify()


class Pooler:
    """Listens on a port of 127.0.0.1. ``sessions``: of the server, at most, for each user.
    ``refused``: statements that it did not pass on."""

    def __init__(self, server: URL, sessions: int):
        self._server, self._sessions = server, sessions
        self._pools: dict[tuple[str, str], _Pool] = {}
        self.refused: list[str] = []
        self.port = 0

    @property
    def url(self) -> URL:
        """Where its clients connect."""
        plain = self._server.set(query={}, password=None)
        return plain.set(host="127.0.0.1", port=self.port)

    async def listen(self) -> asyncio.Server:
        """Open the port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _pool(self, user: str, database: str) -> _Pool:
        folder = str(self._server.query["host"])
        port = self._server.port or int(str(self._server.query.get("port", 5432)))
        startup = {"user": user, "database": database}
        new = _Pool(folder, port, startup, self._sessions)
        pool = self._pools.setdefault((user, database), new)
        await pool.open()
        return pool

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pool = await self._welcomed(reader, writer)
            while pool is not None and await self._transaction(pool, reader, writer):
                pass
        writer.close()

    async def _welcomed(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Pool | None:
        code = _SSL
        while code in (_SSL, _GSS):
            body = (await _rest(reader))[4:]
            (code,) = struct.unpack("!i", body[:4])
            if code in (_SSL, _GSS):
                writer.write(b"N")
        if code != _VERSION:  # a request to cancel
            return None
        texts = [text.decode() for text in body[4:].split(b"\0")]
        startup = dict(zip(texts[0::2], texts[1::2], strict=False))
        others = sorted(filter(None, startup.keys() - _OF_STARTUP))
        if others:
            self.refused.append(f"unsupported startup parameter: {', '.join(others)}")
            writer.write(_error(self.refused[-1], "08P01"))
            return None
        pool = await self._pool(startup["user"], startup["database"])
        writer.write(pool.greeting)
        return pool

    async def _transaction(
        self, pool: _Pool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Pass one on, from its first message to the end; False: the client has left."""
        message = await reader.readexactly(1) + await _rest(reader)
        if message[:1] == b"X":
            return False
        if self._refuses(message, writer):
            return True
        session, whole = await pool.take(), False
        try:
            session[1].write(message)
            asking = asyncio.create_task(self._pass_on(reader, session[1], writer))
            try:
                async for part in _until_ready(session[0], idle=True):
                    writer.write(part)
                whole = True
            finally:
                asking.cancel()
                with suppress(asyncio.CancelledError, asyncio.IncompleteReadError):
                    await asking
            return True
        finally:
            await pool.give_back(session, whole=whole)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Further messages of a transaction. A client that leaves ends its session."""
        while True:
            head = await reader.read(1)
            if head in (b"", b"X"):
                server.close()
                return
            message = head + await _rest(reader)
            if not self._refuses(message, writer):
                server.write(message)

    def _refuses(self, message: bytes, writer: asyncio.StreamWriter) -> bool:
        match = _FORBIDDEN.search(message[5:]) if message[:1] == b"Q" else None
        if match is None:
            return False
        self.refused.append(message[5:-1].decode())
        writer.write(_error(f"not in a transaction: {match[0].decode()}", "0A000"))
        writer.write(b"Z" + struct.pack("!i", 5) + b"I")
        return True


async def _rest(reader: asyncio.StreamReader) -> bytes:
    length = await reader.readexactly(4)
    return length + await reader.readexactly(struct.unpack("!i", length)[0] - 4)


async def _until_ready(reader: asyncio.StreamReader, *, idle: bool = False) -> AsyncIterator[bytes]:
    """The server's messages up to that it is ready; ``idle``: and in no transaction."""
    while True:
        message = await reader.readexactly(1) + await _rest(reader)
        yield message
        if message[:1] == b"Z" and (not idle or message[5:6] == b"I"):
            return


def _error(text: str, code: str) -> bytes:
    fields = {b"S": "ERROR", b"V": "ERROR", b"C": code, b"M": text}
    body = b"".join(name + value.encode() + b"\0" for name, value in fields.items()) + b"\0"
    return _HEAD.pack(b"E", len(body) + 4) + body


@contextmanager
def pooler(server: URL, sessions: int = 3) -> Iterator[Pooler]:
    """A pooler for the block, before a server on a Unix socket that trusts its users."""
    loop = asyncio.new_event_loop()
    own = Pooler(server, sessions)
    listening = loop.run_until_complete(own.listen())
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield own
    finally:

        async def end() -> None:
            listening.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
