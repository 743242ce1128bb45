"""What is read of JSON by columns is what the exact reader makes of it: that is the oracle."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from ledger.core.column_names import ERROR
from ledger.sources.files.format import Format
from ledger.sources.parsing.exact import Parser
from ledger.sources.vectorized.json_lines import read, reads
from ledger.sources.vectorized.lines import Lines, Read

_NUMBERS = """0 -0 1 -1 127 128 -128 -129 255 32767 32768 2147483647 2147483648 9223372036854775807
9223372036854775808 -9223372036854775808 -9223372036854775809 18446744073709551616 007 -01 +1 1. .5
-.5 0.1 -0.0 0.0 -0e0 -0E-9 0e400 1.0 1.50 1e0 1e2 1E+2 1e-2 1e 1e+ 123456789012345678901234567890
0.1e-6 9007199254740993 9007199254740992.5 1e22 1e23 8.5e22 1.7976931348623157e308 1e308
1.7976931348623159e308 1e309 -1e309 1e400 1e99999999999 1e-400 5e-324 2e-324 2.2250738585072012e-308
2.2250738585072014e-308 4.9e-320 1e-300 9.99e-301 NaN -NaN Inf -Inf +Inf INF -INF Infinity
-Infinity nan 0x10 1_000 1L 1f 1d 1,5 5e-1.5 - -- 1e1000000 0.30000000000000004
179769313486231580793728971405301e276""".split()  # noqa: SIM905
_NUMBERS += [
    "9" * 400,
    "0." + "1" * 900,
    "1" * 990,
    "1" * 1001,
    "0." + "1" * 1200,
    "1e" + "0" * 999,
]
_LITERALS = ["null", "true", "false", "True", "NULL", "nul", "tru", "none", "", "undefined"]
_NESTED = ["{}", "[]", "[1]", "[null]", '{"s":"x"}', '{"s":1,"s":2}', "[", "]", "{", "}", "[}"]
_NESTED += ['[{"S":1}]', '{"S":null}', "[" * 600 + "]" * 600, "[" * 1200 + "]" * 1200, "[NaN]"]
_NESTED += ["[-Inf]", "[1, NaN]", '{"x": Infinity}', '{"_ackledger_end":"x"}', '[{"x":[{},null]}]']
_STRINGS = [
    *(
        "",
        " ",
        "x",
        "NaN",
        "null",
        "1",
        "1.50",
        "{}",
        "}{",
        '\\"',
        "\\\\",
        "\\/",
        "\\'",
        "\\x",
        "\\u",
    ),
    *("\\u0041", "\\u00e", "\\u0000", "\\ud83d\\ude00", "\\ud83d", "\\ude00", "\\ude00\\ud83d"),
    *(
        "\\\\ud83d",
        "\\\\ud83d\\ude00",
        "\\uD800\\uDBFF",
        "\\n",
        "\\t",
        "\t",
        "\x00",
        "\x01",
        "\x7f",
    ),
    *("\u00e4", "\U0001f600", "\ufeff", "\u2028", "\ufffe", "\u0085", "'", "//", "/*", ",", ":"),
    *('":', '\\":', '"s":', '\\"s\\":1', "}", "{", "], ", ": NaN", ", Infinity", "_ackledger"),
]
_TIMES = """2024-01-31 2024-02-29 2023-02-29 1900-02-29 2000-02-29 2100-02-29 2024-02-30 2024-04-31
2024-06-31 2024-13-01 2024-00-10 2024-01-00 2024-1-1 0000-01-01 0001-01-01 0999-12-31 1000-01-01
1582-10-10 9999-12-31 10000-01-01 -2024-01-01 +2024-01-01 2024-01-31T 2024-01-31Z 20240131 2024-01
2024 2024-01-31T00:00:00 2024-01-31T23:59:59Z 2024-01-31T24:00:00 2024-01-31T23:60:00
2024-01-31T23:59:60Z 2024-01-31T10:11 2024-01-31T10:11Z 2024-01-31T10 2024-01-31T10:11:12.
2024-01-31T10:11:12.1 2024-01-31T10:11:12.12Z 2024-01-31T10:11:12.123 2024-01-31T10:11:12.1234Z
2024-01-31T10:11:12.12345 2024-01-31T10:11:12.123456Z 2024-01-31T10:11:12.1234567
2024-01-31T10:11:12.000000001Z 2024-01-31T10:11:12+00:00 2024-01-31T10:11:12-00:00
2024-01-31T10:11:12+02:00 2024-01-31T10:11:12-11:30 2024-01-31T10:11:12+17:59
2024-01-31T10:11:12+18:00 2024-01-31T10:11:12+18:01 2024-01-31T10:11:12+23:59
2024-01-31T10:11:12+0200 2024-01-31T10:11:12+02 2024-01-31T10:11:12z 2024-01-31t10:11:12
2024-01-31T10:11+01:00 1000-01-01T00:00:00+17:00 0000-01-01T00:00:00+17:00 0000-02-29 0100-02-29
9999-12-31T23:59:59.999999-17:00 1969-12-31T23:59:59.999999Z 1883-11-18T12:00:00 10:11:12 T10:11:12
now today epoch""".split()  # noqa: SIM905
_TIMES += [
    "2024-01-31 10:11:12",
    "2024-01-31  10:11:12",
    " 2024-01-31",
    "2024-01-31 ",
    "2024-01-31\\n",
]
_TIMES += ["2024-01-31 10:11:12 UTC", "2024-01-31 10:11:12.5 Europe/Berlin", "\u0662024-01-31"]
_VALUES = [
    *_NUMBERS,
    *_LITERALS,
    *_NESTED,
    *(f'"{text}"' for text in [*_STRINGS, *_TIMES, *_NUMBERS]),
]
_PIECES = [
    *(
        " ",
        "\t",
        "\x0b",
        "\x0c",
        "\x00",
        "\x1f",
        "\n",
        "\r",
        "\u00a0",
        "\ufeff",
        "\udcff",
        "\udced\udca0\udc80",
    ),
    *(
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "'",
        "\\",
        "null",
        "{}",
        "[]",
        " null",
        " {}",
        "}{",
        "} {",
    ),
    *(
        "0",
        "-",
        ".",
        "e",
        "NaN",
        "//c",
        "/*c*/",
        "#",
        "\u00e9",
        '"x"',
        '"s":"x",',
        "\\u0073",
        "a",
        "S",
    ),
]
_MIXED = {
    "s": T.StringType(),
    "i": T.IntegerType(),
    "l": T.LongType(),
    "d": T.DoubleType(),
    "b": T.BooleanType(),
    "day": T.DateType(),
    "at": T.TimestampType(),
    "local": T.TimestampNTZType(),
    "tiny": T.ByteType(),
    "small": T.ShortType(),
}
_NAMES = [
    "a.b",
    'q"',
    "\u00e9",
    "a b",
    "Gr\u00f6\u00dfe",
    "back`tick",
    "\u017f",
    "k",
    "STRASSE",
    ":",
    "a\\",
]
_FORMS = {
    "mixed": _MIXED,
    "text": {"s": T.StringType()},
    "numbers": {"d": T.DoubleType(), "i": T.IntegerType(), "s": T.StringType()},
    "names": dict.fromkeys(_NAMES, T.StringType()),
}


def form(kinds, required=(), options=None):
    """A form of JSON with these columns."""
    fields = [T.StructField(name, kind, name not in required) for name, kind in kinds.items()]
    schema = T.StructType(fields)
    return Format("json", schema, schema.names, None, options or {})


def cut(texts, end=b"\n"):
    """Records one after the other."""
    starts, data = [], b""
    for text in texts:
        starts.append(len(data))
        data += text + end
    starts = np.array(starts, np.int64)
    return Lines(data, starts, starts + np.array([len(text) for text in texts], np.int64))


def digits(dice):
    """A number of many digits: the double next to it is not that of the first few."""
    exponent = dice.choice(["", f"e{dice.randint(-325, 290)}"])
    return f"{dice.randint(-9, 9)}.{dice.randrange(10 ** dice.randint(1, 40))}{exponent}"


def usual(dice, kinds):
    """A value that fits, of each column."""
    values = {
        T.StringType: lambda: json.dumps(dice.choice(["a", "b c", "\u00e4", 'd"', "5", "x\ty"])),
        T.DoubleType: lambda: dice.choice([digits(dice), repr(dice.uniform(-1000, 1000))]),
        T.BooleanType: lambda: dice.choice(["true", "false"]),
        T.DateType: lambda: (
            f'"20{dice.randint(10, 99)}-{dice.randint(10, 12)}-{dice.randint(10, 28)}"'
        ),
        T.TimestampType: lambda: (
            f'"2024-05-{dice.randint(10, 31)}T10:11:12.{dice.randint(0, 999999)}Z"'
        ),
        T.TimestampNTZType: lambda: (
            f'"2024-05-{dice.randint(10, 31)} 10:11:{dice.randint(10, 59)}"'
        ),
    }
    return {
        json.dumps(name, ensure_ascii=False): values.get(
            type(kind), lambda: str(dice.randint(-128, 127))
        )()
        for name, kind in kinds.items()
    }


def written(pairs):
    """The text of an object of keys and values, as they are written."""
    inside = ",".join(f"{key}:{value}" for key, value in pairs)
    return f"{{{inside}}}".encode("utf-8", "surrogateescape")


# Of a name nobody sees them; DEL and the others may stand in a key of JSON without an escape.
INVISIBLE = (
    "\u200b",
    "\ufeff",
    "\u00ad",
    "\u200e",
    "\x7f",
    "\\u0000",
    "\u3164",
    "\ufe0f",
    "\u2060",
)


def near(dice, key):
    """A key that is nearly this one, or this one in another way."""
    if len(key) < 3:
        return key
    changes = [
        lambda: key.upper(),
        lambda: key.lower(),
        lambda: f'" {key[1:]}',
        lambda: f'{key[:-1]}\u00a0"',
        lambda: f"{key[:2]} {key[2:]}",
        lambda: f'{key[:-1]}\\t"',
        lambda: f'"\\u{ord(key[1]):04x}{key[2:]}',
        lambda: f'"\\u{ord(key[1].upper()[0]):04X}{key[2:]}',
        lambda: f" {key} ",
        lambda: f"{key}\t",
        lambda: f"{key[:2]}{dice.choice(INVISIBLE)}{key[2:]}",
        lambda: "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in key),
        lambda: key.replace("s", "\u017f").replace("i", "\u0131"),
        lambda: key[1:-1],
        lambda: f"'{key[1:-1]}'",
    ]
    return dice.choice(changes)()


def nasty(dice, kinds):
    """A record that is changed here and there."""
    pairs = list(usual(dice, kinds).items())
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        place = dice.randrange(len(pairs)) if pairs else 0
        change = dice.randrange(8)
        if change == 0 and pairs:
            pairs.pop(place)
        elif change in (1, 2) and pairs:
            pairs[place] = (pairs[place][0], dice.choice(_VALUES))
        elif change == 3 and pairs:
            pairs[place] = (near(dice, pairs[place][0]), pairs[place][1])
        elif change == 4 and pairs:
            pairs.insert(dice.randrange(len(pairs)), (near(dice, pairs[place][0]), '"x"'))
        elif change == 5:
            key = dice.choice(
                ["more", "", "s\\n", "_ackledger_end", "\\u005fackledger_end", "\u00df"]
            )
            pairs.insert(place, (f'"{key}"', dice.choice(_VALUES)))
        elif change == 6 and pairs:
            pairs.append(dice.choice(pairs))
        elif change == 7 and pairs:
            pairs[place] = (pairs[place][0], "null")
    text = written(pairs)
    while dice.random() < 0.4:
        place = dice.randrange(len(text) + 1)
        piece = dice.choice(_PIECES).encode("utf-8", "surrogateescape")
        text = text[:place] + piece + text[place + dice.choice([0, 0, 1, 2]) :]
    return text


def fitting(kind):
    """Values for a column of this type, among which there are some of its own."""
    if isinstance(kind, T.StringType):
        return _VALUES
    texts = _STRINGS[:12]
    if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType):
        texts = [*texts, *_TIMES]
    numbers = _NUMBERS[::7] if len(texts) > 12 else _NUMBERS
    return [*numbers, *_LITERALS, *_NESTED[::3], *(f'"{text}"' for text in texts)]


def by_hand(kinds):
    """Each value in its column, and in none, alone or among others."""
    texts = [b"", b"{", b"}", b"{}", b"{ }", b" {}", b"{} ", b"{}{}", b"{} null {}", b"null", b"[]"]
    texts += [b'{"s":"' + b"x" * 60_000 + b'"}', b'{"s":"x","' + b"y" * 60_000 + b'":1}']
    keys = usual(random.Random(1), kinds)
    for (key, value), kind in zip(keys.items(), kinds.values(), strict=True):
        texts += [written([(key, other)]) for other in fitting(kind)]
        if key == '"s"':
            texts += [written([('"z"', other), (key, value)]) for other in _VALUES]
            texts += [written([('"z"', other)]) for other in _VALUES[::3]]
    return texts


def oracle(texts, a_form):
    """The exact reader's columns, with its errors, as a table."""
    return Parser(a_form).parse(texts).combine_chunks().select([ERROR, *a_form.schema.names])


