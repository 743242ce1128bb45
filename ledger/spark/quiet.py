"""Keeps the JVM's own warnings from the terminal of a command's user."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Written by the JVM itself, before any logging of Spark's is set up.
_NOISE = (
    b"WARNING: Using incubator modules",
    b"Picked up JAVA_TOOL_OPTIONS",
    b"Picked up JDK_JAVA_",
)


@contextmanager
def quiet_start() -> Iterator[None]:
    """A process started meanwhile writes to stderr through a filter, as long as it lives."""
    terminal, ours = os.dup(2), os.dup(2)
    read, write = os.pipe()
    os.dup2(write, 2)
    os.close(write)
    threading.Thread(target=_pass_on, args=(read, terminal), name="stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def _pass_on(read: int, terminal: int) -> None:
    """Hand on each line as it comes, less the noise."""
    with open(read, "rb", buffering=0) as stream, open(terminal, "wb", buffering=0) as shown:
        left = b""
        while chunk := stream.read(65536):
            *lines, left = (left + chunk).split(b"\n")
            shown.write(b"".join(line + b"\n" for line in lines if not line.startswith(_NOISE)))
        shown.write(left)
