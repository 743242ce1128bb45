"""Statements about failed records one by one: chosen, listed, looked at, and quarantined."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from ledger.core.conditions import Comparison
from ledger.errors import InputError
from ledger.store.queries.failures import (
    ACCEPTED_BY,
    ANY,
    FAILURES,
    JOINS,
    REASON,
    REREADS,
    SELECTION,
    STATE,
    STEPS,
)
from ledger.store.queries.rows import all_of, first_of

PAGE = 50  # records of a page
_FETCHED = 5_000  # rows at a time
_NUMBER = r"^[+-]?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]{1,3})?$"
# A reason why the family of an original f is kept: its records may be replayed.
RECORDS_FAILED = """
  f.status = 'settled' AND EXISTS (
    SELECT FROM open_failure m WHERE m.original_batch_id = f.batch_id)
"""
# A reason why the family of an original f is kept: its records may be released.
RECORDS_QUARANTINED = """
  f.status = 'settled' AND EXISTS (
    SELECT FROM failed_message m
    WHERE m.original_batch_id = f.batch_id AND m.status = 'quarantined'
      AND NOT EXISTS (SELECT FROM accepted_root a WHERE a.root_id = m.root_id)
      AND NOT EXISTS (SELECT FROM failed_payload c
                      WHERE c.message_id = m.message_id AND c.forgotten_at IS NOT NULL))
"""


@dataclass(frozen=True)
class FailedMessage:
    """A failed record with its content. ``batch_id``: the original. ``layout``: layout of the
    source.
    """

    message_id: int
    batch_id: int
    pipeline: str
    source: str
    step: str
    reason: str
    status: str
    accepted_by: str | None
    attempts: int
    key: Mapping[str, Any] | None
    source_file: str | None
    source_row: int | None
    content: str | None
    parsed: bool | None
    layout: Mapping[str, Any] | None


@dataclass(frozen=True)
class Fields:
    """The fields of a source's failed records."""

    pipeline: str
    source: str
    names: Sequence[str]


@dataclass(frozen=True)
class Failure:
    """One record that failed in the batch.

    ``status``: its status by now.
    ``key``: values of the source's key columns; None without a key.
    ``content``: its fields, or its text if it did not parse.
    """

    message_id: int
    source: str
    step: str
    reason: str
    detail: str | None
    status: str
    key: Mapping[str, Any] | None
    content: Mapping[str, Any] | str | None


@dataclass(frozen=True)
class ListedRecord:
    """A record that failed in a batch.

    ``key``: its key as text.
    ``beginning``: the beginning of its content.
    ``status``, ``attempts``: None for a record of a batch on hold.
    """

    root_id: int
    message_id: int
    source: str
    step: str
    reason: str
    key: str | None
    beginning: str | None
    status: str | None = None
    attempts: int | None = None


@dataclass(frozen=True)
class LastFailure(FailedMessage):
    """A message that failed at least once, with its last failure; the other columns are those of
    its original.

    ``content_root``: the root whose content is kept.
    """

    root_id: int
    state: str
    cause: str
    due_at: datetime | None
    replay_batch_id: int | None
    target: str | None
    batch_status: str
    interval_start: datetime
    interval_end: datetime
    params: Mapping[str, Any]
    dag_id: str
    joins: bool
    rereads: bool
    whole: bool
    reprocesses: bool
    producers: str | None
    emitted_edges: int | None
    acked_edges: int | None
    content_root: int | None
    expired_at: datetime | None
    forgotten_at: datetime | None


@dataclass(frozen=True)
class EmittedRoot:
    """A root of any state."""

    root_id: int
    message_id: int
    batch_id: int
    pipeline: str
    source: str
    status: str


@dataclass(frozen=True)
class DecidedAttempt:
    """A decided attempt of a message that failed at least once.

    ``cause``, ``detail``: of a failure; the detail is raw text. For rows that do not add up, see
    ``failed_root_detail``.
    """

    attempt: int
    batch_id: int
    root_id: int
    outcome: str
    step: str | None
    cause: str | None
    reason: str | None
    detail: str | None
    producers: str | None
    emitted_edges: int | None
    acked_edges: int | None
    wrong_at: str | None
    decided_at: datetime


_ANY = {**ANY, "without": None, "ever": False, "recovered": False}
_RECORDS = f"""
    {FAILURES}
    LEFT JOIN failed_payload f ON f.message_id = m.message_id
    WHERE (cast(:ever AS boolean) OR (m.status = 'recovered') = cast(:recovered AS boolean))
      AND (b.status <> 'superseded' AND m.status <> 'superseded' OR cast(:ever AS boolean)
           OR cast(:batch_id AS bigint) IS NOT NULL)
      AND (cast(:without AS bigint[]) IS NULL
           OR m.message_id NOT IN (SELECT unnest(cast(:without AS bigint[]))))
      AND {SELECTION}
"""
_COLUMNS = f"""
    SELECT m.message_id, m.original_batch_id AS batch_id, p.name AS pipeline, m.source, r.step,
           {REASON} AS reason, m.status::text AS status, {ACCEPTED_BY} AS accepted_by, m.attempts,
           f.key, f.source_file, f.source_row,
           CASE WHEN f.forgotten_at IS NULL THEN f.content ELSE '(forgotten)' END AS content,
           f.parsed,
           (SELECT s.declaration -> 'layout' FROM batch_step s
            WHERE s.batch_id = b.batch_id AND s.name = m.source) AS layout
"""
# The fields that a condition may name: those of the record, the key's above them.
_FIELDS = """
    (CASE WHEN f.parsed THEN f.content::jsonb ELSE '{}'::jsonb END || coalesce(f.key, '{}'::jsonb))
"""


