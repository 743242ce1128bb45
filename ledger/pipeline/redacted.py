"""Columns that a pipeline redacts."""

from collections.abc import Collection, Iterable, Sequence

from ledger.errors import DeclarationError, suggestion
from ledger.pipeline.steps import SourceStep
from ledger.types.ddl import columns


def named_columns(pipeline: str, redact: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns that ``redact`` lists. Raises DeclarationError for an item that is no
    name, or is listed twice.
    """
    names = (redact,) if isinstance(redact, str) else tuple(redact)
    if not all(isinstance(name, str) and name for name in names):
        raise DeclarationError(
            f"pipeline {pipeline!r}: redact={redact!r}: expected names of columns, for example"
            ' redact=["name", "email"]'
        )
    if len({name.lower() for name in names}) != len(names):
        raise DeclarationError(
            f"pipeline {pipeline!r}: redact names {', '.join(names)}: none twice"
        )
    return names


def check_redacted(pipeline: str, redact: Iterable[str], sources: Iterable[SourceStep]) -> None:
    """Raise DeclarationError as ``check_known`` does. If only a run knows a source's schema, the
    source's runs check it instead.
    """
    declared = (step.source.schema for step in sources)
    schemas = [None if schema is None else columns(schema) for schema in declared]
    if None not in schemas:
        check_known(pipeline, redact, {name for schema in schemas for name in schema or ()})


def check_known(pipeline: str, redact: Iterable[str], names: Collection[str]) -> None:
    """Raise DeclarationError unless the sources have each redacted column. A misspelt name would
    leave a column unmasked.
    """
    for name in redact:
        if name.lower() not in {column.lower() for column in names}:
            raise DeclarationError(
                f"pipeline {pipeline!r} redacts {name!r}, a column of none of its sources"
                f"{suggestion(name, names)}"
            )
