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
    """A comparison of a field with a value.

    ``operator``: one of a fixed list of SQL operators.
    ``value``: None if the operator takes no value.
    ``numeric``: whether to compare numbers instead of texts.
    ``pseudonym``: the value to look for in a redacted key, or in the key of a record that did not
    parse.
    """

    name: str
    operator: str
    value: str | None = None
    numeric: bool = False
    pseudonym: str | None = None


def parse(condition: str | None) -> list[Comparison]:
    """Parse comparisons that are joined by AND; return an empty list for None. Raises InputError
    for any other text.
    """
    if condition is None:
        return []
    tokens: list[tuple[str, str]] = []
    place = 0
    while condition[place:].strip():
        match = _TOKEN.match(condition, place)
        if match is None:
            raise _misread(condition, condition[place:].strip())
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind]))
        place = match.end()
    comparisons = []
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
    """Add to each comparison the pseudonym of its value in redacted keys. Raises InputError for an
    operator other than ``=`` and ``<>`` on a column that all these pipelines redact.
    """
    redacting = next((pipeline for pipeline in pipelines if pipeline.columns), None)
    if redacting is None:
        return list(comparisons)
    result = []
    for each in comparisons:
        pseudonym = None
        if each.value is not None and each.operator in ("=", "<>"):
            pseudonym = redacting.pseudonym(each.name, each.value)
        elif each.value is not None and all(pipeline.among([each.name]) for pipeline in pipelines):
            raise InputError(
                f"the condition names {each.name!r}, which is redacted: expected = or <> and a"
                f" whole value, found {each.operator}. Of a redacted key the ledger keeps a"
                " pseudonym, of any other redacted column nothing"
            )
        result.append(replace(each, pseudonym=pseudonym))
    return result


def _comparison(condition: str, tokens: list[tuple[str, str]]) -> tuple[Comparison, int]:
    """Parse the comparison at the beginning of the tokens. Return it, and the number of its
    tokens.
    """
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
