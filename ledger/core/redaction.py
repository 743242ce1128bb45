"""Redacted columns, whose values the ledger replaces by a mask or a pseudonym."""

import hmac
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ledger.errors import MASK

_DIGITS = 16  # of a pseudonym
_MASKED = re.compile(rf"{re.escape(MASK)}(?:[0-9a-f]{{{_DIGITS}}})?")


@dataclass(frozen=True)
class Redaction:
    """The masked columns of a pipeline.

    ``columns``: their names in lower case, because Spark ignores case. ``secret``: the ledger's,
    without which a guess cannot be checked against a pseudonym.
    """

    columns: frozenset[str] = frozenset()
    secret: bytes = b""

    @classmethod
    def of(cls, names: Iterable[str], secret: bytes = b"") -> "Redaction":
        """Return the redaction of columns with these names, in any case."""
        return cls(frozenset(name.lower() for name in names), secret)

    def among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names among ``names`` that are masked."""
        return tuple(name for name in names if name.lower() in self.columns)

    def hides_text(self, names: Iterable[str], layout: Mapping[str, Any]) -> bool:
        """Return whether the text of a record that did not parse is masked as a whole, with each
        value read from it, because a value may belong to another column. False for a source of
        only these columns and this layout, if none of them is redacted.
        """
        return bool(self.columns) and (not layout.get("closed") or bool(self.among(names)))

    def pseudonym(self, name: str, value: str) -> str:
        """Return the pseudonym of a key's value. Equal values of a column have equal pseudonyms, by
        which records can be found. The value cannot be computed from it.
        """
        text = f"{name.lower()}\0{value}".encode("utf-8", "surrogatepass")
        return MASK + hmac.new(self.secret, text, "sha256").hexdigest()[:_DIGITS]

    def key(self, key: str, every: bool = False) -> str:
        """Return a key, a JSON object, with pseudonyms in place of the values of masked columns, or
        of all columns if ``every``.
        """
        if not self.columns:
            return key
        values = json.loads(key)
        for name in values if every else self.among(values):
            if values[name] is not None:
                values[name] = self.pseudonym(name, as_text(values[name]))
        return json.dumps(values, ensure_ascii=False)


NOTHING = Redaction()


def is_masked(value: str | None) -> bool:
    """Return whether a value of a key or of content is the mask, or a pseudonym."""
    return value is not None and _MASKED.fullmatch(value) is not None


def as_text(value: object) -> str:
    """Return a text as it is, and any other value as JSON, as PostgreSQL's ``->>`` does; but None
    as ``null``, where ``->>`` gives NULL.
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
