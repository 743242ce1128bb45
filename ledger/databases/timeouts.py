"""Timeouts of connections: how long they wait, and when they notice that the other side is gone."""

CONNECT_SECONDS = 10
LOCK_TIMEOUT = "180s"  # a publish may hold a row so long; it is not waited for twice
# A half-open connection holds its locks: were its host gone, the server would keep them for hours.
KEEPALIVES: dict[str, int] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
