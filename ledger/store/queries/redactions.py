"""Statements about the columns that pipelines redact."""

from sqlalchemy import Connection, text

from ledger.core.redaction import NOTHING, Redaction


def of_pipelines(connection: Connection, pipeline: str | None) -> list[Redaction]:
    """Return the redaction of a pipeline as it was declared last; None: of each pipeline."""
    statement = text("""
        SELECT p.redact, k.secret FROM pipeline p CROSS JOIN redaction_key k
        WHERE cast(:pipeline AS text) IS NULL OR p.name = :pipeline
    """)
    rows = connection.execute(statement, {"pipeline": pipeline})
    return [Redaction.of(row.redact, bytes(row.secret)) for row in rows]


def of_pipeline(connection: Connection, pipeline: str) -> Redaction:
    """Return the redaction of a pipeline as it was declared last."""
    return next(iter(of_pipelines(connection, pipeline)), NOTHING)


def columns_of(connection: Connection, pipeline: str) -> Redaction:
    """Return the columns that a pipeline redacts, without the secret: it makes no pseudonyms."""
    statement = text("SELECT redact FROM pipeline WHERE name = :pipeline")
    return Redaction.of(connection.execute(statement, {"pipeline": pipeline}).scalar() or ())
