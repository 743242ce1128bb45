"""Requests of a run: its key, an interval to read, or failed messages to replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ledger.errors import InputError

# After the run id of a batch that Airflow's run of that id, cleared, opened to replace its own.
REPROCESS = "#reprocess"


@dataclass(frozen=True)
class RunKey:
    """The key of a run, which identifies its batch: Airflow or the command line names the run."""

    dag_id: str
    run_id: str


@dataclass(frozen=True)
class Interval:
    """Interval that a batch reads, from ``start`` inclusive to ``end`` exclusive, with the run's
    parameters. Its bounds are in UTC; one without a zone is taken as UTC.
    """

    start: datetime
    end: datetime
    params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, bound in (("start", self.start), ("end", self.end)):
            there = bound.replace(tzinfo=UTC) if bound.tzinfo is None else bound.astimezone(UTC)
            object.__setattr__(self, name, there)
        if self.end <= self.start:
            raise InputError(
                f"the interval ends at {instant(self.end)}, not after its start"
                f" {instant(self.start)}"
            )


def instant(value: datetime) -> str:
    """Return a time in UTC as the command line and a run's conf read it: midnight as a date."""
    there = value.astimezone(UTC)
    if (there.hour, there.minute, there.second) == (0, 0, 0):
        return f"{there:%Y-%m-%d}"
    return f"{there:%Y-%m-%dT%H:%M:%S}" if there.second else f"{there:%Y-%m-%dT%H:%M}"


@dataclass(frozen=True)
class Selection:
    """The failed messages of one original batch that a replay takes. A field that is None restricts
    nothing.

    - ``reason``: a text or SQL pattern (``%``, ``_``).
    - ``step``: the step at which they failed last.
    - ``record``: the number of a record, or of one of its attempts.
    - ``source``: the source that emitted them.
    - ``since``, ``until``: when they failed last, ``until`` exclusive.
    - ``quarantined``: take unaccepted quarantined messages instead of failed ones.
    - ``accepted``: take quarantined messages that a person accepted, or quarantined by hand.
    - ``from_source``: read the records again from the source, by key.
    - ``causes``: step, cause and reason (``words``) of the last failure; any of these. ``words`` is
    None unless source, stage or sink gave the reason.

    Quarantined messages get a new budget of replays, and keep their history.
    """

    reason: str | None = None
    step: str | None = None
    record: int | None = None
    source: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    quarantined: bool = False
    from_source: bool = False
    accepted: bool = False
    causes: Sequence[Mapping[str, str | None]] | None = None

    def __post_init__(self) -> None:
        for cause in self.causes or ():
            if not isinstance(cause, Mapping) or {*cause, "words"} != {"step", "cause", "words"}:
                raise InputError(
                    'expected causes as [{"step": "...", "cause": "...", "words": "..."}, ...],'
                    f" found {cause!r} among them"
                )

    @property
    def leaves_out_accepted(self) -> bool:
        """Whether it takes quarantined messages, except those that a person accepted."""
        return self.quarantined and not self.accepted

    def as_json(self) -> dict[str, Any]:
        """Return the fields that were set, as the ledger stores them."""
        fields = {key: value for key, value in vars(self).items() if value not in (None, False)}
        return {
            key: value.isoformat() if isinstance(value, datetime) else value
            for key, value in fields.items()
        }
