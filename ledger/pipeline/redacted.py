"""Columns that a pipeline redacts."""

from collections.abc import Collection, Iterable, Sequence

from ledger.errors import DeclarationError, suggestion
from ledger.pipeline.steps import SourceStep
from ledger.types.ddl import columns


def named_columns(pipeline: str, redact: str | Sequence[str]) -> tuple[str, ...]:
    """The names that ``redact`` gives. Raises DeclarationError if one is no name, or twice."""
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
    """Raise as ``check_known`` does, unless a schema is a text that only Spark can read: then the
    runs of the sources check.
    """
    schemas = [columns(step.source.schema) for step in sources]
    if None not in schemas:
        check_known(pipeline, redact, {name for schema in schemas for name in schema or ()})


def check_known(pipeline: str, redact: Iterable[str], names: Collection[str]) -> None:
    """Raise DeclarationError unless each redacted column is among those of the sources: a name
    that is misspelt would leave a column as it is.
    """
    for name in redact:
        if name.lower() not in {column.lower() for column in names}:
            raise DeclarationError(
                f"pipeline {pipeline!r} redacts {name!r}, a column of none of its sources"
                f"{suggestion(name, names)}"
            )
