"""The line of a record in its source file: certain, or not told."""

import gzip

from ledger.source_lines import Sought, lines_of


def test_lines_are_found_behind_headers_and_blank_lines(tmp_path):
    """The line of a record is found with and without a header, in plain and packed files, raw or
    parsed."""
    text = b"id,city\r\nO1,Bern\r\n\r\nO2,Ulm\r\nO3,Bern,x\r\n"
    (tmp_path / "a.csv").write_bytes(text)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.partition(b"\n")[2]))
    sought = [Sought(2, '{"id": "O2", "city": "Ulm"}', True), Sought(3, "O3,Bern,x", False)]
    assert lines_of(str(tmp_path / "a.csv"), sought) == {2: 4, 3: 5}
    assert lines_of(str(tmp_path / "b.csv.gz"), sought) == {2: 3, 3: 4}


def test_a_line_that_is_not_certain_is_not_told(tmp_path):
    """No line for a record that is not at its number, is there twice, or whose file has changed or
    gone."""
    path = tmp_path / "a.csv"
    path.write_text("O1,1\nO1,1\nO9,5\nO2,2\n")
    sought = [Sought(1, "O1,1", False), Sought(3, '{"id": "O2"}', True), Sought(9, "O2,2", False)]
    assert lines_of(str(path), sought) == {3: 4}
    assert lines_of(str(path), [Sought(2, "O2,2", False)]) == {}
    assert lines_of(str(tmp_path / "gone.csv"), sought) == {}
    path.write_bytes(b"PAR1 O1,1\n")
    assert lines_of(str(path), [Sought(1, "PAR1 O1,1", False)]) == {}
