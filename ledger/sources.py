"""What a pipeline can read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger import templates
from ledger.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS = ("csv", "json", "parquet")


@dataclass(frozen=True, kw_only=True)
class _FileOptions:
    format: str = "csv"
    schema: "StructType | str"
    header: bool = True
    null_value: str | None = None
    allow_missing: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileSource(_FileOptions):
    """Files of one format, read by interval.

    ``path``: glob, a template over ``interval_start``, ``interval_end`` and ``params``; relative
    paths start from ``ACKLEDGER_DATA``. ``format``: ``csv``, ``json`` (one object a line) or
    ``parquet``. ``schema``: a StructType or a DDL string; a record that does not fit fails, it is
    never dropped. ``header``: csv files begin with the schema's names, in order. ``null_value``:
    text that means null, for example ``NA``. ``allow_missing``: no matching file means no records
    instead of an error. ``options``: further options of Spark's reader, for example ``sep``.

    Raises DeclarationError on an unknown format or a path that is no template.
    """

    path: str

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise DeclarationError(
                f"format {self.format!r} of {self.path!r}: expected one of {', '.join(FORMATS)}"
            )
        templates.check(self.path)
