"""Where relative paths of sources and sinks start."""

import pytest

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline
from ledger.settings import Settings


@pytest.mark.parametrize(
    ("output", "path", "expected"),
    [
        (None, "out/a", "/data/out/a"),
        ("", "out/a", "/data/out/a"),
        ("/made", "out/a", "/made/out/a"),
        ("webhdfs://made", "out/a", "webhdfs://made/out/a"),
        ("file:///made", "out/a", "/made/out/a"),
        ("/made", "file:///else/a", "/else/a"),
        ("/made", "file://localhost/else/a", "/else/a"),
        ("/made", "file:/else/a", "/else/a"),
        ("/made", "/else/a", "/else/a"),
        ("/made", "webhdfs://else/a", "webhdfs://else/a"),
    ],
)
@pytest.mark.parametrize("kind", [ParquetSink, DeltaSink])
def test_where_a_sink_writes(kind, output, path, expected):
    """A sink's relative path starts from the output folder, by default the data folder."""
    pipeline = Pipeline("shop")
    pipeline.source("orders", FileSource("in.csv", schema="n INT"))
    pipeline.sink("out", kind(path), reads="orders")
    settings = Settings(data="/data", output=output)
    publisher = pipeline.step("out").sink.publisher(settings, "shop", "out")
    assert publisher.staging(1, 2).startswith(f"{expected}/_")


def test_where_a_source_is_read():
    """A source's relative path starts from the data folder, wherever the output goes."""
    assert Settings(data="/data", output="/made").data_path("in.csv") == "/data/in.csv"


def test_the_output_folder_is_a_variable(monkeypatch):
    """``ACKLEDGER_OUTPUT`` sets it."""
    monkeypatch.setenv("ACKLEDGER_OUTPUT", "/made")
    assert Settings().output_path("a") == "/made/a"
