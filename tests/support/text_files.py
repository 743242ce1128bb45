"""Files of text in which something is odd, by what that is, with the options of their source."""

import gzip

RECORDS = 600
AT = "2024-01-02T03:04:05.5"
NUMBERS = [f"{n},name {n},{n}.25,2024-01-{n % 28 + 1:02},{AT}Z,{AT}" for n in range(RECORDS)]
HEADER = "n,s,d,day,at,local"
SCHEMA = "n INT, s STRING, d DOUBLE, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ"
CSV = "\n".join([HEADER, *NUMBERS, ""])
JSON = "".join(
    f'{{"n":{n},"s":"name {n}","d":{n}.25,"day":"2024-01-01","at":"{AT}Z"}}\n'
    for n in range(RECORDS)
)
UGLY = (
    f'{HEADER}\r\n1,"a, ""b""",1.5,2024-01-01,,\r2,"x\ny",2,2024-01-02,,\n\n{HEADER}\n'
    '3,"never closed,3,2024-01-03\n4,plain,x,2024-01-04,,\n5,fünf,5e2,2024-02-30,,\n6,,,,,\n'
)
UGLY_JSON = (
    '\ufeff{"n":1,"s":"a\\"b"}\n  {"n":2} \n\t\n{"n":"x"}\n'
    '{"n":3}{"n":4}\n[1]\n{"N":5}\n{"n":1.0}\n'
)
FILES = {
    "csv": ({"a.csv": CSV, "b.csv": CSV}, {}),
    "csv without header": ({"a.csv": "\n".join(NUMBERS)}, {"header": False}),
    "ugly csv": ({"a.csv": UGLY, "b.csv": CSV + UGLY.partition("\n")[2]}, {}),
    "ugly csv, multiline": ({"a.csv": UGLY, "b.csv": CSV}, {"multiline": True}),
    "bytes": ({"a.csv": CSV.encode() + b"\xff,x,1,,,\n7,\x00,1,2024-01-01,,\n"}, {}),
    "by name": (
        {"a.csv": CSV, "b.csv": f"day,n,more\n2024-01-01,1,x\n2024-13-01,2,y\n{'3,' * 9}\n"},
        {"header": "by_name"},
    ),
    "compressed": ({"a.csv.gz": gzip.compress(CSV.encode()) + gzip.compress(b"1,b,2,,,\n")}, {}),
    "json": ({"a.json": JSON, "b.json": JSON}, {"format": "json"}),
    "ugly json": ({"a.json": UGLY_JSON, "b.json": JSON + UGLY_JSON}, {"format": "json"}),
    "empty": ({"a.csv": HEADER, "b.csv": "", "c.csv": "\n\n"}, {}),
}
