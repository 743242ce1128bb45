"""Parse text into records without losing one: what does not parse keeps its bytes and a reason."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ledger.core.column_names import ERROR, QUOTED, RAW, TEXT
from ledger.sources.files.dialect import Dialect
from ledger.sources.parsing import keys, numerals, values
from ledger.sources.parsing.typed import CORRUPT
from ledger.types.spark import NESTED, without_lengths

_RECORD, _EXACT, _TEXTS = "_ackledger_record", "_ackledger_exact", "_ackledger_texts"
_MISFIT = "_ackledger_misfit"
NOT_UTF8 = "not UTF-8"
UNCLOSED = "a quote is never closed"
PARTED = (
    "line breaks within quotes: declare the source with multiline=True if its records have them"
)
STRAY = (
    "a quote within a value: double it and enclose the value in quotes, or declare "
    "options={'quote': ''} if quotes mean nothing"
)
# Spark's reader of CSV takes U+FFFF for the end, of the next record, too; leaves out NUL behind a
# quote; and a mark of UTF-8 at the beginning of the first record that a task parses.
NO_TEXT = "a character that is none of a text: NUL, U+FFFF, or U+FEFF at its beginning"
_NO_ESCAPE = "\uffff"  # a record that has it fails; of NUL Spark's reader makes another value
_END = "_ackledger_end"  # what is put after a line of JSON, to see whether its reader gets there
# Text of JSON in which each escaped half of a character has its other half.
_PAIRED = r"(?s)[^\\]*+(?:\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F])[^\\]*+)*+"
# What Spark takes for JSON unless an option forbids it: how it looks in a line, and what to do
# about it.
_ALLOWED: Mapping[str, tuple[str, str]] = {
    "allowNonNumericNumbers": (
        r"[:\[,]\s*[-+]?(?:NaN|INF|Infinity)\b",
        "NaN and Infinity are not in JSON: make them null",
    ),
    "allowSingleQuotes": (
        r"[{:\[,]\s*'",
        "single quotes are not in JSON: use double quotes",
    ),
}
# Strings of JSON; the last may be cut off.
_DOUBLE = r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\z)'
_STRINGS = rf"{_DOUBLE}|'[^'\\]*+(?:\\.[^'\\]*+)*+(?:'|\z)"
_MOST_CHARACTERS = 20_000_000  # of a text of JSON: the limit of Jackson, and of its readers
_MOST_SHOWN = 200  # characters of a value in a reason; the raw record has all of it
_MOST_FIELDS = 20_480  # of a record of CSV, if its schema has not more: Spark's reader raises then


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


def parsed(lines: DataFrame, form: Format) -> DataFrame:
    """``lines`` (``TEXT``: string of raw bytes, and others) with ``TEXT`` replaced by the schema's
    columns, ``RAW`` (bytes), ``ERROR`` and ``QUOTED``, all null where the record parsed.
    """
    columns, names = lines.columns, form.schema.names
    others = [name for name in columns if name != TEXT]
    record = _record(form, values.parsed_type, F.col(TEXT)).alias(_RECORD)
    read = _barrier(lines.select("*", record))
    exact = _barrier(read.select("*", _exact(form).alias(_EXACT)))
    typed = _barrier(exact.select("*", *_columns(form)))
    text = F.when(F.col(_EXACT).isNotNull(), _marked(form)).otherwise(F.col(TEXT))
    texts = F.when(_misfits(form), _record(form, _as_text, text)).alias(_TEXTS)
    with_texts = _barrier(typed.select("*", texts))
    misfit = _misfit(form).alias(_MISFIT)
    compared = _barrier(with_texts.select(*columns, *_named(names), misfit))
    judged = _barrier(compared.select("*", _error(form)))
    good = F.col(ERROR).isNull()
    data = [
        F.when(good, column).alias(name) for name, column in zip(names, _named(names), strict=True)
    ]
    raw = F.when(~good, F.col(TEXT).cast("binary")).alias(RAW)
    is_misfit = F.col(ERROR) == _misfit_reason(form)
    quoted = F.when(is_misfit, F.get(_MISFIT, F.lit(1))).alias(QUOTED)
    return judged.select(*others, *data, raw, ERROR, quoted)


def _named(names: Sequence[str]) -> list[Column]:
    return [F.col(quoted(name)) for name in names]


def _columns(form: Format) -> list[Column]:
    """The schema's columns; null where a value does not fit, or the file has no such column."""
    columns = []
    for field in form.schema.fields:
        column = F.lit(None).cast(without_lengths(field.dataType))
        if field.name in form.names:
            column = values.converted(_read(form, field), field.dataType, form.format, form.options)
        columns.append(column.alias(field.name))
    return columns


