"""A line of TCP between a client and a server that can be cut and mended."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

_BYTES = 1 << 16


class Line:
    """Listens on a ``port`` of 127.0.0.1 and passes on to another one, in a thread of its own."""

    def __init__(self, target: int):
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="line")
        self._writers: set[asyncio.StreamWriter] = set()
        self._whole = True
        self.port = 0
        self.cuts = 0  # connections that were open when it was cut

    def open(self) -> None:
        """Begin to listen."""
        listening = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", self.port)
        )
        self.port = listening.sockets[0].getsockname()[1]
        self._listening = listening
        self._thread.start()

    def cut(self) -> None:
        """End every connection, and each new one at once, until it is mended."""
        self._whole = False
        self.cuts += len(self._writers) // 2
        self._loop.call_soon_threadsafe(self._abort)

    def mend(self) -> None:
        """Pass on again."""
        self._whole = True

    def close(self) -> None:
        """End it."""
        self.cut()
        self._loop.call_soon_threadsafe(self._listening.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(task)
        self._loop.close()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            writer.transport.abort()
            return
        there = await asyncio.open_connection("127.0.0.1", self._target)
        both = {writer, there[1]}
        self._writers |= both
        try:
            await asyncio.gather(_pass_on(reader, there[1]), _pass_on(there[0], writer))
        finally:
            self._writers -= both


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextmanager
def line(target: int) -> Iterator[Line]:
    """A line to a port for the block."""
    own = Line(target)
    own.open()
    try:
        yield own
    finally:
        own.close()
