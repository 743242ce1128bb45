"""Conditions on the fields of a record, as people write them: ``order_id = 'O7' AND cents > 5``."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ledger.core.redaction import Redaction
from ledger.errors import InputError

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<number>[+-]?\d+(?:\.\d+)?(?![\w.]))
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<word>[^\W\d]\w*)
      | (?P<operator><=|>=|<>|!=|=|<|>)
    )""",
    re.VERBOSE,
)
_OPERATORS = {"=": "=", "!=": "<>", "<>": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_NULLS = {("IS", "NULL"): "IS NULL", ("IS", "NOT", "NULL"): "IS NOT NULL"}
_EXAMPLE = "order_id = 'O7' AND cents > 5"


@dataclass(frozen=True)
class Comparison:
    """A field compared with a value. ``operator``: one of SQL's, of a fixed list. ``value``: None
    where the operator takes none. ``numeric``: compare as numbers, not as texts. ``pseudonym``:
    what may stand for the value in a redacted key, or in one of a record that did not parse."""

    name: str
    operator: str
    value: str | None = None
    numeric: bool = False
    pseudonym: str | None = None


def parse(condition: str | None) -> list[Comparison]:
    """The comparisons of a condition, joined by AND. Raises InputError on anything else."""
    if condition is None:
        return []
    tokens, comparisons = _tokens(condition), []
    while True:
        comparison, used = _comparison(condition, tokens)
        comparisons.append(comparison)
        tokens = tokens[used:]
        if not tokens:
            return comparisons
        if tokens[0][1].upper() != "AND":
            raise _misread(condition, tokens[0][1])
        tokens = tokens[1:]


def with_pseudonyms(
    comparisons: Iterable[Comparison], pipelines: Sequence[Redaction]
) -> list[Comparison]:
    """The comparisons, which find redacted keys, too. Raises InputError if one asks more of a
    column that all these pipelines redact than whether it has a value."""
    redacting = next((pipeline for pipeline in pipelines if pipeline.columns), None)
    if redacting is None:
        return list(comparisons)
    return [_with_pseudonym(comparison, redacting, pipelines) for comparison in comparisons]


def _with_pseudonym(
    comparison: Comparison, redact: Redaction, pipelines: Sequence[Redaction]
) -> Comparison:
    if comparison.value is None:
        return comparison
    if comparison.operator not in ("=", "<>"):
        if not all(each.among([comparison.name]) for each in pipelines):
            return comparison
        raise InputError(
            f"the condition names {comparison.name!r}, which is redacted: expected = or <> and a"
            f" whole value, found {comparison.operator}. Of a redacted key the ledger keeps a"
            " pseudonym, of any other redacted column nothing"
        )
    return replace(comparison, pseudonym=redact.pseudonym(comparison.name, comparison.value))


def _tokens(condition: str) -> list[tuple[str, str]]:
    tokens, place = [], 0
    while condition[place:].strip():
        match = _TOKEN.match(condition, place)
        if match is None:
            raise _misread(condition, condition[place:].strip())
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind]))
        place = match.end()
    return tokens


def _comparison(condition: str, tokens: list[tuple[str, str]]) -> tuple[Comparison, int]:
    if not tokens or tokens[0][0] not in ("word", "quoted"):
        raise _misread(condition, tokens[0][1] if tokens else "its end")
    name = _unquoted(tokens[0][1], '"') if tokens[0][0] == "quoted" else tokens[0][1]
    words = [token[1].upper() for token in tokens[1:4]]
    for phrase, operator in _NULLS.items():
        if tuple(words[: len(phrase)]) == phrase:
            return Comparison(name, operator), 1 + len(phrase)
    if len(tokens) < 3:
        raise _misread(condition, tokens[-1][1])
    operator = "LIKE" if words[0] == "LIKE" else _OPERATORS.get(words[0], "")
    kind, value = tokens[2]
    if not operator or (kind not in ("text", "number") and words[1] not in ("TRUE", "FALSE")):
        raise _misread(condition, value if operator else tokens[1][1])
    if kind == "number" and operator != "LIKE":
        return Comparison(name, operator, value, numeric=True), 3
    return Comparison(name, operator, _unquoted(value, "'") if kind == "text" else value.lower()), 3


def _unquoted(text: str, quote: str) -> str:
    return text[1:-1].replace(quote * 2, quote)


def _misread(condition: str, text: str) -> InputError:
    return InputError(
        f"condition {condition!r}: expected comparisons of a field with a text or a number, joined "
        f'by AND, for example "{_EXAMPLE}", or the number of a record; found {text!r}'
    )
