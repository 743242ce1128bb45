"""Failed records one by one, chosen by a selection and by conditions on their fields, and the
records of batches on hold that would fail.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection

from ledger.batch.records.filters import require_names
from ledger.batch.records.payloads import keep_all
from ledger.core import conditions
from ledger.core.conditions import Comparison
from ledger.errors import InputError, suggestion
from ledger.store.connection import Database
from ledger.store.queries import holds, records, redactions
from ledger.store.queries.records import FailedMessage, Fields

__all__ = ["FailedMessage"]

Result = TypeVar("Result")


def conditions_of(database: Database, pipeline: str | None, where: str | None) -> list[Comparison]:
    """Return the conditions in a text; a redacted key is found as well."""
    redacting = database.transact(lambda c: redactions.of_pipelines(c, pipeline))
    return conditions.with_pseudonyms(conditions.parse(where), redacting)


def failed_records(
    database: Database, filters: Mapping[str, Any], where: str | None, limit: int
) -> tuple[list[FailedMessage], int]:
    """Return the first records that are chosen, and the number of all. Raises InputError if there
    are none, and the ledger knows no such step, field or the like.
    """
    parsed = conditions_of(database, filters["pipeline"], where)
    keep_all(database, filters["pipeline"])

    def look(connection: Connection) -> tuple[list[FailedMessage], int]:
        is_failed = not filters.get("recovered")
        sampled = holds.sample(connection, filters, parsed, None) if is_failed else []
        numbers = {row.message_id for row in sampled}
        # A record of a replay on hold failed before, too.
        others = {**filters, "without": list(numbers)}
        page = list(records.matches(connection, others, parsed, limit))
        page += sampled[: limit - len(page)]
        total = records.count(connection, others, parsed) + len(numbers)
        if not total:
            require_names(connection, filters)
            _require_fields(connection, filters, parsed)
        return page, total

    return database.transact(look)


def read_failed(
    database: Database,
    filters: Mapping[str, Any],
    where: str | None,
    read: Callable[[Iterator[FailedMessage]], Result],
) -> Result:
    """Call ``read`` with all records that are chosen, which are fetched as it iterates over them,
    and return its result. Raises the errors of ``failed_records``.
    """
    parsed = conditions_of(database, filters["pipeline"], where)
    keep_all(database, filters["pipeline"])

    def work(connection: Connection) -> Result:
        if not records.count(connection, filters, parsed):
            require_names(connection, filters)
            _require_fields(connection, filters, parsed)
        return read(records.matches(connection, filters, parsed, None))

    return database.transact(work)


def matching_numbers(database: Database, where: str | None, limit: int) -> tuple[list[int], int]:
    """Return the numbers of the first records that ever failed and that match a condition, and how
    many match. Raises InputError if none match.
    """
    parsed, anything = conditions_of(database, None, where), {"ever": True}
    keep_all(database, None)

    def look(connection: Connection) -> tuple[list[int], int]:
        numbers = [row.message_id for row in records.matches(connection, anything, parsed, limit)]
        sampled = {row.message_id for row in holds.sample(connection, {}, parsed, None)}
        others = {**anything, "without": list(sampled)}
        total = records.count(connection, others, parsed) + len(sampled)
        numbers += sorted(sampled.difference(numbers))[: limit - len(numbers)]
        if not total:
            _require_fields(connection, anything, parsed)
            raise InputError(
                f"no record that failed has {where}. Of what is acked at once the ledger keeps"
                " counts alone: look for it in the sinks, or name it by its number"
            )
        return numbers, total

    return database.transact(look)


def require_fields(
    database: Database, pipeline: str | None, comparisons: Sequence[Comparison]
) -> None:
    """Raise InputError if a condition that matches nothing names a field that no failed record ever
    had.
    """
    filters = {"pipeline": pipeline, "ever": True}
    database.transact(lambda c: _require_fields(c, filters, comparisons))


def _require_fields(
    connection: Connection, filters: Mapping[str, Any], comparisons: Iterable[Comparison]
) -> None:
    sources = records.fields(connection, filters)
    names = {name for row in sources for name in row.names}
    for comparison in comparisons:
        if names and comparison.name not in names:
            raise InputError(_unknown_field(comparison.name, sources, names))


def _unknown_field(name: str, sources: Sequence[Fields], names: Iterable[str]) -> str:
    """Return the message about an unknown field in a condition: the fields of each source, and a
    suggestion.
    """
    one_pipeline = len({row.pipeline for row in sources}) == 1
    has = "; ".join(
        f"{row.source if one_pipeline else f'{row.source} of {row.pipeline}'} has"
        f" {', '.join(row.names)}"
        for row in sources
    )
    meant = suggestion(name, names)
    ends = meant if meant.endswith("?") else ""
    return f"the condition names {name!r}, a field of no failed record: {has}{ends}"
