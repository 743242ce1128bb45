"""The kinds of sinks that come with the package, and a check of any object declared as a sink."""

from typing import cast

from ledger.errors import DeclarationError
from ledger.sinks.base import Sink
from ledger.sinks.delta.sink import DeltaSink
from ledger.sinks.parquet.sink import ParquetSink
from ledger.sinks.postgres.sink import PostgresSink

KINDS: tuple[type[Sink], ...] = (DeltaSink, ParquetSink, PostgresSink)
_MEMBERS = sorted(name for name in vars(Sink) if not name.startswith("_"))


def require_sink(name: str, declared: object) -> Sink:
    """Return the object declared as the sink ``name``. Raises DeclarationError unless it has all
    members of ``Sink``.
    """
    missing = [member for member in _MEMBERS if not hasattr(declared, member)]
    if isinstance(declared, type) or missing:
        lacks = f", which lacks {', '.join(missing)}" if missing else ""
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        raise DeclarationError(
            f"sink {name!r}: expected one of {kinds}, or an object with all members of "
            f"ledger.sinks.base.Sink, found {declared!r}{lacks}: see docs/extending.md"
        )
    return cast(Sink, declared)
