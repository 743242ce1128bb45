"""The line of a record in its source file: certain, or not given."""

import gzip

import pytest

from ledger.sources import registry
from ledger.sources.base import Sought, Source
from ledger.sources.registry import lines_of

CSV, TSV = ({"format": "csv", "sep": sep} for sep in ",\t")
JSON = {"format": "json", "sep": ","}


def test_lines_are_found_behind_headers_and_blank_lines(tmp_path):
    """The line of a record is found with and without a header, in plain and packed files, raw or
    parsed."""
    text = b"id,city\r\nO1,Bern\r\n\r\nO2,Ulm\r\nO3,Bern,x\r\n"
    (tmp_path / "a.csv").write_bytes(text)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.partition(b"\n")[2]))
    sought = [Sought(2, '{"id": "O2", "city": "Ulm"}', True), Sought(3, "O3,Bern,x", False)]
    assert lines_of(str(tmp_path / "a.csv"), sought, CSV) == {2: 4, 3: 5}
    assert lines_of(str(tmp_path / "b.csv.gz"), sought, CSV) == {2: 3, 3: 4}


def test_a_line_that_is_not_certain_is_not_given(tmp_path):
    """No line for a record that is not at its number, is there twice, or whose file has changed or
    gone."""
    path = tmp_path / "a.csv"
    path.write_text("O1,1\nO1,1\nO9,5\nO2,2\n")
    sought = [Sought(1, "O1,1", False), Sought(3, '{"id": "O2"}', True), Sought(9, "O2,2", False)]
    assert lines_of(str(path), sought, CSV) == {3: 4}
    assert lines_of(str(path), [Sought(2, "O2,2", False)], CSV) == {}
    assert lines_of(str(tmp_path / "gone.csv"), sought, CSV) == {}
    path.write_bytes(b"PAR1 O1,1\n")
    assert lines_of(str(path), [Sought(1, "PAR1 O1,1", False)], CSV) == {}


@pytest.mark.parametrize(
    ("text", "sought", "layout", "expected"),
    [
        ("O1,5\nO12,5\nO2,7\n", Sought(1, '{"id": "O1"}', True), CSV, {1: 1}),
        ("O12,5\nO13,5\n", Sought(1, '{"id": "O1", "n": 5}', True), CSV, {}),
        ('"a ""b""",1\n', Sought(1, '{"id": "a \\"b\\"", "n": 1}', True), CSV, {1: 1}),
        ("'a,b',1\n", Sought(1, '{"id": "a,b", "n": 1}', True), CSV | {"quote": "'"}, {1: 1}),
        ('"a\\"b",1\n', Sought(1, '{"id": "a\\"b"}', True), CSV | {"escape": "\\"}, {1: 1}),
        ('"a",1\na,1\n', Sought(1, '{"id": "a"}', True), CSV | {"quote": ""}, {1: 2}),
        ("\t\t\nO2\t2\tx\n", Sought(2, '{"id": "O2"}', True), TSV, {2: 2}),
        (' \n{"id": "O1"}\n', Sought(1, '{"id": "O1"}', True), JSON, {1: 2}),
        ('{"id": "O12"}\n{"other": "O1"}\n', Sought(1, '{"id": "O1"}', True), JSON, {}),
        ("O1,5\n", Sought(1, '{"id": "O1"}', True), {**CSV, "multiline": True}, {}),
        ("O1,5\n", Sought(1, '{"id": "O1"}', True), {"format": "parquet"}, {}),
    ],
)
def test_whole_fields_of_whole_records(tmp_path, text, sought, layout, expected):
    """A line is a record's if its fields are, not if it contains their text; a line of
    separators is a record, a line of a source whose records have several is none.
    """
    (tmp_path / "a").write_text(text)
    assert lines_of(str(tmp_path / "a"), [sought], layout) == expected


def test_a_kind_of_your_own_finds_lines(tmp_path):
    """A registered kind is asked for the lines of its layout; a layout that none knows has
    none.
    """

    @registry.register
    class Numbered(Source):
        @classmethod
        def lines_of(cls, path, sought, layout):
            return {place.row: 10 * place.row for place in sought} if layout.get("numbered") else {}

    sought = [Sought(2, "O2", False)]
    assert lines_of(str(tmp_path / "a"), sought, {"numbered": True}) == {2: 20}
    assert lines_of(str(tmp_path / "a"), sought, {}) == {}
