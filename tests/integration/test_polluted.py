"""``make polluted`` over a few files of its kind that the test makes."""

import csv
import json
from contextlib import nullcontext

import pytest

from tests.polluted.__main__ import COLUMNS, main
from tests.polluted.batches import Lab
from tests.polluted.corpus import KINDS

HEADER = ["id", "name"]
ROWS = [["1", "plain"], ["2", 'a, "b"'], ["3", ""]]
TEXT = 'id,name\r\n1,plain\r\n2,"a, ""b"""\r\n3,\r\n'
DIALECT = {"delimiter": ",", "quotechar": '"', "escapechar": '"', "preamble_lines": 0}
# Of each kind of pollution the file, what its parameters say otherwise, and its figures.
RIGHT = {
    "file_no_header": (TEXT.partition("\n")[2], {"column_names": []}, {"exact": 3}),
    "row_extra_quote2_col1": (TEXT.replace("1,p", '1,"p'), {}, {"exact": 2, "failed by name": 1}),
    "row_more_sep_row0_col1": (TEXT.replace("id,", "id,,", 1), {}, {"refused by name": 1}),
    "file_field_delimiter_0x2C_0x20": (
        TEXT.replace(",", ", "),
        {"delimiter": ", "},
        {"refused by name": 1},
    ),
    "file_multitable_same": (TEXT * 2, {}, {"exact": 3, "beyond the clean file": 4}),
    "file_record_delimiter_0xD": (
        TEXT.replace("plain", "plain ").replace("\r\n", "\r"),
        {},
        {"exact": 2, "rewritten in the clean file": 1},
    ),
}
WRONG = {
    "row_less_sep_row1_col1": (TEXT.replace("plain", "plane"), {}, {"exact": 2, "wrong": 1}),
    "file_one_data_row": (TEXT.replace("3,\r\n", ""), {}, {"exact": 2, "without a trace": 1}),
}


@pytest.fixture
def corpus(tmp_path):
    """Makes a folder of files as the benchmark has it."""

    def make(files):
        folder = tmp_path / "corpus" / "polluted_files"
        for part in ("csv", "clean", "parameters"):
            (folder / part).mkdir(parents=True)
        for stem, (text, parameters, _) in files.items():
            name = f"{stem}.csv"
            names = parameters.get("column_names", HEADER)
            (folder / "csv" / name).write_text(text, newline="")
            with (folder / "clean" / name).open("w", newline="") as clean:
                csv.writer(clean).writerows([HEADER, *ROWS] if names else ROWS)
            more = {"column_names": HEADER, "n_columns": 2, "header_lines": int(bool(names))}
            value = json.dumps({**DIALECT, **more, **parameters})
            (folder / "parameters" / f"{name}_parameters.json").write_text(value)
        return folder.parent

    return make


@pytest.mark.parametrize(("files", "code"), [(RIGHT, 0), (WRONG, 1)], ids=["right", "wrong"])
def test_each_file_has_its_figures(corpus, spark, database, settings, tmp_path, files, code):
    """Each row is exact, failed or refused by name, or counted as wrong or as without a trace; then
    the command fails.
    """
    output = tmp_path / "table.md"
    lab = nullcontext(Lab(spark, database, settings))
    assert main([str(corpus(files)), "--output", str(output)], lambda: lab) == code
    lines = [line.strip("| ").split(" | ") for line in output.read_text().splitlines()]
    by_file = {cells[0]: dict(zip(COLUMNS, cells[1:], strict=False)) for cells in lines}
    for stem, (_, _, figures) in files.items():
        kind = next(KINDS[kind] for kind in KINDS if stem.startswith(kind))
        rows = {"files": 1, "rows": len(ROWS), **figures}
        rows |= {"in refused files": len(ROWS)} if "refused by name" in figures else {}
        assert {name: int(n) for name, n in by_file[kind].items() if n != "0"} == rows, kind
    assert ("| why records failed | records |" in output.read_text()) == (files is RIGHT)


def test_a_folder_without_the_corpus_is_named(tmp_path, capsys):
    """With what is expected in it, before anything starts."""
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    text = " ".join(capsys.readouterr().err.split())
    assert f"{tmp_path}: expected the folders csv, clean and parameters" in text