def _read(form: Format, field: T.StructField) -> Column:
    """A field as it was read: of JSON with its numbers as they are written."""
    read, exact = F.col(_RECORD)[field.name], F.col(_EXACT)
    if form.format == "csv":
        return read
    restored = numerals.restored(read, exact[field.name], field.dataType)
    return F.when(exact.isNotNull(), aside(restored)).otherwise(read)


def _barrier(rows: DataFrame) -> DataFrame:
    """The same rows. A condition on what is made of these columns is evaluated after them, and the
    columns once: Spark would otherwise repeat the parsing in every filter and use of a column.
    """
    return rows.where(F.monotonically_increasing_id() >= 0)


def _record(form: Format, kind: "values.Kind", text: Column) -> Column:
    """A record as a struct of its columns, each of the type that ``kind`` makes of its own, and the
    whole text where one does not fit."""
    types = {field.name: field.dataType for field in form.schema.fields}
    # Columns that are none of the schema's are called otherwise: they may differ from it, or from
    # the ledger's own, by nothing that Spark distinguishes.
    longest = "_" * max(map(len, [CORRUPT, *types]))
    columns = [
        (
            T.StructField(name, kind(types[name], form.format))
            if name in types
            else T.StructField(f"{longest}{number}", T.StringType())
        )
        for number, name in enumerate(form.names)
    ]
    target = T.StructType([*columns, T.StructField(CORRUPT, T.StringType())])
    if form.format == "json":
        return F.from_json(text, target, _options(form))
    csv = {
        "escape": form.dialect.escape or _NO_ESCAPE,
        "multiLine": str(form.multiline).lower(),
        "maxColumns": str(_most_fields(form)),
    }
    if form.null_value is not None:
        csv["nullValue"] = form.null_value
    ddl = ", ".join(
        f"{quoted(field.name)} {field.dataType.simpleString()}" for field in target.fields
    )
    is_safe = _few_fields(form) & ~_has_no_text(form)
    return F.when(is_safe, F.from_csv(text, ddl, {**_options(form), **csv}))


def _most_fields(form: Format) -> int:
    return max(_MOST_FIELDS, len(form.names))


def _few_fields(form: Format) -> Column:
    """Whether Spark's reader takes a record: of one with more fields it raises, for the whole
    file.
    """
    value, most, dialect = F.col(TEXT), _most_fields(form), form.dialect
    separator = re.escape(dialect.separator)
    if not dialect.quote:
        few = F.regexp_count(value, F.lit(separator)) < most
    else:
        field, _ = dialect.patterns
        few = values.matches(value, f"(?s){field}(?:{separator}{field}){{0,{most - 1}}}+")
    return (F.octet_length(value) < most) | few


def _has_no_text(form: Format) -> Column:
    """Whether a record of CSV has a character of which Spark's reader makes another value."""
    value, dialect = F.col(TEXT), form.dialect
    meant = {dialect.separator, dialect.quote, dialect.escape}
    wrong = [F.contains(value, F.lit(character)) for character in {"\0", "\uffff"} - meant]
    return values.any_of([value.startswith("\ufeff"), *wrong])


def _options(form: Format) -> dict[str, str]:
    own = {name: value for name, value in form.options.items() if name not in values.FORMATS}
    if form.dialect.separator == "\\":  # which begins an escape where Spark reads this option
        own["sep"] = "\\\\"
    strict = dict.fromkeys(_ALLOWED, "false") if form.format == "json" else {}
    return {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **strict, **own}


def _exact(form: Format) -> Column:
    """A record of JSON with marks at its numbers, if Spark's reader may have changed one of them;
    null where it has changed none.
    """
    if form.format == "csv":
        return F.lit(None)
    read = _record(form, lambda kind, _: numerals.texts(kind), _marked(form))
    doubtful = numerals.doubtful(
        F.col(TEXT), form.schema, form.options, F.col(_RECORD), corrupt=CORRUPT
    )
    return F.when(doubtful, read)


def _marked(form: Format) -> Column:
    return numerals.marked(F.col(TEXT), form.options)