def matches(
    connection: Connection,
    selection: Mapping[str, Any],
    conditions: Sequence[Comparison],
    limit: int | None,
) -> Iterator[FailedMessage]:
    """Return failed and quarantined records that match, by message.

    ``selection``: pipeline, batch_id, step, reason (a SQL pattern), since (time of the last
    failure); a key that is null or omitted matches any. ``without``: numbers to leave out.
    ``recovered``: instead records that were recovered. ``ever``: also these, and records whose
    batch was replaced.
    """
    where, keys = conditions_sql(conditions)
    statement = text(f"{_COLUMNS}{_RECORDS}{where} ORDER BY m.message_id LIMIT :limit")
    stream = connection.execution_options(yield_per=_FETCHED)
    rows = stream.execute(statement, {**_ANY, **selection, **keys, "limit": limit})
    return (FailedMessage(**row._mapping) for row in rows)


def count(
    connection: Connection, selection: Mapping[str, Any], conditions: Sequence[Comparison]
) -> int:
    """Return how many records ``matches`` returns without a limit."""
    where, keys = conditions_sql(conditions)
    statement = text(f"SELECT count(*) {_RECORDS}{where}")
    return int(connection.execute(statement, {**_ANY, **selection, **keys}).scalar_one())


def fields(connection: Connection, selection: Mapping[str, Any]) -> list[Fields]:
    """Return the fields of failed records by source, from one record each, a parsed one if any."""
    statement = text(f"""
        SELECT pipeline, source,
               ARRAY(SELECT jsonb_object_keys(fields) ORDER BY 1) AS names
        FROM (SELECT DISTINCT ON (p.name, m.source) p.name AS pipeline, m.source,
                     {_FIELDS} AS fields {_RECORDS} AND f.message_id IS NOT NULL
              ORDER BY p.name, m.source, f.parsed DESC) example ORDER BY 1, 2
    """)
    return all_of(Fields, connection.execute(statement, {**_ANY, **selection}))


def conditions_sql(conditions: Sequence[Comparison]) -> tuple[str, dict[str, Any]]:
    """Return the conditions as SQL, with bound names and values and the parser's operators."""
    parts, keys = [""], {}
    for number, condition in enumerate(conditions):
        field, value = f"({_FIELDS} ->> :name_{number})", f":value_{number}"
        keys[f"name_{number}"] = condition.name
        if condition.value is None:
            parts.append(f"f.message_id IS NOT NULL AND {field} {condition.operator}")
            continue
        keys[f"value_{number}"] = condition.value
        masked = ""
        if condition.pseudonym is not None:
            keys[f"masked_{number}"] = condition.pseudonym
            joined = "OR" if condition.operator == "=" else "AND"
            masked = f" {joined} {field} {condition.operator} :masked_{number}"
        if condition.numeric:
            field = f"(CASE WHEN {field} ~ '{_NUMBER}' THEN {field}::numeric END)"
            value = f"cast({value} AS numeric)"
        parts.append(f"({field} {condition.operator} {value}{masked})")
    return " AND ".join(parts), keys


def failed_in(connection: Connection, batch_id: int) -> list[Failure]:
    """Return records that failed in a batch."""
    statement = text("""
        SELECT f.message_id, f.source, f.step, f.reason, f.detail, f.status, p.key,
               CASE WHEN p.parsed THEN p.content::jsonb ELSE to_jsonb(p.content) END AS content
        FROM failed_root_detail f LEFT JOIN failed_payload p USING (message_id)
        WHERE f.batch_id = :id ORDER BY f.message_id
    """)
    return all_of(Failure, connection.execute(statement, {"id": batch_id}))


_FAILED = """
    SELECT f.root_id, f.message_id, m.source, f.step,
           failure_reason(f.cause, f.step, f.reason) AS reason, m.status::text AS status,
           m.attempts, c.key, c.content
    FROM failed_root f JOIN failed_message m USING (message_id)
    LEFT JOIN failed_payload c USING (message_id) WHERE f.batch_id = :batch_id
"""
_SAMPLED = """
    SELECT f.root_id, f.message_id, h.source, h.step, h.reason, NULL::text AS status,
           NULL::int AS attempts, f.key, f.content
    FROM hold_sample f JOIN hold_failure h USING (batch_id, number) WHERE f.batch_id = :batch_id
"""
_FILTERS = dict.fromkeys(("step", "reason", "status", "search"))


