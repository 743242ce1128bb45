"""Find texts that a cast or a parser has turned into NULL because they are no value."""

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from ledger.auditing.definitions import definitions
from ledger.auditing.operations import simple_class, text_of
from ledger.lineage.catalyst import Catalyst, Expression, Node

# Expressions that turn a text into NULL if it is no value.
_PARSERS = frozenset(
    {
        "Cast",
        "CsvToStructs",
        "GetJsonObject",
        "GetTimestamp",
        "JsonToStructs",
        "ParseJson",
        "ParseToDate",
        "ParseToTimestamp",
        "ToTime",
        "ToUnixTimestamp",
        "TryToBinary",
        "TryToNumber",
        "UnixTimestamp",
    }
)
# Expressions that are NULL if one of their children is, and Coalesce, if all are.
_STRICT = frozenset(
    {
        "Abs",
        "Add",
        "Cast",
        "Ceil",
        "Coalesce",
        "DateAdd",
        "DateDiff",
        "DateSub",
        "DayOfMonth",
        "Divide",
        "Floor",
        "GetStructField",
        "Hour",
        "IntegralDivide",
        "Lower",
        "Minute",
        "Month",
        "Multiply",
        "Remainder",
        "Round",
        "StringTrim",
        "Substring",
        "Subtract",
        "TruncDate",
        "TryEval",
        "UnaryMinus",
        "UnaryPositive",
        "Upper",
        "Year",
    }
)
# Fields of parsers that raise an error instead.
_RAISING = frozenset({"ansiEnabled", "failOnError"})


@dataclass(frozen=True)
class ParsedText:
    """A text in the rows of ``node`` that is parsed. ``failed``: whether it is present and gave
    NULL.
    """

    node: Node
    failed: Column
    text: str


def parsed_texts(catalyst: Catalyst, node: Node, value: Expression) -> Iterator[ParsedText]:
    """Yield the texts that a value in a node's rows is parsed from, such that the value is NULL if
    the text does not parse.
    """
    kind = simple_class(value)
    if kind == "AttributeReference":
        for expression, below in definitions(catalyst, node, value):
            yield from parsed_texts(catalyst, below, expression)
        return
    if kind == "GetStructField":
        yield from _fields_of_json(catalyst, node, value, ())
    if kind in _PARSERS and not _raises(catalyst, value):
        parsed = _parsed(catalyst, node, value)
        if parsed:
            yield parsed
    if kind in _STRICT or kind in _PARSERS:
        for child in catalyst.items(value.children()):
            yield from parsed_texts(catalyst, node, child)


def _parsed(catalyst: Catalyst, node: Node, parser: Expression) -> ParsedText | None:
    argument = parser.children().head()
    if simple_class(argument) == "TryEval":
        argument = argument.child().children().head()
    if str(argument.dataType().simpleString()) != "string":
        return None
    text = catalyst.column(argument)
    failed = text.isNotNull() & catalyst.column(parser).isNull()
    if simple_class(parser) == "GetJsonObject":
        # A path that is not in a valid text is NULL as well.
        failed &= F.try_parse_json(text).isNull() & ~_is_object(text)
    return ParsedText(node, failed, text_of(parser, catalyst))


def _fields_of_json(
    catalyst: Catalyst, node: Node, value: Expression, path: tuple[str, ...]
) -> Iterator[ParsedText]:
    """Yield the texts that ``from_json`` parses, whose fields are NULL if the text is not JSON."""
    kind = simple_class(value)
    if kind == "GetStructField":
        name = str(value.childSchema().apply(value.ordinal()).name())
        yield from _fields_of_json(catalyst, node, value.child(), (name, *path))
    elif kind == "AttributeReference":
        for expression, below in definitions(catalyst, node, value):
            yield from _fields_of_json(catalyst, below, expression, path)
    elif kind == "JsonToStructs":
        text, field = catalyst.column(value.child()), catalyst.column(value)
        for name in path:
            field = field.getField(name)
        place = "".join(f"['{name}']" for name in path)
        # A field that is not in a valid text is NULL as well.
        is_absent = _is_object(text) & F.get_json_object(text, f"${place}").isNull()
        failed = text.isNotNull() & field.isNull() & ~is_absent
        yield ParsedText(node, failed, ".".join([text_of(value, catalyst), *path]))


def _is_object(text: Column) -> Column:
    return F.from_json(text, "map<string,string>").isNotNull()


def _raises(catalyst: Catalyst, parser: Expression) -> bool:
    """Return whether a parser raises an error instead of returning NULL."""
    if simple_class(parser) == "Cast":
        return str(parser.evalMode().toString()) == "ANSI"
    fields = catalyst.fields(parser)
    return any(parser.productElement(at) is True for at, n in enumerate(fields) if n in _RAISING)