def quoted(name: str) -> str:
    """A column's name as Spark takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def _as_text(kind: T.DataType, format: str) -> T.DataType:
    return T.StringType()


def _error(form: Format) -> Column:
    """Why a record does not parse, as ``ERROR``, without the value that does not; null if it
    does."""
    value = F.col(TEXT)
    malformed = f"malformed {form.format}: "
    shape = _csv_shape(form) if form.format == "csv" else _json_shape(form)
    missing = [
        (F.col(quoted(field.name)).isNull(), f"{field.name} is null")
        for field in form.schema.fields
        if not field.nullable
    ]
    problems = [
        F.when(~F.is_valid_utf8(value), NOT_UTF8),
        *(F.when(condition, F.concat(F.lit(malformed), reason)) for condition, reason in shape),
        _misfit_reason(form),
        F.concat(F.lit(malformed), _misspelt(form)),
        *(F.when(condition, malformed + reason) for condition, reason in missing),
    ]
    # Where a record was read by columns there is no text, and nothing is asked of it.
    return F.when(value.isNotNull(), F.coalesce(*problems)).alias(ERROR)


def _misspelt(form: Format) -> Column:
    """The column or field that a record of JSON has by another case or with blanks; null if
    none."""
    if form.format == "csv":  # whose header is looked at
        return F.lit(None).cast("string")
    columns = {name: F.col(quoted(name)) for name in form.schema.names}
    return keys.misspelt(F.col(TEXT), form.schema, columns, _options(form))


def key_paths(text: Column, form: Format, excluded: Collection[keys.KeyPath]) -> Column:
    """Return the keys of a record of JSON, without the ``excluded`` ones; see ``keys.paths``."""
    return keys.paths(text, form.schema, _options(form), excluded)


def _misfits(form: Format) -> Column:
    """Return whether a text may not be a record, or one of its fields not a value of its column's
    type."""
    conditions = [
        values.misfits(F.col(_RECORD)[field.name], F.col(quoted(field.name)), field.dataType)
        for field in form.schema.fields
        if field.name in form.names and not values.plain(field.dataType)
    ]
    if form.format == "json":
        conditions.append(F.coalesce(F.col(_EXACT)[CORRUPT].isNotNull(), F.lit(False)))
    elif any(isinstance(field.dataType, values.MISREAD) for field in form.schema.fields):
        conditions.append(values.has_foreign(F.col(TEXT)))
    return values.any_of([F.col(_RECORD)[CORRUPT].isNotNull(), *conditions])


def _misfit(form: Format) -> Column:
    """The fault of a record that has ``_TEXTS``: the first column whose value does not fit
    and what is expected; then what is found. Null if all is well."""
    texts = F.col(_TEXTS)
    reasons = []
    for field in form.schema.fields:
        if field.name not in form.names:
            continue
        text, value = numerals.unmarked(texts[field.name]), F.col(quoted(field.name))
        wrong = value.isNull()
        if not values.plain(field.dataType):
            wrong |= values.misfits(F.col(_RECORD)[field.name], value, field.dataType)
        if form.format == "csv":
            wrong |= values.misread(text, field.dataType)
        elif isinstance(field.dataType, NESTED):
            wrong |= _has_misfit(form, text, field.dataType)
        expected = F.lit(f"{field.name}: expected {field.dataType.simpleString()}, found ")
        shown = F.left(text, F.lit(_MOST_SHOWN))
        reasons.append(F.when(text.isNotNull() & wrong, F.array(expected, shown)))
    declared = form.schema.simpleString().removeprefix("struct<").removesuffix(">")
    no_record = F.when(texts[CORRUPT].isNotNull(), F.array(_not_a_record(form)))
    is_corrupt = F.col(_RECORD)[CORRUPT].isNotNull()
    otherwise = F.when(is_corrupt, F.array(F.lit(f"expected {declared}")))
    reason = F.coalesce(no_record, *reasons, otherwise)
    return F.when(texts.isNotNull() | is_corrupt, aside(reason))


def _misfit_reason(form: Format) -> Column:
    return F.concat(F.lit(f"malformed {form.format}: "), F.get(_MISFIT, F.lit(0)))


def aside(rare: Column) -> Column:
    """A column that is seldom asked for, evaluated apart from the others: in one method with them
    its code is too much for the JVM to compile.
    """
    return F.get(F.transform(F.array(F.lit(0)), lambda _: rare), F.lit(0))


def _has_misfit(form: Format, text: Column, kind: T.DataType) -> Column:
    """Whether a part of a field's JSON is not of its type; Spark leaves it out, and reports it for
    the whole record alone."""
    field = T.StructField("value", values.parsed_type(kind, form.format))
    target = T.StructType([field, T.StructField(CORRUPT, T.StringType())])
    alone = F.concat(F.lit('{"value":'), text, F.lit("}"))
    return F.from_json(alone, target, _options(form))[CORRUPT].isNotNull()


def _not_a_record(form: Format) -> Column:
    if form.format == "json":
        return _not_json(
            form, f"expected one object with {', '.join(form.names)}, found something else"
        )
    value, dialect = F.col(TEXT), form.dialect
    if dialect.quote:
        _, opened = dialect.patterns
        value = F.regexp_replace(value, f"(?s){opened}{re.escape(dialect.quote)}", "")
    count = F.regexp_count(value, F.lit(re.escape(dialect.separator))) + 1
    return F.concat(F.lit(f"expected {len(form.names)} fields, found "), count.cast("string"))


def _not_json(form: Format, otherwise: str) -> Column:
    """Why a line is no JSON, with the option that allows it if there is one."""
    options = _options(form)
    single = values.allows(options, "allowSingleQuotes")
    bare = F.regexp_replace(F.col(TEXT), _STRINGS if single else _DOUBLE, '""')
    hints = [
        F.when(bare.rlike(look), f"{advice}, or declare options={{{name!r}: 'true'}}")
        for name, (look, advice) in _ALLOWED.items()
        if not values.allows(options, name)
    ]
    return F.coalesce(_too_long(F.col(TEXT)), *hints, F.lit(otherwise))


def _too_long(text: Column) -> Column:
    """The reason why Spark's reader refuses a line with a text that is too long for it; else
    null."""
    reason = f"a text is too long: expected at most {_MOST_CHARACTERS:,} characters, found "
    parts = F.split(F.regexp_replace(text, r"(?s)\\(?:u....|.)", "_"), '"')
    longest = F.array_max(F.transform(parts, F.length))
    is_long = (F.octet_length(text) > _MOST_CHARACTERS) & (longest > _MOST_CHARACTERS)
    return F.when(is_long, F.concat(F.lit(reason), F.format_number(longest, 0)))


def _csv_shape(form: Format) -> list[tuple[Column, Column]]:
    """The faults of a record's quotes and of its number of fields, as conditions with reasons."""
    value = F.col(TEXT)
    breaks = F.contains(value, F.lit("\n")) | F.contains(value, F.lit("\r"))
    first = [(_has_no_text(form), F.lit(NO_TEXT))]
    first += [] if form.multiline else [(breaks, F.lit(PARTED))]
    reason = f"expected {len(form.names)} fields, found more than {_most_fields(form):,}"
    many = [(~_few_fields(form), F.lit(reason))]
    if not form.dialect.quote:
        return [*first, *many]
    unclosed = (_unclosed(value, form), F.lit(UNCLOSED))
    return [*first, unclosed, (_broken(value, form), F.lit(STRAY)), *many]


