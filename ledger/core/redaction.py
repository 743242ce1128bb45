"""Columns whose values the ledger does not keep, and what stands in their place."""

import hmac
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from unicodedata import normalize

from ledger.core.folding import FoldedText, fold
from ledger.core.text import CUT
from ledger.errors import MASK

LONG = 4  # characters; a shorter value is masked as a whole word alone
_DIGITS = 16  # of a pseudonym
_MASKED = re.compile(rf"{re.escape(MASK)}(?:[0-9a-f]{{{_DIGITS}}})?")


@dataclass(frozen=True)
class Redaction:
    """The columns of a pipeline that are masked. ``columns``: in lower case, for Spark ignores it.
    ``secret``: of the ledger, without which a guess cannot be checked against a pseudonym.
    """

    columns: frozenset[str] = frozenset()
    secret: bytes = b""

    @classmethod
    def of(cls, names: Iterable[str], secret: bytes = b"") -> "Redaction":
        """The columns of these names."""
        return cls(frozenset(name.lower() for name in names), secret)

    def among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of ``names`` that are masked."""
        return tuple(name for name in names if name.lower() in self.columns)

    def pseudonym(self, name: str, value: str) -> str:
        """What stands for a value of a key: the same for the same value of that column, so that
        records are found by it. It cannot be turned back.
        """
        text = f"{name.lower()}\0{value}".encode("utf-8", "surrogatepass")
        return MASK + hmac.new(self.secret, text, "sha256").hexdigest()[:_DIGITS]

    def may_be_in(self, *texts: str | bytes | None) -> bool:
        """Whether one of these texts, names of columns or raw records, has the name of a redacted
        column. A name that JSON escapes may be any."""
        named = "\n".join(
            text if isinstance(text, str) else text.decode(errors="replace")
            for text in texts
            if text
        ).lower()
        return any(name in named for name in self.columns) or (
            bool(self.columns) and "\\u" in named
        )

    def key(self, key: str, every: bool = False) -> str:
        """A key, JSON of its columns, with pseudonyms; ``every``: of all its columns."""
        if not self.columns:
            return key
        values = json.loads(key)
        for name in values if every else self.among(values):
            if values[name] is not None:
                values[name] = self.pseudonym(name, as_text(values[name]))
        return json.dumps(values, ensure_ascii=False)


NOTHING = Redaction()


def is_masked(value: str | None) -> bool:
    """Whether a value of a key or of content is the mask, or a pseudonym."""
    return value is not None and _MASKED.fullmatch(value) is not None


def as_text(value: object) -> str:
    """A value of JSON as PostgreSQL's ``->>`` gives it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def texts(value: object) -> Iterator[str]:
    """The texts of a value, and of its parts."""
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        for part in parts:  # type: ignore[attr-defined]
            yield from texts(part)
    elif isinstance(value, bytes):
        yield from (str(value), value.decode(errors="replace"))
    elif value is not None:
        yield str(value)


def json_texts(content: str) -> frozenset[str]:
    """The texts of JSON, and of its parts; numbers as they stand there."""
    return frozenset(texts(json.loads(content, parse_int=str, parse_float=str)))


def without(text: str, values: Iterable[str]) -> str:
    """A text in which these values are masked, in whatever case, and as JSON or Python spells them;
    of one that was cut also what is left of a value at its end."""
    spelled = {fold(way) for value in values for way in _spellings(value.strip())} - {""}
    if not spelled:
        return text
    masked = FoldedText(text).covered(spelled, LONG, MASK)
    if not masked.endswith(CUT):
        return masked
    return FoldedText(masked.removesuffix(CUT)).without_beginning(spelled, MASK) + CUT


def _spellings(value: str) -> Iterator[str]:
    """A value as it stands in a text, and within a text that quotes its whole record: escaped, a
    letter no longer shows its case and form."""
    yield value
    cases = {value, value.upper(), value.lower(), value.title()}
    forms = {normalize(form, case) for case in cases for form in ("NFC", "NFD")}
    for way in {value} if value.isascii() else cases | forms:
        yield json.dumps(way)[1:-1]
        yield json.dumps(way, ensure_ascii=False)[1:-1]
        yield repr(way)[1:-1]


def json_without(content: str, values: Collection[str]) -> str:
    """JSON in whose values, at any depth, these are masked."""
    if not values or not content:
        return content
    return json.dumps(_value_without(json.loads(content), values), ensure_ascii=False)


def _value_without(value: object, values: Collection[str]) -> object:
    if isinstance(value, dict):
        return {name: _value_without(part, values) for name, part in value.items()}
    if isinstance(value, list):
        return [_value_without(part, values) for part in value]
    if value is None:
        return None
    text = as_text(value)
    masked = without(text, values)
    return value if masked == text else masked


def found_pattern(names: Iterable[str]) -> str:
    """What a reason looks like that quotes what was found in one of these columns instead of a
    value of its type, up to the value. For Java and Python alike.
    """
    columns = "|".join(map(re.escape, names))
    return rf"(?s)^((?:[\w ]+: |yielded )?(?:{columns}): expected .*?, found ).*$"
