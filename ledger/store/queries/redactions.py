"""Statements about what pipelines redact."""

from sqlalchemy import Connection, text

from ledger.core.redaction import Redaction


def of_pipeline(connection: Connection, pipeline: str | None) -> Redaction:
    """What a pipeline redacts, as it was declared last; None: all pipelines."""
    statement = text("""
        SELECT k.secret, (
          SELECT array_agg(DISTINCT u.redacted)
          FROM pipeline p CROSS JOIN unnest(p.redact) AS u (redacted)
          WHERE cast(:pipeline AS text) IS NULL OR p.name = :pipeline) AS names
        FROM redaction_key k
    """)
    found = connection.execute(statement, {"pipeline": pipeline}).one()
    return Redaction.of(found.names or (), bytes(found.secret))
