"""The form of the records of a text, and the grammar by which CSV is cut into fields."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NAMES = ("quote", "escape", "emptyValue", "null_value")


@dataclass(frozen=True)
class Dialect:
    """The characters of CSV, and the texts that mean null.

    ``options``: those of a source with its ``null_value``, or its ``layout``.
    """

    options: Mapping[str, Any]

    @property
    def separator(self) -> str:
        """The character between two fields."""
        return str(self.options.get("sep", ","))

    @property
    def quote(self) -> str:
        """The character that encloses a field; empty: there is none."""
        return str(self.options.get("quote", '"'))

    @property
    def escape(self) -> str:
        """The character before a quote within quotes. RFC 4180 doubles the quote."""
        return str(self.options.get("escape", self.quote))

    @property
    def layout(self) -> dict[str, Any]:
        """Return the options that the ledger keeps, from which the same dialect can be made."""
        own = {name: self.options[name] for name in _NAMES if self.options.get(name) is not None}
        return {"sep": self.separator, **own}

    @cached_property
    def patterns(self) -> tuple[str, str]:
        """Return two patterns, for Java and Python alike: a whole field, and a field whose quote is
        open.
        """
        quote, separator = re.escape(self.quote), re.escape(self.separator)
        escape = re.escape(self.escape)
        if self.escape == self.quote:
            within = f"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+"
        elif self.escape:
            within = f"[^{quote}{escape}]*+(?:{escape}.[^{quote}{escape}]*+)*+"
        else:
            within = f"[^{quote}]*+"
        return f"(?:{quote}{within}{quote}|[^{quote}{separator}]*+)", f"{quote}{within}"

    def texts(self, record: str) -> list[str] | None:
        """Return the texts of a record's fields; None if its quotes do not enclose whole fields."""
        fields, rest = self._cut(record)
        return None if rest else [self._text(field) for field in fields]

    def all_values(self, record: str) -> list[str | None] | None:
        """Return the texts of a record's fields, None for null; None if its quotes do not enclose
        whole fields.
        """
        fields = self._fields.findall(self.separator + record)
        if sum(map(len, fields)) + len(fields) != len(record) + 1:
            return None
        quote, null = self.quote, self.options.get("null_value") or ""
        return [
            self._value(text)
            if text.startswith(quote)
            else (text if text != null else None) or None
            for text in fields
        ]

    def values(self, record: str) -> list[str | None]:
        """Return the texts of a record's fields, None for null, up to a misplaced quote.

        Returns no fields if a quote is never closed.
        """
        fields, rest = self._cut(record)
        is_open = rest and re.fullmatch(self.patterns[1], rest, re.DOTALL)
        return [] if is_open else [self._value(field) for field in fields]

    def _cut(self, record: str) -> tuple[list[str], str]:
        """Return the fields of a record as they are written, and the rest that is no field."""
        if not self.quote:
            return record.split(self.separator), ""
        fields: list[str] = []
        start = 0
        while start <= len(record):
            match = self._field.match(record, start)
            if match is None:
                return fields, record[start:]
            fields.append(match[0])
            start = match.end() + 1
        return fields, ""

    @cached_property
    def _field(self) -> re.Pattern[str]:
        end = rf"(?={re.escape(self.separator)}|\Z)"
        return re.compile(self.patterns[0] + end, re.DOTALL)

    @cached_property
    def _fields(self) -> re.Pattern[str]:
        """Return the pattern of a field behind its separator."""
        separator = re.escape(self.separator)
        return re.compile(rf"{separator}({self.patterns[0]})(?={separator}|\Z)", re.DOTALL)

    def _text(self, field: str) -> str:
        if not self._is_quoted(field):
            return field
        if not self.escape:
            return field[1:-1]
        escape, quote = re.escape(self.escape), re.escape(self.quote)
        return re.sub(f"{escape}([{escape}{quote}])", r"\1", field[1:-1])

    def _value(self, field: str) -> str | None:
        null, text = self.options.get("null_value") or "", self._text(field)
        if not text:
            text = self.options.get("emptyValue", "") if self._is_quoted(field) else null
        return None if text == null else text

    def _is_quoted(self, field: str) -> bool:
        return bool(self.quote) and field.startswith(self.quote)


@dataclass(frozen=True)
class Format:
    """The form in which the records of a text are written.

    ``names``: the columns of a CSV record, in its order; some may not be in the schema.
    ``multiline``: whether a quoted value may hold line breaks.
    """

    format: str
    schema: "StructType"
    names: Sequence[str]
    null_value: str | None
    options: Mapping[str, str]
    multiline: bool = False

    @cached_property
    def dialect(self) -> Dialect:
        """The rules by which a CSV record is cut into its fields."""
        return Dialect({**self.options, "null_value": self.null_value})
