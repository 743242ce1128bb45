"""Ports for servers of tests."""

import socket


def free_port() -> int:
    """A port of 127.0.0.1 that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