def _broken(value: Column, form: Format) -> Column:
    """Whether quotes stand where none may be."""
    dialect = form.dialect
    field, _ = dialect.patterns
    whole = values.matches(value, f"(?s){field}(?:{re.escape(dialect.separator)}{field})*+")
    return F.contains(value, F.lit(dialect.quote)) & ~whole


def _unclosed(value: Column, form: Format) -> Column:
    dialect = form.dialect
    field, opened = dialect.patterns
    begun = values.matches(value, f"(?s)(?:{field}{re.escape(dialect.separator)})*+{opened}")
    return _broken(value, form) & begun


def _json_shape(form: Format) -> list[tuple[Column, Column]]:
    """Whether a line is one object, and nothing else, of whole characters."""
    value = F.col(TEXT)
    # from_json reads the first value of a line and forgets what follows it. Where the first brace
    # that closes is the last character nothing follows; else the line is reparsed, with an
    # object after it that has to be the second of the two.
    before = F.substring_index(value, "}", 1)
    ends = F.octet_length(before) == F.octet_length(value) - 1
    two = F.concat(F.lit("["), value, F.lit(f',{{"{_END}":1}}]'))
    end = T.StructType([T.StructField(_END, T.IntegerType())])
    read = F.from_json(two, T.ArrayType(end), _options(form))
    single = (F.size(read) == 2) & (F.get(read, F.lit(1))[_END] == 1)
    alone = F.when(ends, F.lit(True)).otherwise(F.coalesce(single, F.lit(False)))
    well_formed = alone & F.ltrim(value).startswith("{")
    halved = F.contains(value, F.lit("\\u")) & ~values.matches(value, _PAIRED)
    return [
        (~well_formed, _not_json(form, "expected one object, found something else or more")),
        (halved, F.lit("half of a character: expected two \\u escapes, found one of them")),
    ]