def bits(column):
    """A column so that equal values have equal bytes."""
    if pa.types.is_floating(column.type):
        return column.view(pa.int64())
    return column


def difference(exact, texts, result):
    """The first record that was read and that the exact reader reads otherwise; None if none is."""
    rows = np.flatnonzero(result.was_read)
    refused = exact.column(ERROR).take(rows).is_valid().to_pylist()
    if any(refused):
        row = rows[refused.index(True)]
        return texts[row], exact.column(ERROR)[int(row)].as_py()
    for number, name in enumerate(result.columns.schema.names):
        expected = exact.column(number + 1).combine_chunks().take(rows)
        column = result.columns.column(number).take(rows)
        assert column.type == expected.type
        if not bits(column).equals(bits(expected)):
            pairs = zip(bits(column).to_pylist(), bits(expected).to_pylist(), strict=True)
            row = next(row for row, pair in zip(rows, pairs, strict=True) if pair[0] != pair[1])
            return texts[row], name, result.columns.column(number)[int(row)]
    unread = result.columns.filter(pa.array(~result.was_read))
    assert all(column.null_count == len(unread) for column in unread.columns)
    return None


def alone(texts, a_form):
    """What becomes of each record when no other is with it."""
    return [read(cut([text]), a_form) for text in texts]


def joined(results):
    """Results one after the other."""
    table = pa.Table.from_batches([result.columns for result in results]).combine_chunks()
    return Read(table.to_batches()[0], np.concatenate([result.was_read for result in results]))


@pytest.mark.parametrize("name", _FORMS)
def test_what_is_read_by_columns_is_exact(name):
    """Of each record that is read by columns, alone or among others, the exact reader reads the
    same, and fails none."""
    dice, kinds = random.Random(name), _FORMS[name]
    required = {"text": ["s"]}.get(name, ())
    a_form = form(kinds, required)
    assert reads(a_form)
    clean = [written(usual(dice, kinds).items()) for _ in range(300)]
    hand = [] if name == "names" else by_hand(kinds)
    texts = [*hand, *(nasty(dice, kinds) for _ in range(1200)), *clean]
    dice.shuffle(texts)
    exact = oracle(texts, a_form)
    single = joined(alone(texts, a_form))
    assert difference(exact, texts, single) is None
    for size in (10, len(texts)):
        parts = [texts[place : place + size] for place in range(0, len(texts), size)]
        assert difference(exact, texts, joined([read(cut(part), a_form) for part in parts])) is None
