"""The form of the records of a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import types as T

from ledger.sources.files.dialect import Dialect


@dataclass(frozen=True)
class Format:
    """The format in which the records of a text are written.

    ``names``: the columns of a CSV record, in its order; some may be none of the schema's.
    ``multiline``: whether a value in quotes may hold line breaks.
    """

    format: str
    schema: T.StructType
    names: Sequence[str]
    null_value: str | None
    options: Mapping[str, str]
    multiline: bool = False

    @cached_property
    def dialect(self) -> Dialect:
        """The rules by which a CSV record is cut into its fields."""
        return Dialect({**self.options, "null_value": self.null_value})