def page(
    connection: Connection, batch_id: int, filters: Mapping[str, Any], *, on_hold: bool
) -> list[ListedRecord]:
    """Return records that failed in a batch, or, of a batch on hold, the sampled ones that would
    fail, in order of their roots. If there are more than a page, one more record is returned.

    ``filters``: step, reason, status (which those on hold do not have); search, a number of the
    record, or text in its reason or content; after, a root.
    """
    statement = text(f"""
        SELECT x.root_id, x.message_id, x.source, x.step, x.reason, x.key::text AS key,
               left(x.content, 200) AS beginning, x.status, x.attempts
        FROM ({_SAMPLED if on_hold else _FAILED}) x
        WHERE x.root_id > :after
          AND (cast(:step AS text) IS NULL OR x.step = :step)
          AND (cast(:reason AS text) IS NULL OR x.reason = :reason)
          AND (cast(:status AS text) IS NULL OR coalesce(x.status, :status) = :status)
          AND (cast(:search AS text) IS NULL
               OR cast(:search AS text) IN (x.root_id::text, x.message_id::text)
               OR strpos(lower(x.reason), lower(:search)) > 0
               OR strpos(lower(x.content), lower(:search)) > 0)
        ORDER BY x.root_id LIMIT :limit
    """)
    keys = {**_FILTERS, "batch_id": batch_id, "after": 0, "limit": PAGE + 1, **filters}
    return all_of(ListedRecord, connection.execute(statement, keys))


def failed_record(connection: Connection, number: int) -> LastFailure | None:
    """Return a message that failed at least once, by its id or by a root of it."""
    statement = text(f"""
        {_COLUMNS}, m.root_id, {STATE} AS state, r.cause::text AS cause, m.not_before AS due_at,
               m.replay_batch_id, p.target, b.status::text AS batch_status, b.interval_start,
               b.interval_end, b.params, b.dag_id, {JOINS} AS joins, {REREADS} AS rereads,
               any_step.merges AS whole, NOT any_step.incremental AS reprocesses, r.producers,
               r.emitted_edges, r.acked_edges, f.root_id AS content_root,
               b.files_expired_at AS expired_at, f.forgotten_at
        {FAILURES} {STEPS}
        LEFT JOIN failed_payload f ON f.message_id = m.message_id
        WHERE m.message_id = coalesce(
          (SELECT message_id FROM replay_root WHERE root_id = :id LIMIT 1),
          (SELECT message_id FROM failed_root WHERE root_id = :id), :id)
    """)
    return first_of(LastFailure, connection.execute(statement, {"id": number}))


def emitted_root(connection: Connection, number: int) -> EmittedRoot:
    """Return the root of this number, whatever its state. Raises InputError if it was never
    emitted.
    """
    statement = text("""
        SELECT root_id, message_id, batch_id, pipeline, source, status FROM root_state(:id)
    """)
    root = first_of(EmittedRoot, connection.execute(statement, {"id": number}))
    if root is not None:
        return root
    statement = text("""
        SELECT coalesce(max(first_root + roots - 1), 0) AS last,
               EXISTS (SELECT FROM failed_message m
                       JOIN batch b ON b.batch_id = m.original_batch_id AND b.status <> 'superseded'
                       WHERE m.status NOT IN ('recovered', 'superseded'))
               OR EXISTS (SELECT FROM hold_sample JOIN batch USING (batch_id) WHERE status = 'held')
                 AS listed
        FROM batch_source
    """)
    row = connection.execute(statement).one()
    shown = " as 'ackledger failed --records' shows it" if row.listed else ""
    raise InputError(
        f"no record {number}: expected the number of a record{shown}; numbers go from 1 to"
        f" {row.last} so far, with gaps"
    )


def attempts(connection: Connection, message_id: int) -> list[DecidedAttempt]:
    """Return every decided attempt of a message that failed at least once, in order."""
    statement = text("""
        SELECT h.attempt, h.batch_id, h.root_id, h.outcome, h.step, f.cause, h.reason, f.detail,
               f.producers, f.emitted_edges, f.acked_edges, f.wrong_at, h.decided_at
        FROM replay_history h LEFT JOIN failed_root f ON f.root_id = h.root_id
        WHERE h.message_id = :id ORDER BY h.attempt
    """)
    return all_of(DecidedAttempt, connection.execute(statement, {"id": message_id}))


def lost_at(connection: Connection, batch_id: int, root: int) -> list[str]:
    """Return the stages whose committed runs lost a row of a root, while its batch is open."""
    statement = text("""
        SELECT DISTINCT r.step FROM lost_root o JOIN step_run r USING (step_run_id)
        WHERE o.batch_id = :id AND o.root_id = :root AND r.state = 'committed'
    """)
    keys = {"id": batch_id, "root": root}
    return list(connection.execute(statement, keys).scalars())
