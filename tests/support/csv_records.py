"""Records of CSV, clean and nasty, and the forms that they are read in."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pyspark.sql import types as T

from ledger.sources.files.format import Format
from ledger.sources.vectorized.lines import Lines

KINDS: dict[str, T.DataType] = {
    "text": T.StringType(),
    "byte": T.ByteType(),
    "short": T.ShortType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "double": T.DoubleType(),
    "truth": T.BooleanType(),
    "date": T.DateType(),
    "time": T.TimestampType(),
    "local": T.TimestampNTZType(),
    "amount": T.DecimalType(10, 2),
    "share": T.DecimalType(4, 4),
    "whole": T.DecimalType(38, 0),
}
# Per type: what files have, and what the two readers may take otherwise.
CLEAN: dict[str, tuple[str, ...]] = {
    "text": ("Bern", "a b", "Zürich", "😀", " x ", "NA ", "-", "\u2028", "#", "\\", "'", "null"),
    "byte": ("0", "7", "-128", "127"),
    "short": ("0", "-32768", "32767", "007"),
    "int": ("0", "42", "-7", "2147483647", "-2147483648"),
    "long": ("0", "123456789012345678", "-1", "8999999999999999999", "20"),
    "double": ("0.1", "-0", "-0.0", "3", "1e5", "1.5E-10", "12345678.90625", "0.30000000000000004"),
    "truth": ("true", "false", "TRUE", "False"),
    "date": ("2020-02-29", "1999-12-31", "0001-01-01", "1582-10-10", "9999-12-31", "2000-02-29"),
    "time": (
        "2020-01-02 03:04:05",
        "2020-01-02T03:04:05.123456Z",
        "1969-12-31 23:59:59.9",
        "0001-01-01",
        "2020-01-02 03:04",
        "2020-01-02T03:04:05Z",
        "2020-01-02 03:04:05.5+02:00",
        "2020-01-02T03:04:05-11:30",
    ),
    "local": ("2020-01-02 03:04:05", "2020-01-02T03:04:05.5", "1582-10-10 00:00", "9999-12-31"),
    "amount": ("0", "1.5", "-12345678.90", "99999999.99", "-0.00", "007.1"),
    "share": ("0.5", "0.1234", "-0.0001", "0"),
    "whole": ("9" * 38, "0", "-12", "0001"),
}
NASTY: dict[str, tuple[str, ...]] = {
    "text": (
        "", "\t", "\0", "a\0", "\ufeff", "\ufeffx", "x\ufeff", "\ufffe",
        "\ufffd", "\x1a", "\x85", "\x7f", "\xa0", '"', "x" * 300, "\U0010ffff", "NA", "N", "\\N",
    ),
    "byte": ("128", "-129", "+1", "-0", "00000", "0x1", "255", "999", "1000", "1 ", "٣", "1.0"),
    "short": ("32768", "-32769", "99999", "100000", "+5", " 5", "0x1F", "1e3", "-", "--1", "1_0"),
    "int": ("2147483648", "-2147483649", "9999999999", "00000000001", "+5", "1L", "１", "5 "),
    "long": (
        "9223372036854775807", "9223372036854775808", "-9223372036854775808", "9" * 19, "0" * 20,
        "9000000000000000000", "-8999999999999999999", "+1", "1e3", "0x10", "1,000", "\xa01",
    ),
    "double": (
        "NaN", "Infinity", "-Inf", "inf", "nan", "1e400", "1e308", "1.8e308", "4.9e-324", "1e-400",
        "1.", ".5", "+1", "1d", "2f", "0x1p3", "1e", "e5", "1e+5", " 1", "1 ", "1_0", "-", "1e99",
        "9007199254740993", "9007199254740992.5000000000000001", "1.00000000000000011102230246251",
        "179769313486231570000000000000000000000", "0." + "0" * 24 + "1", "٣.5", "1,5", "-1e-99",
        "1.0000000000000001110223024", "1234567890123456789012345.1234567890123456789012345e99",
    ),
    "truth": ("1", "0", "t", "yes", "fal\u017fe", "true ", "TRUE\u0085", "\u0131", "T", "falſe"),
    "date": (
        "0000-01-01", "2019-02-29", "1900-02-29", "2020-02-30", "2020-04-31", "2020-13-01",
        "2020-00-10", "2020-1-1", "20200101", "2020-01-01 ", "2020-01-01\u2028", "+2020-01-01",
        "-2020-01-01", "12020-01-01", "2020-01-01T00:00:00", "epoch", "2020-01-00", "2100-02-29",
        "２０２０-01-01", "0004-02-29", "0000-02-29",
    ),
    "time": (
        "2020-01-01T10:00Z", "2020-01-01Z", "2020-01-01 24:00:00", "2020-01-01 10:00:60", "now",
        "2020-01-01 23:59:59.1234567", "2020-01-01 10", "2020-01-01 1:02:03", "2020-01-01t10:00:00",
        "2020-01-01 10:00:00+01:00", "2020-01-01 10:00:00+0100", "2020-01-01 10:00:00-00:00",
        "2020-01-01 10:00:00 UTC", "2020-01-01 10:00:00z", "2020-01-01 10:00:00ZZ", "0000-01-01",
        "2020-01-01 10:00:00.", "2019-02-29 00:00:00", "2020-01-01  10:00:00", "12:00:00",
        "0000-12-31T23:59:59Z", "2020-01-01 10:00:00.5Z", "2020-01-01T10:00:00.123", "2020-01-01T",
        "2020-01-01 10:60:00", "2020-01-01 10:00:00,5", "1900-02-29 10:00:00Z",
        "2020-01-01 10:00:00+99:00", "2020-01-01 10:00:00+18:00", "2020-01-01 10:00:00+17:59",
        "2020-01-01 10:00:00+17:60", "2020-01-01 10:00+01:00", "2020-01-01 10:00:00Z+01:00",
        "0000-01-01T00:00:00+17:59", "9999-12-31T23:59:59.999999-17:59",
        "9999-12-31T23:59:59.999999", "2020-01-01 10:00:00\u0085",
    ),
    "local": (
        "2020-01-01 10:00:00Z", "2020-01-01 10:00:00+00:00", "2020-01-01 24:00", "0000-06-01",
        "2020-01-01 10:00:00.1234567", "2020-01-01 10:00:00.000001", "2020-02-30", "2020-01-01 ",
    ),
    "amount": (
        "1.234", "1.500", "100000000", "99999999.999", "1e2", "+1", ".5", "5.", "1,5", " 1", "1 ",
        "NaN", "0" * 101, "000000001.5", "00000000001", "0x1", "1d", "-", "--1", "-.5", "1.2.3",
    ),
    "share": ("1", "1.0000", "0.12345", ".5", "00.5", "0.", "-0", "0.50000", "1e-2"),
    "whole": ("1" + "0" * 38, "1.0", "1.", "9" * 39, "0" * 38, "0" * 39, "1e37", "-" + "9" * 38),
}  # fmt: skip
_BYTES = [
    b"\0",
    b"\xff",
    b"\xef\xbf\xbf",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\xf4\x90\x80\x80",
    b"\xef\xbb\xbf",
]
_BYTES += [b" ", b"\t", b"\\", b"'", b'"', b'""', b",", b";", b"#", b"x", b"\xc3"]


@dataclass(frozen=True)
class Case:
    """A form, and texts to be read in it. ``ratio``: of texts that are to be read by columns."""

    name: str
    form: Format
    ratio: float = 0.05
    texts: Sequence[bytes] = field(default_factory=list)


def records(texts: Sequence[bytes], line_break: bytes = b"\n", before: bytes = b"") -> Lines:
    """Texts as the records of a part of a file."""
    lengths = np.array([len(text) for text in texts], np.int64)
    ends = np.cumsum(lengths + len(line_break)) - len(line_break) + len(before)
    return Lines(before + line_break.join(texts) + line_break, ends - lengths, ends)


def form(
    names: Sequence[str],
    null_value: str | None = None,
    *,
    schema: Sequence[str] | None = None,
    required: Sequence[str] = (),
    multiline: bool = False,
    **options: str,
) -> Format:
    """A form whose columns are called as their types in ``KINDS``, with digits behind."""
    columns = [
        T.StructField(name, KINDS[name.rstrip("0123456789")], name not in required)
        for name in schema or names
    ]
    return Format("csv", T.StructType(columns), names, null_value, options, multiline)


def clean(kinds: Format, count: int, seed: int) -> list[bytes]:
    """Records that anybody writes, whose quotes are doubled."""
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        values = [_clean(name, kinds, chance) for name in kinds.names]
        lines.append(kinds.dialect.separator.join(values).encode())
    return [line for line in lines if line]


def _enclosed(value: str, kinds: Format) -> str:
    """A value in quotes, its own doubled."""
    quote = kinds.dialect.quote
    return f"{quote}{value.replace(quote, quote * 2)}{quote}"


def _clean(name: str, kinds: Format, chance: random.Random) -> str:
    """A value that a program writes."""
    value = chance.choice(CLEAN.get(name.rstrip("0123456789"), CLEAN["text"]))
    if kinds.dialect.escape != kinds.dialect.quote:
        value = value.replace(kinds.dialect.escape, "/") if kinds.dialect.escape else value
    needs = {kinds.dialect.separator, kinds.dialect.quote} & set(value)
    if needs and not kinds.dialect.quote:
        return value.replace(kinds.dialect.separator, "/")
    if needs or (kinds.dialect.quote == kinds.dialect.escape != "" and chance.random() < 0.2):
        return _enclosed(value, kinds)
    return value


def nasty(kinds: Format, count: int, seed: int) -> list[bytes]:
    """Records that any of the two readers may take for others than they are."""
    chance = random.Random(seed)
    lines = []
    while len(lines) < count:
        values = [_nasty(name, kinds, chance) for name in kinds.names]
        if chance.random() < 0.05:
            values = values[:-1] if chance.random() < 0.5 else [*values, ""]
        line = kinds.dialect.separator.join(values).encode()
        for _ in range(chance.choice([0, 0, 0, 0, 1, 1, 2])):
            line = _spoilt(line, kinds, chance)
        if line and not {10, 13} & set(line):
            lines.append(line)
    return lines


def _nasty(name: str, kinds: Format, chance: random.Random) -> str:
    kind = name.rstrip("0123456789")
    if kind not in KINDS:
        kind = "text"
    roll = chance.random() * max(1, len(kinds.names) / 3)
    if roll < 0.3:
        value = chance.choice(NASTY[kind])
    elif roll < 0.4:
        value = chance.choice(["", kinds.null_value or "", kinds.dialect.quote * 2])
        return (
            value if chance.random() < 0.7 else f"{kinds.dialect.quote}{value}{kinds.dialect.quote}"
        )
    elif roll < 0.7 and chance.random() < 0.5:
        value = _random(kind, chance)
    else:
        return _clean(name, kinds, chance)
    if chance.random() < 0.3:
        return _enclosed(value, kinds)
    return value


def _random(kind: str, chance: random.Random) -> str:
    """A value of a type, or nearly."""
    if kind in ("byte", "short", "int", "long"):
        return str(chance.randint(-1, 1) * chance.getrandbits(chance.randint(1, 65)))
    if kind == "double":
        number = chance.uniform(-1, 1) * 10.0 ** chance.randint(-30, 30)
        digits = chance.randint(1, 30)
        return chance.choice([repr(number), f"{number:.{digits}f}", f"{number:.{digits}e}"])
    if kind in ("date", "time", "local") and chance.random() < 0.8:
        day = f"{chance.randint(1, 9999):04}-{chance.randint(1, 12):02}-{chance.randint(1, 31):02}"
        clock = f"{chance.randint(0, 23):02}:{chance.randint(0, 59):02}"
        seconds = f":{chance.randint(0, 59):02}"
        fraction = f".{chance.randint(0, 10**6):06}"[: chance.randint(1, 7)].rstrip(".")
        zone = chance.choice(["", "Z", f"{chance.choice('+-')}{chance.randint(0, 19):02}:30"])
        whole = f"{day}{chance.choice('T ')}{clock}{seconds}{fraction}{zone}"
        return day if kind == "date" else whole
    if kind in ("amount", "share", "whole"):
        return f"{chance.uniform(-2, 2) * 10 ** chance.randint(-4, 9):.{chance.randint(0, 5)}f}"
    return chance.choice(CLEAN[kind])


def _spoilt(line: bytes, kinds: Format, chance: random.Random) -> bytes:
    """A record with bytes put in, taken away, or made others."""
    marks = [
        kinds.dialect.separator.encode(),
        kinds.dialect.quote.encode(),
        kinds.dialect.escape.encode(),
    ]
    at = chance.choice([0, len(line), chance.randint(0, len(line)), chance.randint(0, len(line))])
    length = chance.choice([0, 0, 1])
    return line[:at] + chance.choice([*_BYTES, *marks * 4]) + line[at + length :]


def cases(count: int, seed: int) -> list[Case]:
    """Forms of each type and option, each with nasty records."""
    every = list(KINDS)
    forms = {
        "every type": form(every),
        "every type twice, NA": form([f"{name}{n}" for name in every for n in (1, 2)], "NA"),
        "required": form(["int", "text"], required=["int", "text"]),
        "required, NA": form(["text", "int"], "NA", required=["text", "int"]),
        "by name": form(["unused", "int", "text"], schema=["text", "date", "int"]),
        "unused twice": form(["X", "x", "double"], "NA", schema=["double"]),
        "lacks what is required": form(["int"], schema=["int", "text"], required=["text"]),
        "semicolons": form(["text1", "int", "text2"], sep=";"),
        "tabs": form(["text1", "double", "text2"], "\\N", sep="\t"),
        "blanks": form(["text1", "text2"], sep=" "),
        "control": form(["text1", "text2", "int"], sep="\x01"),
        "pipes, no quotes": form(["text1", "date", "text2"], sep="|", quote=""),
        "tabs, no quotes": form(["text1", "text2"], "NA", sep="\t", quote=""),
        "no quotes, an escape": form(["text1", "text2"], quote="", escape="\\"),
        "quotes that are blanks": form(["text1", "int", "text2"], quote=" "),
        "single quotes": form(["text1", "int", "text2"], quote="'"),
        "backslashes": form(["text1", "int", "text2"], escape="\\"),
        "backslash everywhere": form(["text1", "text2"], quote="\\"),
        "backslashes between": form(["text1", "text2"], sep="\\"),
        "no escape": form(["text1", "text2"], "NA", escape=""),
        "letters": form(["text1", "int", "text2"], sep="x", quote="a"),
        "of expressions": form(["text1", "int"], sep="^", quote="]"),
        "a null that is a quote": form(["text1", "text2"], '"'),
        "an empty null": form(["text1", "int"], ""),
        "a null with a blank": form(["text1", "int", "text2"], " 7"),
        **{f"only {name}": form([name], "NA" if n % 2 else None) for n, name in enumerate(every)},
    }
    empty = {"lacks what is required"}
    made_of = {name: nasty(kinds, count, seed + n) for n, (name, kinds) in enumerate(forms.items())}
    return [
        Case(name, kinds, 0.0 if name in empty else 0.05, made_of[name])
        for name, kinds in forms.items()
    ]
